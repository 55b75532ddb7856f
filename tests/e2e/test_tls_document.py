"""docs/tls.md, followed: its commands make an authority and certificates, and all sides use them."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

import ml_udf.duckdb
from ml_udf.cli.pg_sandbox import Sandbox
from tests.certificates import give
from tests.inference_server import InferenceServer, database_user, inference_server
from tests.models import hashing_model, label_of
from tests.postgres.fixtures import Engine

PAGE = (Path(__file__).parents[2] / "docs" / "tls.md").read_text()
TOKEN = "a-token-for-the-tests-0123456789"


def blocks(kind: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return [block for of, block in found if of == kind]


def commands(words: str) -> list[list[str]]:
    """The `ml-udf …` commands of the page that begin so, as a shell reads them."""
    lines = [line for block in blocks("sh") for line in block.splitlines() if line.startswith(words)]
    return [shlex.split(line) for line in lines]


@pytest.fixture(scope="module")
def folder(open_folder: Path) -> Path:
    """Where the commands of the page were typed."""
    made = open_folder / "tls-page"
    made.mkdir()
    for block in blocks("sh"):
        typed = "\n".join(line for line in block.splitlines() if not line.startswith("ml-udf"))
        if typed.strip():
            subprocess.run(["bash", "-ec", typed], cwd=made, check=True, capture_output=True, timeout=300)
    (made / "token").write_text(TOKEN)
    for name in ("ca.pem", "client.pem"):
        (made / name).chmod(0o644)
    give(made / "client.key", database_user())
    return made


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[InferenceServer]:
    """That of the page's last command, on this machine."""
    flags = commands("ml-udf serve")[-1][2:]
    at = flags.index("--host")
    del flags[at : at + 2]
    flags = [str(folder / flag) if (folder / flag).exists() else flag for flag in flags]
    files = {"sslrootcert": "ca.pem", "sslcert": "client.pem", "sslkey": "client.key"}
    connect = {name: str(folder / file) for name, file in files.items()}
    with inference_server(folder / "home", flags=flags, connect={"token": TOKEN, **connect}) as running:
        running.deploy(hashing_model(folder / "made"), "udf_food_name")
        yield running


def test_the_certificates_are_as_strict_as_can_be_asked(folder: Path) -> None:
    for name, purpose in (("server", "sslserver"), ("client", "sslclient")):
        command = [
            "openssl",
            "verify",
            "-x509_strict",
            "-purpose",
            purpose,
            "-CAfile",
            "ca.pem",
            f"{name}.pem",
        ]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.stdout == f"{name}.pem: OK\n", done.stderr


def test_the_pages_statements_reach_the_server(
    cluster: Sandbox, server: InferenceServer, folder: Path
) -> None:
    typed = [block for block in blocks("") if "SERVER" in block]
    assert len(typed) == 2
    cluster.sql("CREATE DATABASE tls_page")
    cluster.sql("CREATE EXTENSION ml_udf CASCADE", "tls_page")
    engine = Engine(cluster.dsn("tls_page"))
    try:
        for statement in (part for block in typed for part in block.split(";") if part.strip()):
            meant = statement.replace("/etc/ml_udf", str(folder)).replace("…", TOKEN)
            engine.query(meant.replace("https://ml.example.org:8080", server.url))
        engine.query("SELECT ml_udf.create_function('udf_food_name')")
        assert engine.value("SELECT udf_food_name('x')") == label_of("x")
    finally:
        engine.close()


def test_duckdb_reaches_it_too(server: InferenceServer, folder: Path) -> None:
    with contextlib.closing(duckdb.connect()) as con:
        registration = ml_udf.duckdb.register(
            con,
            server.url,
            token=TOKEN,
            sslrootcert=str(folder / "ca.pem"),
            sslcert=str(folder / "client.pem"),
            sslkey=str(folder / "client.key"),
        )
        assert con.execute("SELECT udf_food_name('x')").fetchall() == [(label_of("x"),)]
        registration.close()


def test_the_doctor_says_how_long_the_certificates_are_good_for(
    server: InferenceServer, folder: Path
) -> None:
    (typed,) = commands("ml-udf doctor")
    meant = [word.replace("/etc/ml_udf", ".") for word in typed[1:]]
    meant[meant.index("--endpoint") + 1] = server.url
    shown = command_line(folder, *meant, "--sslcert", "client.pem", "--sslkey", "client.key")
    assert (
        "TLSv1.3; the server's certificate, for ml.example.org, localhost, 127.0.0.1, is good for 8" in shown
    )
    assert "the certificate of --sslcert client.pem is good for 8" in shown
    assert "All links hold." in shown


def test_a_command_takes_it_all_from_the_environment(server: InferenceServer, folder: Path) -> None:
    files = {"TOKEN_FILE": "token", "SSLROOTCERT": "ca.pem", "SSLCERT": "client.pem", "SSLKEY": "client.key"}
    given = {f"ML_UDF_{name}": file for name, file in files.items()}
    shown = command_line(folder, "sql", "SELECT udf_food_name('x')", ML_UDF_ENDPOINT=server.url, **given)
    assert label_of("x") in shown
    given.pop("ML_UDF_SSLCERT")
    del given["ML_UDF_SSLKEY"]
    shown = command_line(folder, "sql", "SELECT 1", ML_UDF_ENDPOINT=server.url, **given)
    assert "wants a certificate of its clients, and none was shown" in shown


def command_line(folder: Path, *words: str, **variables: str) -> str:
    """What `ml-udf …` prints, in either stream, on one line."""
    done = subprocess.run(
        [sys.executable, "-m", "ml_udf.cli", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **variables},
        check=False,
    )
    assert TOKEN not in done.stdout + done.stderr
    return " ".join((done.stdout + done.stderr).split())
