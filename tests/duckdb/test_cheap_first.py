"""`ml_udf.duckdb.sql` on a real DuckDB: the same rows as the query as written, of fewer rows sent."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from duckdb.func import ARROW, SPECIAL

import ml_udf.duckdb
from ml_udf.client import Client, Options
from ml_udf.duckdb.catalog import known_of
from ml_udf.duckdb.registration import Registration
from ml_udf.duckdb.rewrite import rewrite
from tests.duckdb.random_queries import SEEDS, Queries, make_tables
from tests.unit.ml_udf.fake_transport import FakeTransport

ANSWERS = ("a", "b", "c")  # of one model, which another may be asked for


@dataclass
class Model:
    """A function as `register` makes them, for many queries in little time; it notes what it is asked."""

    asked: set[str] = field(default_factory=set)

    def __call__(self, *vectors: pa.Array) -> pa.Array:
        values = vectors[0].cast(pa.string()).to_pylist()
        self.asked |= {value for value in values if value is not None and value not in ANSWERS}
        return pa.array([None if value is None else ANSWERS[len(value) % 3] for value in values], pa.string())


@pytest.fixture(scope="module")
def model() -> Model:
    return Model()


@pytest.fixture(scope="module")
def con(model: Model) -> Iterator[duckdb.DuckDBPyConnection]:
    con = duckdb.connect()
    for name in ("udf", "udf2"):
        con.create_function(
            name,
            lambda *vectors: model(*vectors),
            None,
            "VARCHAR",
            type=ARROW,
            null_handling=SPECIAL,
            side_effects=False,
        )
    make_tables(con)
    yield con
    con.close()


def outcome(con: duckdb.DuckDBPyConnection, model: Model, query: str) -> tuple[Any, set[str]]:
    """The rows in any order, or the kind of error; and what the model was asked."""
    model.asked = set()
    try:
        cursor = con.execute(query)
        columns = [column[0] for column in cursor.description or []]
        found: Any = (columns, sorted(map(repr, cursor.fetchall())))
    except duckdb.Error as error:
        found = type(error)
    return found, model.asked


def test_of_500_random_queries_each_gives_what_it_gave_and_asks_no_more(
    con: duckdb.DuckDBPyConnection, model: Model
):
    known = known_of(con, "t u w answers pairs")
    changed = fewer = failed = 0
    for seed in range(SEEDS):
        query = Queries(seed).query()
        told = rewrite(query, known)
        was, asked = outcome(con, model, query)
        now, asks = outcome(con, model, told.query) if told.is_changed else (was, asked)
        if isinstance(was, type):
            failed += 1
            assert not isinstance(now, type) or now is was, (seed, query, told.query)
            continue
        assert now == was, (seed, query, told.query)
        assert asks <= asked, (seed, query, told.query)
        changed += told.is_changed
        fewer += len(asks) < len(asked)
    assert failed < SEEDS / 3
    assert changed > SEEDS / 5
    assert fewer > SEEDS / 20


def test_a_query_that_sql_runs_gives_its_relation_with_parameters_and_frames_of_the_caller(
    con: duckdb.DuckDBPyConnection, model: Model
):
    frame = pa.table({"x": ["a", "bb", "ccc"], "k": [1, 2, 2]})
    model.asked = set()
    found = ml_udf.duckdb.sql(con, "SELECT x, udf(x) FROM frame WHERE udf(x) <> ? AND k + 0 = ?", ["z", 2])
    assert found.columns == ["x", "udf(x)"]
    assert found.order("x").fetchall() == [("bb", "c"), ("ccc", "a")]
    assert model.asked == {"bb", "ccc"}
    assert frame.num_rows == 3


def test_of_several_statements_each_sees_what_those_before_it_made(
    con: duckdb.DuckDBPyConnection, model: Model
):
    text = """
        CREATE OR REPLACE TEMP TABLE fresh AS SELECT 'row ' || i AS x, i AS k FROM range(100) AS r(i);
        SELECT count(*) FROM fresh WHERE udf(x) IS NOT NULL AND k < 7 -- the last
    """
    model.asked = set()
    found = ml_udf.duckdb.sql(con, text)
    assert found.fetchall() == [(7,)]
    assert len(model.asked) == 7
    ml_udf.duckdb.sql(con, "DROP TABLE fresh")
    assert con.execute("SELECT count(*) FROM duckdb_tables() WHERE table_name = 'fresh'").fetchall() == [(0,)]


def test_what_duckdb_refuses_it_refuses_in_its_own_words(con: duckdb.DuckDBPyConnection):
    with pytest.raises(duckdb.BinderException, match="nowhere"):
        ml_udf.duckdb.sql(con, "SELECT * FROM t WHERE udf(x) = 'a' AND nowhere = 7")
    with pytest.raises(duckdb.ParserException):
        ml_udf.duckdb.sql(con, "SELECT * FROM t WHERE AND")


def test_a_condition_that_fails_only_for_rows_that_the_model_keeps_away_does_not_fail(
    con: duckdb.DuckDBPyConnection,
):
    query = "SELECT count(*) FROM t WHERE udf(x) = 'none' AND s::INTEGER > 5"
    assert ml_udf.duckdb.rewritten(con, query).is_changed
    assert con.execute(query).fetchall() == [(0,)]
    found = ml_udf.duckdb.sql(con, query)
    assert found.fetchall() == [(0,)]


@pytest.mark.parametrize(
    "beside",
    [
        "(k <> 0 AND 9 // k > 2)",
        "k <> 0 AND 9 // k > 2",
        "(k = 0 OR 9 // k > 2) AND k < 5",
        "(k <> 0 AND (z = 0 OR 9 // k // z > 2))",
    ],
)
def test_what_keeps_a_condition_from_failing_keeps_it_from_that_beside_a_model(
    con: duckdb.DuckDBPyConnection, model: Model, beside: str
):
    query = f"SELECT x, k FROM t WHERE udf(x) <> 'a' OR {beside}"
    told = ml_udf.duckdb.rewritten(con, query)
    assert told.is_changed
    was, asked = outcome(con, model, query)
    assert not isinstance(was, type)
    now, asks = outcome(con, model, told.query)
    assert now == was
    assert asks < asked


def test_a_registered_function_and_its_catalog_are_known_for_models():
    own = duckdb.connect()
    transport = FakeTransport()
    registration = Registration(own, Client("http://fake", transport=transport), {"udf_f": "f"}, Options())
    own.execute("CREATE TABLE t AS SELECT i::VARCHAR AS x, i AS k FROM range(1000) AS r(i)")
    own.execute("CREATE VIEW v AS SELECT x, k, udf_f(x) AS answer FROM t")
    own.execute("CREATE MACRO answer(value) AS upper(udf_f(value))")
    for condition in ("UDF_F(x)", "ml_udf.predict('f', x)", "answer(x)", "ml_udf.try_predict('f', x).value"):
        transport.sent.clear()
        query = f"SELECT count(*) FROM t WHERE {condition} <> 'none' AND (k + 0) % 100 = 7"
        found = ml_udf.duckdb.sql(own, query)
        assert found.fetchall() == [(10,)], condition
        assert sum(map(len, transport.sent)) == 10, condition
    told = ml_udf.duckdb.rewritten(own, "SELECT k FROM v WHERE answer = 'none' AND md5(x) LIKE 'a%'")
    assert told.is_changed
    told = ml_udf.duckdb.rewritten(own, "FROM t WHERE ml_udf.feedback('f', x, 'a') = 'counted' AND k = 7")
    assert not told.is_changed
    registration.close()
    own.close()


def test_without_sqlglot_the_error_names_what_to_install():
    lines = """
import sys
sys.modules["sqlglot"] = None
import duckdb, ml_udf.duckdb
try:
    ml_udf.duckdb.sql(duckdb.connect(), "SELECT 1")
except ml_udf.errors.MlUdfError as error:
    print(error.message, error.hint)
"""
    told = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, timeout=300)
    assert "sqlglot is missing" in told.stdout, told.stderr
    assert "pip install 'ml_udf[duckdb]'" in told.stdout
