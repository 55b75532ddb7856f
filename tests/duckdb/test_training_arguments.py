"""Arguments of the training functions that there are not: refused before anything is asked of a server."""

from __future__ import annotations

from typing import Any

import duckdb
import pytest

from ml_udf.duckdb.surface import CATALOG
from ml_udf.duckdb.training import training_statements


@pytest.fixture
def con() -> duckdb.DuckDBPyConnection:
    con = duckdb.connect()
    three: list[Any] = ["VARCHAR"] * 3
    con.create_function("asked", lambda verb, arguments, path: "{}", three, "VARCHAR")
    con.execute(f"ATTACH ':memory:' AS {CATALOG}")
    for statement in training_statements("asked"):
        con.execute(statement)
    return con


@pytest.mark.parametrize(
    ("call", "there"),
    [
        ("train('food', measure => 'f1')", ["train(dataset", "models :=", "budget :=", "max_epochs :="]),
        ("deploy('udf_food', jobs => 1)", ["deploy(function", "job :=", "slo_ms :="]),
    ],
)
def test_an_argument_that_there_is_not_is_refused_with_those_that_there_are(
    con: duckdb.DuckDBPyConnection, call: str, there: list[str]
) -> None:
    with pytest.raises(duckdb.BinderException, match="does not support the supplied arguments") as caught:
        con.execute(f"SELECT ml_udf.{call}")
    assert all(argument in str(caught.value) for argument in there)
