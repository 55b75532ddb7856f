"""Functions that answer something else than they did when a DuckDB connection registered them."""

from __future__ import annotations

from dataclasses import replace

import duckdb
import pytest

import ml_udf.duckdb
from ml_udf.errors import WrongType
from tests import typed_server
from tests.typed_server import FUNCTIONS

ANSWERS = {
    "vector": FUNCTIONS["udf_vector"],
    "longer": ("text", [replace(FUNCTIONS["udf_vector"][1][0], of_row=lambda _: [0.5] * 6, width=6)]),
    "boxes": FUNCTIONS["udf_boxes"],
    "value": FUNCTIONS["udf_price"],
    "labels": FUNCTIONS["udf_tags"],
    "label": FUNCTIONS["udf_kind"],
}
PAIRS = [(before, now) for before in ANSWERS for now in ANSWERS if now != before != "label"]


@pytest.mark.parametrize(("before", "now"), PAIRS)
def test_a_function_that_answers_something_else_now_is_to_be_registered_again(
    before: str, now: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with typed_server.typed_server() as server, duckdb.connect() as con:
        monkeypatch.setitem(typed_server.FUNCTIONS, "udf_vector", ANSWERS[before])
        registration = ml_udf.duckdb.register(con, server.url, functions=["udf_vector"])
        kind = con.sql("SELECT udf_vector('la')").types[0]
        con.execute("SELECT udf_vector('la')").fetchall()
        monkeypatch.setitem(typed_server.FUNCTIONS, "udf_vector", ANSWERS[now])
        server.version = "2"
        with pytest.raises(duckdb.Error, match="as they were when it was registered") as caught:
            con.execute("SELECT udf_vector('las')").fetchall()
        assert "[42804 wrong_type]" in str(caught.value)
        assert "register it again" in str(caught.value)
        assert "ALTER TABLE" not in str(caught.value)
        assert isinstance(registration.last_error, WrongType)
        registration.close()
        again = ml_udf.duckdb.register(con, server.url, functions=["udf_vector"])
        assert con.sql("SELECT udf_vector('las')").types[0] != kind
        con.execute("SELECT udf_vector('las')").fetchall()
        again.close()


def test_a_function_that_answered_classes_gives_all_else_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    with typed_server.typed_server() as server, duckdb.connect() as con:
        monkeypatch.setitem(typed_server.FUNCTIONS, "udf_vector", ANSWERS["label"])
        registration = ml_udf.duckdb.register(con, server.url, functions=["udf_vector"])
        monkeypatch.setitem(typed_server.FUNCTIONS, "udf_vector", ANSWERS["value"])
        server.version = "2"
        assert con.execute("SELECT udf_vector('la')").fetchall() == [("2.5",)]
        registration.close()
