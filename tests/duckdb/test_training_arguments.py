"""Arguments of the training functions that there are not: refused before anything is asked of a server."""

from __future__ import annotations

import json
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
    ("budget", "sent"), [("1000", "1000"), ("'10 minutes'", "10 minutes"), ("NULL", None)]
)
def test_a_budget_is_sent_as_text_so_that_a_number_alone_is_refused(budget: str, sent: str | None) -> None:
    con = duckdb.connect()
    asked: list[dict[str, Any]] = []
    three: list[Any] = ["VARCHAR"] * 3

    def ask(verb: str, arguments: str, path: str) -> str:
        asked.append(json.loads(arguments))
        return '{"id": 1}'

    con.create_function("asked", ask, three, "VARCHAR", side_effects=True)
    con.execute(f"ATTACH ':memory:' AS {CATALOG}")
    for statement in training_statements("asked"):
        con.execute(statement)
    con.execute(f"SELECT ml_udf.train('food', budget => {budget})").fetchall()
    assert asked[0]["budget"] == sent


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
