"""What `ml-udf sql` prints is what DuckDB gave."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pytest
from typer.testing import CliRunner

import ml_udf.duckdb
from ml_udf.cli.app import app
from ml_udf.cli.console import _console as console_of
from ml_udf.cli.console import console, has_edge
from ml_udf.client import Client, Options
from ml_udf.duckdb.registration import Registration
from tests.unit.ml_udf.fake_transport import FakeTransport


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    def register(con: duckdb.DuckDBPyConnection, *_: object, **__: object) -> Registration:
        return Registration(con, Client("http://fake", transport=FakeTransport()), {"udf_f": "f"}, Options())

    monkeypatch.setattr(ml_udf.duckdb, "register", register)


def printed(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["sql", *arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize("value", ["[laksa]", "[/laksa]", "[bold]", ":pizza:", "\\[x]"])
def test_a_table_shows_brackets_and_colons_as_they_are(value: str):
    told = printed(f"SELECT '{value}' AS a, 1 AS \"{value}\"")
    assert told.count(value) == 2


def test_json_has_each_column_of_the_same_name():
    assert json.loads(printed("--format", "json", "SELECT 1 AS a, 2 AS a, 3 AS a_1, 4 AS b")) == {
        "a": 1,
        "a_1": 2,
        "a_1_1": 3,
        "b": 4,
    }


def test_json_has_a_map_whose_keys_are_no_texts():
    told = printed("--format", "json", "SELECT [map {DATE '2026-01-31': map {true: 1}}] AS m")
    assert json.loads(told) == {"m": [{"2026-01-31": {"true": 1}}]}


def test_what_fails_after_begin_is_told():
    done = CliRunner().invoke(app, ["sql", "BEGIN; SELECT udf_f('bad')"])
    assert (done.exit_code, type(done.exception)) == (1, SystemExit)
    assert "bad is not there" in done.stderr


def test_no_number_of_rows_is_negative():
    assert CliRunner().invoke(app, ["sql", "--max-rows", "-1", "SELECT 1"]).exit_code == 2


def test_what_goes_to_a_file_or_a_program_has_no_edge(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    made = console_of(stderr=False)
    with made.capture() as caught:
        made.print("word " * 100)
    assert len(caught.get().splitlines()) == 1
    assert not has_edge(made)


@pytest.mark.parametrize("columns", ["x AS a, x AS b", "x AS a, 1 AS a_very_long_name, 2 AS another"])
def test_no_value_is_cut_at_the_edge(columns: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(console, "_width", 30)
    told = printed(f"SELECT {columns} FROM (SELECT repeat('x', 100) AS x)")
    assert told.count("x") in (100, 200)
    assert has_edge(console)


def test_csv_comes_back_as_it_was(tmp_path: Path):
    values = r"""
        SELECT NULL::VARCHAR AS a, '' AS b, 'x,"y"' || chr(10) || 'é' AS c,
            '\xAA''"\x5Cb\x00'::BLOB AS d, true AS e, ' ' AS f
        UNION ALL SELECT 'z', NULL, NULL, ''::BLOB, NULL, 'NULL'
    """
    file = tmp_path / "told.csv"
    file.write_bytes(printed("--format", "csv", values).encode())
    shape = "columns => {a: 'VARCHAR', b: 'VARCHAR', c: 'VARCHAR', d: 'BLOB', e: 'BOOLEAN', f: 'VARCHAR'}"
    shown = f"read_csv('{file}', header => true, allow_quoted_nulls => false, {shape})"
    with duckdb.connect() as con:
        assert con.execute(f"FROM {shown}").fetchall() == con.execute(values).fetchall()


def test_csv_has_lists_and_structs_as_json_and_a_lone_null_as_a_row():
    assert printed("--format", "csv", "SELECT [1, NULL] AS a, {'b': NULL, 'c': true} AS d").splitlines() == [
        "a,d",
        '"[1, null]","{""b"": null, ""c"": true}"',
    ]
    assert printed("--format", "csv", "SELECT NULL AS a").splitlines() == ["a", '""']


def test_json_has_nothing_that_json_has_not():
    def refuse(word: str) -> None:
        pytest.fail(f"{word} is not JSON")

    query = "SELECT 'nan'::DOUBLE AS a, ['inf'::DOUBLE, 1] AS b, '-inf'::FLOAT AS c, '\\xC3\\xA9'::BLOB AS d"
    told = printed("--format", "json", query)
    assert json.loads(told, parse_constant=refuse) == {
        "a": "NaN",
        "b": ["Infinity", 1.0],
        "c": "-Infinity",
        "d": "\\xC3\\xA9",
    }
