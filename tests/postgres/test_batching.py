"""Made functions and the batching module together: installed, loaded, and what is sent then."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from ml_udf.cli.pg_sandbox import Sandbox
from tests.postgres.fixtures import Engine
from tests.postgres.oip_server import OipServer, label_of, oip_server


@pytest.fixture
def batching(batching_cluster: Sandbox, fake_server: OipServer) -> Iterator[Engine]:
    if not batching_cluster.sql("SELECT 1 FROM pg_database WHERE datname = 'batching'"):
        batching_cluster.database("batching", url=fake_server.url, functions=["udf_food_name"])
    engine = Engine(batching_cluster.dsn("batching"))
    engine.query(f"ALTER SERVER ml_udf OPTIONS (SET url '{fake_server.url}')")
    engine.query("CREATE TEMP TABLE log AS SELECT n, '/' || n % 700 AS path FROM generate_series(1, 2000) n")
    fake_server.forget()
    yield engine
    engine.close()


def plan(engine: Engine, sql: str) -> str:
    return "\n".join(line for (line,) in engine.query(f"EXPLAIN (COSTS OFF) {sql}"))


@pytest.mark.parametrize(
    "call",
    [
        "udf_food_name(path)",
        "ml_udf.predict('food', path)",
        "(ml_udf.try_predict('food', path)).value",
    ],
)
def test_plain_sql_is_batched(batching: Engine, fake_server: OipServer, call: str) -> None:
    sql = f"SELECT {call} AS food, count(*) FROM log GROUP BY food"
    assert "MlUdfBatch" in plan(batching, sql)
    answers = dict(batching.query(sql))
    assert sum(answers.values()) == 2000
    assert sorted(fake_server.rows) == sorted(f"/{n}" for n in range(700))
    assert len(fake_server.requests) <= 4


@pytest.mark.parametrize("base", ["text", "varchar", "dish"])
def test_answers_of_a_domain_are_batched_and_checked(batching: Engine, base: str) -> None:
    batching.query("CREATE TYPE dish AS ENUM ('c0', 'c1', 'c2', 'c3', 'c4', 'c5', 'c6')")
    batching.query(f"CREATE DOMAIN served AS {base} NOT NULL CHECK (VALUE <> 'c1')")
    batching.query("SELECT ml_udf.create_function('serve', 'food', returns => 'served')")
    known = [(f"/{n}", label_of(f"/{n}")) for n in range(50)]
    sql = f"SELECT path, serve(path) FROM (VALUES {', '.join(f'({path!r})' for path, _ in known)}) AS v(path)"
    assert "MlUdfBatch" in plan(batching, sql)
    served = ", ".join(f"{path!r}" for path, label in known if label != "c1")
    assert batching.query(f"{sql} WHERE path IN ({served})") == [each for each in known if each[1] != "c1"]
    assert batching.query("SELECT serve(p) FROM (VALUES (NULL), ('/0')) AS v(p)") == [(None,), (known[0][1],)]
    with pytest.raises(psycopg.errors.DatatypeMismatch, match=r"'c1' is no value of type public\.served"):
        batching.query(sql)
    batching.query("SELECT ml_udf.drop_function('serve')")
    batching.query("DROP DOMAIN served; DROP TYPE dish")


def test_the_settings_of_a_function_hold_for_its_batches(batching: Engine, fake_server: OipServer) -> None:
    sql = "SELECT udf_food_name(p), count(*) FROM (VALUES ('missing'), ('/1')) AS v(p) GROUP BY 1"
    batching.query("""ALTER FUNCTION udf_food_name(text) SET ml_udf.on_error = 'null'""")
    batching.query("""ALTER FUNCTION udf_food_name(text) SET ml_udf.slo_ms = 70""")
    assert "MlUdfBatch" in plan(batching, sql)
    assert set(batching.query(sql)) == {(None, 1), (label_of("/1"), 1)}
    assert [parameters["ml_udf_slo_ms"] for parameters in fake_server.parameters] == [70]
    assert batching.value("SHOW ml_udf.on_error") in ("", "error")
    batching.query("SELECT ml_udf.create_function('udf_food_name')")  # as it was


def test_vectors_are_batched_and_cast(batching: Engine) -> None:
    sql = "SELECT n, embed(path) AS v, embed(path)::float8[] AS d, (embed(path))[1] FROM log ORDER BY n"
    with oip_server(ours=False) as foreign:
        foreign.functions["embed"] = "text"
        batching.query(f"ALTER SERVER ml_udf OPTIONS (SET url '{foreign.url}')")
        batching.query("SELECT ml_udf.create_function('embed', returns => 'float4[]')")
        assert plan(batching, sql).count("Batched:") == 1
        for n, *vectors, first in batching.query(sql):
            length = float(len(f"/{n % 700}"))
            assert (*vectors, first) == ([length, 0.5], [length, 0.5], length)
        assert len(foreign.rows) == 700
        batching.query("SELECT ml_udf.drop_function('embed')")


def test_a_function_of_vectors_returns_pgvectors_type_where_that_is(batching: Engine) -> None:
    if not batching.query("SELECT 1 FROM pg_available_extensions WHERE name = 'vector'"):
        pytest.skip("PGVECTOR NOT TESTED: it is not installed")
    sql = "SELECT n, embed(path)::real[], embed(path) <-> '[0,0.5]' FROM log ORDER BY n"
    with oip_server(ours=False) as foreign:
        foreign.functions["embed"] = "text"
        batching.query(f"ALTER SERVER ml_udf OPTIONS (SET url '{foreign.url}')")
        batching.query("CREATE SCHEMA vectors; CREATE EXTENSION vector SCHEMA vectors")
        batching.query("SET search_path = public, vectors; SELECT ml_udf.create_function('embed')")
        assert batching.value("SELECT pg_typeof(embed('/1'))::text") == "vector"
        assert batching.value("SELECT pg_typeof(embed_batch(ARRAY['/1']))::text") == "bytea[]"
        assert plan(batching, sql).count("Batched:") == 1
        for n, vector, distance in batching.query(sql):
            length = float(len(f"/{n % 700}"))
            assert (vector, distance) == ([length, 0.5], length)
        assert batching.query("SELECT embed(p) FROM (VALUES (NULL)) AS v(p)") == [(None,)]
        batching.query("SELECT ml_udf.drop_function('embed')")
        batching.query("DROP SCHEMA vectors CASCADE; RESET search_path")


def test_what_the_node_gathers_leaves_as_several_requests_at_once(
    batching: Engine, fake_server: OipServer
) -> None:
    batching.query("SET ml_udf.gather_rows = 400; SET ml_udf.max_in_flight = 4")
    batching.query("SELECT count(udf_food_name('/' || n)) FROM generate_series(1, 400) n")
    assert max(map(len, fake_server.requests)) <= 100
    fake_server.forget()
    batching.query("SET ml_udf.batch_rows = 30")
    batching.query("SELECT count(udf_food_name('/' || n)) FROM generate_series(1, 400) n")
    assert max(map(len, fake_server.requests)) == 30


def test_one_warning_counts_the_inputs_of_all_batches(batching: Engine) -> None:
    batching.query("SET ml_udf.on_error = 'null'; SET ml_udf.gather_rows = 50")
    batching.query("SELECT count(udf_food_name('missing' || n)) FROM generate_series(1, 300) n")
    (warning,) = batching.warnings
    assert warning.message.startswith("udf_food_name: 300 inputs could not be answered")


def test_functions_over_vectors_are_batched(batching: Engine) -> None:
    with oip_server(ours=False) as foreign:
        foreign.functions["total"] = "numbers"
        batching.query(f"ALTER SERVER ml_udf OPTIONS (SET url '{foreign.url}')")
        batching.query("SELECT ml_udf.create_function('total', input => 'float8[]', returns => 'float8')")
        sql = "SELECT sum(total(ARRAY[n, 1, 0.5])) FROM log"
        assert "MlUdfBatch" in plan(batching, sql)
        assert batching.value(sql) == 2000 * 2001 / 2 + 2000 * 1.5
        assert len(foreign.requests) <= 4


def test_creating_a_function_says_nothing_of_rows(batching: Engine) -> None:
    notices: list[str] = []
    batching.connection.add_notice_handler(lambda notice: notices.append(str(notice.message_primary)))
    batching.query("SELECT ml_udf.create_function('food')")
    assert not [notice for notice in notices if "row by row" in notice]
    assert batching.value("SELECT food('/a')") == label_of("/a")
