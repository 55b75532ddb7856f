"""What `ml-udf sql` prints is what DuckDB gave."""

from __future__ import annotations

import duckdb
import pytest
from typer.testing import CliRunner

import ml_udf.duckdb
from ml_udf.cli.app import app
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
