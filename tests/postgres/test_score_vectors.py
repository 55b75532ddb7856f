"""`CALL ml_udf.score_table` into columns of vectors: as numbers with the plan node, as texts without it."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from ml_udf.cli.pg_sandbox import Sandbox
from tests.postgres.fixtures import Engine
from tests.postgres.scored import call, refused
from tests.typed_server import TypedServer, typed_server, vector_of

ROWS = 40
SCORE = "CALL ml_udf.score_table('texts', 'udf_vector', 't', server => 'ml_udf', on_error => 'null'"


@pytest.fixture
def typed() -> Iterator[TypedServer]:
    with typed_server() as running:
        yield running


@pytest.fixture(scope="module")
def database(batching_cluster: Sandbox) -> str:
    return batching_cluster.database("scored_vectors", url="http://127.0.0.1:1")


@pytest.fixture
def texts(database: str, typed: TypedServer) -> Iterator[Engine]:
    """With NULLs, faulty rows, equal texts."""
    engine = Engine(database)
    engine.query(
        f"""ALTER SERVER ml_udf OPTIONS (SET url '{typed.url}');
            CREATE TABLE texts (id int PRIMARY KEY, t text, v real[], v_error text);
            INSERT INTO texts SELECT n, CASE n % 8 WHEN 3 THEN 'missing' || n WHEN 5 THEN NULL
                                        ELSE repeat('a', n % 20) END
            FROM generate_series(1, {ROWS}) n"""
    )
    yield engine
    engine.query("DROP TABLE IF EXISTS texts, answers")
    engine.close()


@pytest.fixture
def none_one_by_one(texts: Engine) -> Iterator[None]:
    """A vector that the plan node does not receive is an error."""
    made = str(texts.value("SELECT pg_get_functiondef('ml_udf._reals'::regproc)"))
    texts.query(
        """CREATE OR REPLACE FUNCTION ml_udf._reals(vector bytea) RETURNS real[]
           LANGUAGE plpgsql STABLE STRICT AS $$ BEGIN RAISE EXCEPTION 'one by one'; END $$"""
    )
    yield
    texts.query(made)


def assert_scored(engine: Engine, table: str, value: str, error: str) -> None:
    joined = f"texts LEFT JOIN {table} AS r USING (id)" if table != "texts" else "texts AS r"
    found = engine.query(f"SELECT id, t, r.{value}, r.{error} FROM {joined} ORDER BY id")
    assert len(found) == ROWS
    for row, text, vector, fault in found:
        if text is None:
            assert (vector, fault) == (None, None)
        elif row % 8 == 3:
            assert (vector, fault.partition(":")[0]) == (None, "input_not_found")
        else:
            assert (vector, fault) == (pytest.approx(vector_of(text)), None)


@pytest.mark.usefixtures("none_one_by_one")
def test_the_plan_node_receives_vectors_of_updates_and_of_inserts(texts: Engine) -> None:
    assert call(texts, "output => 'v', batch_rows => 16", SCORE) == (30, 5, 0)
    assert_scored(texts, "texts", "v", "v_error")
    assert call(texts, "result_table => 'answers', batch_rows => 16", SCORE) == (30, 5, 0)
    assert_scored(texts, "answers", "value", "error")


@pytest.mark.usefixtures("none_one_by_one")
def test_without_the_plan_node_they_are_texts(texts: Engine) -> None:
    texts.query("SET ml_udf.batching = off")
    assert call(texts, "output => 'v'", SCORE) == (30, 5, 0)
    assert_scored(texts, "texts", "v", "v_error")


def test_a_column_of_another_type_takes_their_text(texts: Engine) -> None:
    texts.query("ALTER TABLE texts ALTER v TYPE float8[]")
    assert call(texts, "output => 'v'", SCORE) == (30, 5, 0)
    assert_scored(texts, "texts", "v", "v_error")


@pytest.mark.usefixtures("none_one_by_one")
def test_pgvectors_type_takes_them_where_its_dimension_is_theirs(texts: Engine) -> None:
    if not texts.query("SELECT 1 FROM pg_available_extensions WHERE name = 'vector'"):
        pytest.skip("PGVECTOR NOT TESTED: it is not installed")
    texts.query("CREATE EXTENSION IF NOT EXISTS vector; ALTER TABLE texts ALTER v TYPE vector(3)")
    state, told = refused(texts, SCORE + ", output => 'v')")
    assert state == "42804"
    assert "do not fit into column v (vector(3))" in told
    texts.query("ALTER TABLE texts ALTER v TYPE vector(4)")
    assert call(texts, "output => 'v'", SCORE) == (30, 5, 0)
    texts.query("ALTER TABLE texts ALTER v TYPE real[]")
    assert_scored(texts, "texts", "v", "v_error")


def test_a_vector_row_by_row_is_the_same(texts: Engine) -> None:
    texts.query("SET ml_udf.batching = off")
    assert texts.value("SELECT ml_udf._reals(array_send('{1,-0.5,1e30}'::real[]))") == [1.0, -0.5, 1e30]
    for wrong in ("array_send('{1}'::float8[])", r"'\x00'::bytea", "array_send('{}'::real[])"):
        with pytest.raises(psycopg.errors.DatatypeMismatch):
            texts.query(f"SELECT ml_udf._reals({wrong})")
