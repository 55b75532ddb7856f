"""`ml-udf sql` and `ml-udf doctor` as typed in a shell: a real server, another process, 80 columns."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from ml_udf.client import Client
from tests.inference_server import InferenceServer, inference_server
from tests.models import CLASSES, hashing_model


def ml_udf(*words: str, endpoint: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ml_udf.cli", *words],
        capture_output=True,
        text=True,
        input=stdin,
        timeout=120,
        env={**os.environ, "COLUMNS": "80", "ML_UDF_ENDPOINT": endpoint},
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InferenceServer]:
    folder = tmp_path_factory.mktemp("command-line")
    with inference_server(folder / "home") as running:
        running.deploy(hashing_model(folder / "models"), "udf_label", slo_ms=500)
        yield running


def label(text: str) -> str:
    return CLASSES[zlib.crc32(text.encode()) % len(CLASSES)]


def test_sql_prints_a_table_csv_or_json(server: InferenceServer) -> None:
    query = "SELECT n, udf_label('text ' || n) AS label FROM range(3) t(n) ORDER BY n"
    expected = [(n, label(f"text {n}")) for n in range(3)]
    table = ml_udf("sql", query, endpoint=server.url)
    assert table.returncode == 0, table.stderr
    assert all(one in table.stdout for _, one in expected)
    as_csv = ml_udf("sql", query, "--format", "csv", endpoint=server.url)
    assert list(csv.reader(io.StringIO(as_csv.stdout)))[1:] == [[str(n), one] for n, one in expected]
    as_json = ml_udf("sql", "--format", "json", endpoint=server.url, stdin=query)
    assert [json.loads(line) for line in as_json.stdout.splitlines()] == [
        {"n": n, "label": one} for n, one in expected
    ]


def test_sql_says_when_it_shows_not_every_row(server: InferenceServer) -> None:
    shown = ml_udf("sql", "SELECT * FROM range(50)", "--max-rows", "5", endpoint=server.url)
    assert "the first 5 rows" in shown.stdout
    assert "49" not in shown.stdout


def test_sql_shows_rows_too_wide_for_the_screen_value_by_value(server: InferenceServer) -> None:
    columns = ", ".join(f"'value {n}' AS a_long_name_of_a_column_{n}" for n in range(8))
    shown = ml_udf("sql", f"SELECT {columns}", endpoint=server.url)
    lines = shown.stdout.splitlines()
    for n in range(8):
        assert any(f"a_long_name_of_a_column_{n}" in line and f"value {n}" in line for line in lines)


def test_sql_fails_with_the_functions_error_in_full(server: InferenceServer) -> None:
    failed = ml_udf("sql", "SELECT udf_nosuch('x')", endpoint=server.url)
    assert failed.returncode == 1
    assert "udf_nosuch" in failed.stderr
    assert "Traceback" not in failed.stderr


def test_doctor_finds_all_links_whole(server: InferenceServer) -> None:
    found = ml_udf("doctor", endpoint=server.url)
    assert found.returncode == 0, found.stdout
    assert "udf_label (version 1) answered a probe" in found.stdout
    assert "All links hold." in found.stdout


@pytest.mark.parametrize("most", ["interactive", "bulk"])
def test_doctor_is_content_with_a_token_that_may_ask(tmp_path: Path, most: str) -> None:
    (tmp_path / "all").write_text("0123456789abcdef-all")
    (tmp_path / "ask").write_text("0123456789abcdef-ask")
    tokens = [f"--token-file={tmp_path / 'all'}", f"--ask-token-file={tmp_path / 'ask'}"]
    guarded = InferenceServer(tmp_path / "home", flags=[*tokens, f"--ask-class={most}"])
    try:
        model = hashing_model(tmp_path, "asked")
        with contextlib.closing(Client(guarded.url, token="0123456789abcdef-all")) as client:
            client.post("/register", {"directory": str(model)})
            client.put("/v1/functions/udf_asked", {"models": ["asked"]})
        found = ml_udf("doctor", "--token-file", str(tmp_path / "ask"), endpoint=guarded.url)
    finally:
        guarded.stop()
    assert found.returncode == 0, found.stdout
    assert "udf_asked (version 1) answered a probe" in found.stdout
    assert "this token may ask and read" in found.stdout


@pytest.mark.parametrize("command", [("doctor",), ("sql", "SELECT 1"), ("jobs",)])
def test_without_a_server_every_command_says_so_and_what_to_do(command: tuple[str, ...]) -> None:
    failed = ml_udf(*command, endpoint="http://127.0.0.1:9")
    assert failed.returncode == 1
    said = failed.stdout + failed.stderr
    assert "127.0.0.1:9" in said
    assert "ml-udf serve" in said
    assert "Traceback" not in said


def test_a_disk_that_is_full_is_told_in_one_line() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "ml_udf.cli", "--help"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
        )
    assert done.returncode == 1
    assert done.stderr.splitlines()[0].endswith("cannot be written: No space left on device")
    assert "Traceback" not in done.stderr


def test_sql_asks_models_last_and_shows_how(server: InferenceServer) -> None:
    cheap = "(n + 0) % 100 = 7"
    query = f"SELECT count(*) AS n FROM range(1000) t(n) WHERE udf_label('text ' || n) <> 'none' AND {cheap}"
    shown = ml_udf("sql", query, "--show-rewrite", endpoint=server.url)
    assert shown.returncode == 0, shown.stderr
    assert f"CASE WHEN TRY(({cheap}) IS TRUE) IS NOT FALSE THEN udf_label(" in shown.stdout
    sent = "; SELECT rows_sent FROM ml_udf.stat_functions"
    for options, rows in (((), "10"), (("--no-rewrite",), "1000")):
        found = ml_udf("sql", query + sent, "--format", "csv", *options, endpoint=server.url)
        assert found.stdout.split() == ["n", "10", "rows_sent", rows], found.stderr


def test_sql_shows_why_a_condition_stays_as_it_is(server: InferenceServer) -> None:
    query = "SELECT 1 FROM range(9) t(n) WHERE udf_label('text ' || n) = 'a' AND random() < 0.5"
    shown = ml_udf("sql", query, "--show-rewrite", endpoint=server.url)
    assert shown.stdout.strip() == query
    assert "random() < 0.5 may give another value each time" in shown.stderr


def test_sql_names_the_functions_that_there_are_where_one_is_not(server: InferenceServer) -> None:
    failed = ml_udf("sql", "SELECT udf_lable('a')", endpoint=server.url)
    told = " ".join(failed.stderr.split())
    assert failed.returncode == 1
    assert "there is no function udf_lable" in told
    assert "did you mean udf_label?" in told
    assert "floor" not in told
    other = ml_udf("sql", "SELECT nowhere FROM range(3)", endpoint=server.url)
    assert "Binder Error" in other.stderr
