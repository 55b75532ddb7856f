"""Vectors stored by `score_table` on DuckDB: where they fit, where they do not, and beside what."""

from __future__ import annotations

import math
from collections.abc import Iterator

import duckdb
import pytest

from ml_udf.duckdb import score_table
from ml_udf.errors import WrongType
from ml_udf.scoring import ScoreProgress
from tests.typed_server import TypedServer, typed_server, vector_of


@pytest.fixture
def typed() -> Iterator[TypedServer]:
    with typed_server() as running:
        yield running


@pytest.fixture
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as made:
        yield made


def make_texts(con: duckdb.DuckDBPyConnection, kind: str, texts: list[str | None]) -> None:
    con.execute(f"CREATE TABLE texts (id INTEGER PRIMARY KEY, t VARCHAR, v {kind}, v_error VARCHAR)")
    for row in enumerate(texts):
        con.execute("INSERT INTO texts (id, t) VALUES (?, ?)", row)


def scored(con: duckdb.DuckDBPyConnection, typed: TypedServer, **how: object) -> ScoreProgress:
    return score_table(con, typed.url, "texts", "udf_vector", "t", on_error="null", **how)  # type: ignore[arg-type]  # of any field


@pytest.mark.parametrize("kind", ["FLOAT[4]", "FLOAT[]", "DOUBLE[4]", "DOUBLE[]", "VARCHAR"])
def test_vectors_go_beside_nulls_faulty_rows_and_a_huge_text(
    con: duckdb.DuckDBPyConnection, typed: TypedServer, kind: str
):
    texts = ["a", None, "missing", "b" * (1 << 20), "", "ä" * 30]
    make_texts(con, kind, texts)
    tally = scored(con, typed, output="v")
    assert (tally.answered, tally.failed, tally.missed) == (4, 1, 0)
    found = con.execute("SELECT v::FLOAT[4], v_error FROM texts ORDER BY id").fetchall()
    for text, (vector, error) in zip(texts, found, strict=True):
        if text is None:
            assert (vector, error) == (None, None)
        elif text == "missing":
            assert vector is None
            assert error.startswith("input_not_found: ")
        else:
            assert error is None
            assert vector == pytest.approx(vector_of(text))


def test_many_vectors_are_stored_by_several_statements_that_all_count_or_none(
    con: duckdb.DuckDBPyConnection, typed: TypedServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("ml_udf.duckdb.scoring.STATEMENT_BYTES", 2 * 4 * 4)  # two vectors
    texts: list[str | None] = ["a", "bb", "ccc", "dddd", "eeeee"]
    con.execute("CREATE TABLE texts (id INTEGER PRIMARY KEY, t VARCHAR, v FLOAT[4], v_error VARCHAR)")
    con.execute(
        "CREATE TABLE strict (id INTEGER PRIMARY KEY, value FLOAT[4], CHECK (id < 4 OR value IS NULL))"
    )
    con.executemany("INSERT INTO texts (id, t) VALUES (?, ?)", [list(row) for row in enumerate(texts)])
    with pytest.raises(duckdb.ConstraintException):
        score_table(con, typed.url, "texts", "udf_vector", "t", result_table="strict")
    assert con.execute("SELECT count(*) FROM strict").fetchall() == [(0,)]
    assert scored(con, typed, output="v").answered == 5
    found = con.execute("SELECT v FROM texts ORDER BY id").fetchall()
    assert [vector for (vector,) in found] == [pytest.approx(vector_of(text or "")) for text in texts]


@pytest.mark.parametrize("constraint", ["CHECK (value IS NULL)", "NOT NULL"])
def test_answers_that_violate_a_constraint_are_tried_once_and_it_is_named(
    con: duckdb.DuckDBPyConnection, typed: TypedServer, monkeypatch: pytest.MonkeyPatch, constraint: str
):
    monkeypatch.setattr("ml_udf.duckdb.scoring.CONFLICT_PAUSE_S", math.inf)  # no sleep: an OverflowError
    make_texts(con, "INTEGER", ["a", "missing"])
    con.execute(f"CREATE TABLE strict (id INTEGER PRIMARY KEY, value FLOAT[4] {constraint}, error VARCHAR)")
    with pytest.raises(duckdb.ConstraintException, match=constraint.partition(" (")[0]):
        scored(con, typed, result_table="strict")
    assert con.execute("SELECT count(*) FROM strict").fetchall() == [(0,)]


def test_a_table_of_vectors_is_made(con: duckdb.DuckDBPyConnection, typed: TypedServer):
    make_texts(con, "INTEGER", ["a", "bb"])
    assert scored(con, typed, result_table="answers").answered == 2
    found = con.execute("SELECT typeof(value), value FROM answers ORDER BY id").fetchall()
    assert [kind for kind, _ in found] == ["FLOAT[4]"] * 2
    assert [vector for _, vector in found] == [pytest.approx(vector_of(text)) for text in ("a", "bb")]


def test_an_empty_table_is_no_error(con: duckdb.DuckDBPyConnection, typed: TypedServer):
    make_texts(con, "FLOAT[4]", [])
    assert scored(con, typed, output="v").stored == 0


@pytest.mark.parametrize("kind", ["FLOAT[3]", "DOUBLE[256]", "INTEGER"])
def test_a_column_of_another_dimension_is_refused_before_anything_is_asked(
    con: duckdb.DuckDBPyConnection, typed: TypedServer, kind: str
):
    make_texts(con, kind, ["a"])
    with pytest.raises(WrongType, match="do not fit into column v") as caught:
        scored(con, typed, output="v")
    assert kind in caught.value.message
    assert caught.value.hint
    assert con.execute("SELECT count(*) FROM texts WHERE v IS NULL AND v_error IS NULL").fetchall() == [(1,)]
