"""What can be asked for, and the names, types and SQL that it becomes."""

from __future__ import annotations

from array import array
from typing import Any

import duckdb
import pytest

from ml_udf.errors import BadOption
from ml_udf.quoting import qualified
from ml_udf.scoring import ColumnDef, Layout, Page, ScoreRequest
from ml_udf.scoring.names import found_name, split_name
from ml_udf.scoring.pages import next_rows
from ml_udf.scoring.queries import Queries
from ml_udf.scoring.request import rescore_of
from ml_udf.scoring.texts import array_literal, float_width, text_of, unheld


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"output": "a", "result_table": "b"},
        {"output": "a", "batch_rows": 0},
        {"output": "a", "row_limit": -1},
        {"output": "a", "on_error": "maybe"},
        {"output": "a", "patience_s": -1.0},
        {"output": "a", "patience_s": float("nan")},
    ],
)
def test_a_request_that_makes_no_sense_is_refused(how: dict[str, Any]):
    with pytest.raises(BadOption) as caught:
        ScoreRequest("t", "f", "x", **how)
    assert caught.value.hint


def test_reasons_to_score_again_are_a_list():
    assert rescore_of(None) is None
    assert rescore_of("none") == frozenset()
    assert rescore_of("changed, Errors") == frozenset({"changed", "errors"})
    with pytest.raises(BadOption):
        rescore_of("sometimes")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("Food", ["food"]),
        ('shop."Food"', ["shop", "Food"]),
        ('"a.b""c" . d', ['a.b"c', "d"]),
    ],
)
def test_names_are_read_as_sql_reads_them(text: str, parts: list[str]):
    assert split_name(text) == parts
    assert split_name(qualified(*parts)) == parts


@pytest.mark.parametrize("text", ["", "a.", ".a", "a b", '"a', 'a"b"', "a;b c"])
def test_what_is_no_name_is_refused(text: str):
    with pytest.raises(BadOption):
        split_name(text)


def test_a_column_is_found_by_its_very_name_first():
    assert found_name("Food", ["food", "Food"]) == "Food"
    assert found_name("FOOD", ["food", "Food"]) == "food"
    assert found_name('"Food"', ["food", "Food"]) == "Food"
    assert found_name("FOOD", ["Food"]) == "Food"
    assert found_name("FOOD", ["Food", "fooD"]) is None
    assert found_name("a.b", ["a"]) is None


@pytest.mark.parametrize(
    ("value", "sql_type", "text"),
    [
        ("x", "text", "x"),
        (None, "text", None),
        (2.0, "integer", "2"),
        (2.5, "double precision", "2.5"),
        (True, "boolean", "true"),
        ([0.5, None], "double precision[]", "{0.5,NULL}"),
        ([0.5, 1.0], "jsonb", "[0.5, 1.0]"),
        (b"\xff", "bytea", "\\xff"),
        (array("f", [0.1, 2]), "real[]", "{0.100000001,2}"),
        (array("f", [0.1, 2]), "vector(2)", "[0.100000001,2]"),
        (array("f", [0.1, 2]), "shop.halfvec(2)", "[0.100000001,2]"),
    ],
)
def test_answers_become_texts_of_their_columns_types(value: Any, sql_type: str, text: str | None):
    assert text_of(value, sql_type) == text


@pytest.mark.parametrize(
    ("values", "sql_type", "width"),
    [
        ([array("f", [1, 2]), array("f", [3, 4])], "real[]", 2),
        ([array("f", [1, 2])], "public.vector(2)", 2),
        ([array("f", [1, 2]), array("f", [3])], "real[]", 0),
        ([array("d", [1, 2])], "real[]", 0),
        ([array("f", [1, 2])], "double precision[]", 0),
        (["[1, 2]"], "vector(2)", 0),
        ([], "real[]", 0),
    ],
)
def test_vectors_of_float32_and_one_length_go_as_numbers(
    values: list[Any], sql_type: str, width: int
) -> None:
    assert float_width(values, sql_type) == width


def test_pages_of_large_values_are_small():
    big = Page([("1",)], ["h"], [b"x" * (32 << 20)])
    assert next_rows(big, 1024) == 2
    assert next_rows(Page([("1",)], ["h"], ["/a"]), 1024) == 1024


def test_no_value_of_a_row_ever_becomes_a_part_of_the_sql():
    key = (ColumnDef("id'; --", "text", "text"),)
    layout = Layout(
        "t", '"t"', '"r"', key, ColumnDef('x"', "text", "text"), {"value": "value"}, "text", frozenset()
    )
    queries = Queries(layout, "1")
    assert "SECRET" not in queries.page(("SECRET",), 10)
    assert '"id\'; --" > $1::text::text' in queries.page(("SECRET",), 10)
    assert '"x""" IS NOT NULL' in queries.count(None)


def test_an_update_looks_at_no_row_outside_the_keys_of_its_answers():
    with duckdb.connect() as con:
        con.execute(
            "CREATE TABLE t AS"
            " SELECT md5(range::text)::uuid AS id, 'x' AS x, NULL::text AS food FROM range(99)"
        )
        con.execute(
            "CREATE TABLE answers AS SELECT id::text AS k0, md5(x)::uuid::text AS h, 'laksa' AS v,"
            " NULL AS c, NULL AS e FROM t ORDER BY id LIMIT 9"
        )
        key = (ColumnDef("id", "uuid", "uuid"),)
        layout = Layout(
            "t", '"t"', '"t"', key, ColumnDef("x", "text", "text"), {"value": "food"}, "text", frozenset()
        )
        queries = Queries(layout, "1")
        (reach,) = con.execute(queries.reach("answers")).fetchall()
        assert reach == con.execute("SELECT min(k0), max(k0) FROM answers").fetchone()
        update = queries.write("answers", reached=True)
        assert con.execute(update, [reach[0], reach[0]]).fetchone() == (1,)
        assert con.execute(update, list(reach)).fetchone() == (8,)


def test_a_version_is_a_literal_that_nothing_leaves():
    layout = Layout(
        "t",
        '"t"',
        '"t"',
        (ColumnDef("id", "int", "int"),),
        ColumnDef("x", "text", "text"),
        {"value": "food", "model_version": "food_model_version"},
        "text",
        frozenset({"version"}),
    )
    assert "IS DISTINCT FROM E'1''; --'" in Queries(layout, "1'; --").count(None)
    # Where standard_conforming_strings is off, a backslash would take the quote behind it along.
    assert "IS DISTINCT FROM E'1\\\\''; --'" in Queries(layout, "1\\'; --").count(None)


@pytest.mark.parametrize(
    ("texts", "literal"),
    [
        ([], "{}"),
        ([None, "", "NULL", "a,b", "{x}"], '{NULL,"","NULL","a,b","{x}"}'),
        (['"', "\\", "ä\n"], '{"\\"","\\\\","ä\n"}'),
    ],
)
def test_texts_are_written_as_postgresql_reads_an_array(texts: list[str | None], literal: str):
    assert array_literal(texts) == literal


@pytest.mark.parametrize(
    ("value", "sql_type", "is_held"),
    [
        ("a\0b", "text", False),
        ("a\0b", "bytea", True),
        (b"\xff", "character varying", False),
        (b"\xff\0", "bytea", True),
        (r'["\u0000"]', "text[]", False),
        (r'{"a": "\u0000"}', "jsonb", False),
        (r'{"a": "\\u0000"}', "jsonb", True),
        (r"\u0000", "text", True),
        (1.5, "text", True),
        (None, "text", True),
    ],
)
def test_what_no_column_of_postgresql_holds_is_told(value: object, sql_type: str, is_held: bool) -> None:
    assert (unheld(value, sql_type) is None) == is_held


def test_a_text_for_a_bytea_is_its_bytes() -> None:
    assert text_of("a\0\\", "bytea") == r"\x61005c"
