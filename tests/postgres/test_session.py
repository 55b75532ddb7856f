"""What a function does inside the server's process: parallel plans, transactions, other callers, views."""

from __future__ import annotations

import psycopg
import pytest

from ml_udf.cli.pg_sandbox import Sandbox
from tests.postgres.fixtures import Engine
from tests.postgres.oip_server import OipServer, label_of

FORCE_PARALLEL = """
    SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0;
    SET max_parallel_workers_per_gather = 2"""


@pytest.fixture
def parallel(engine: Engine) -> Engine:
    force = (
        "debug_parallel_query" if engine.connection.info.server_version >= 160000 else "force_parallel_mode"
    )
    engine.query(f"{FORCE_PARALLEL}; SET {force} = on")
    engine.query("CREATE TABLE big AS SELECT n AS id, '/' || n % 5 AS path FROM generate_series(1, 20000) n")
    engine.query("ANALYZE big")
    return engine


def test_a_forced_parallel_plan_answers_right(parallel: Engine) -> None:
    plain = "\n".join(row for (row,) in parallel.query("EXPLAIN SELECT count(*) FROM big WHERE id % 2 = 0"))
    assert "Gather" in plain  # such plans are made here
    rows = parallel.query("SELECT path, udf_food_name(path), count(*) FROM big GROUP BY 1, 2 ORDER BY 1")
    assert rows == [(f"/{n}", label_of(f"/{n}"), 4000) for n in range(5)]
    assert parallel.value("SELECT count(*) FROM big WHERE udf_food_name(path) IS NOT NULL") == 20000


def test_a_caller_that_lies_about_parallel_safety_is_told(cluster: Sandbox, parallel: Engine) -> None:
    if parallel.connection.info.server_version >= 170000:
        pytest.skip("the leader may run queries from 17 on")
    began = cluster.sql("SELECT pg_postmaster_start_time()")
    parallel.query("ALTER FUNCTION udf_food_name(text) PARALLEL SAFE")
    with pytest.raises(psycopg.errors.InvalidTransactionState, match="while a parallel plan is active"):
        parallel.query("SELECT count(*) FROM big WHERE udf_food_name(path) IS NOT NULL")
    parallel.query("ALTER FUNCTION udf_food_name(text) PARALLEL UNSAFE")
    assert parallel.value("SELECT udf_food_name('/a')") == label_of("/a")
    assert cluster.sql("SELECT pg_postmaster_start_time()") == began


def test_a_materialised_view_is_made_and_refreshed_by_sessions_that_have_called_nothing(
    engine: Engine, fake_server: OipServer
) -> None:
    engine.query("CREATE TABLE meals AS SELECT '/' || n % 3 AS path FROM generate_series(1, 30) n")
    for statement in (
        "CREATE MATERIALIZED VIEW kept AS SELECT path, udf_food_name(path) AS food FROM meals",
        "REFRESH MATERIALIZED VIEW kept",
    ):
        new = Engine(engine.dsn)
        new.query(statement)
        new.close()
    wanted = [(f"/{n}", label_of(f"/{n}"), 10) for n in range(3)]
    assert engine.query("SELECT path, food, count(*) FROM kept GROUP BY 1, 2 ORDER BY 1") == wanted
    assert len(fake_server.rows) == 6
    new = Engine(engine.dsn)
    new.query("REFRESH MATERIALIZED VIEW kept")
    assert new.query("SELECT * FROM ml_udf.stat_functions") == []
    assert new.value("SELECT udf_food_name('/a')") == label_of("/a")
    assert new.query("SELECT statements, rows_sent FROM ml_udf.stat_functions") == [(1, 1)]
    new.query("REFRESH MATERIALIZED VIEW kept")
    assert new.query("SELECT statements, rows_sent FROM ml_udf.stat_functions") == [(2, 4)]
    new.close()


def test_plpgsql_triggers_and_writes_may_call_it(engine: Engine, fake_server: OipServer) -> None:
    engine.query("""
        CREATE TABLE meals (path text, food text);
        CREATE FUNCTION name_it() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN NEW.food := udf_food_name(NEW.path); RETURN NEW; END $$;
        CREATE TRIGGER t BEFORE INSERT ON meals FOR EACH ROW EXECUTE FUNCTION name_it();
        INSERT INTO meals (path) SELECT '/' || n % 3 FROM generate_series(1, 30) n""")
    wanted = [(f"/{n}", label_of(f"/{n}"), 10) for n in range(3)]
    assert engine.query("SELECT path, food, count(*) FROM meals GROUP BY 1, 2 ORDER BY 1") == wanted
    assert len(fake_server.rows) == 3
    engine.query("UPDATE meals SET food = udf_food_name('/' || path) RETURNING food")
    assert len(fake_server.rows) == 6


def test_row_security_keeps_hidden_rows_from_being_sent(engine: Engine, fake_server: OipServer) -> None:
    engine.query("""
        CREATE TABLE diary (who text, path text);
        INSERT INTO diary VALUES ('looker', '/mine'), ('other', '/secret');
        CREATE ROLE looker LOGIN IN ROLE ml_udf_reader;
        GRANT SELECT ON diary TO looker;
        ALTER TABLE diary ENABLE ROW LEVEL SECURITY;
        CREATE POLICY own ON diary USING (who = current_user);
        SET ROLE looker""")
    try:
        assert engine.query("SELECT path FROM diary WHERE udf_food_name(path) IS NOT NULL") == [("/mine",)]
        assert fake_server.rows == ["/mine"]
    finally:
        engine.query("RESET ROLE; DROP TABLE diary; DROP ROLE looker")


def test_prepared_statements_generic_and_custom(engine: Engine) -> None:
    for mode in ("force_generic_plan", "force_custom_plan"):
        engine.query(f"SET plan_cache_mode = {mode}")
        engine.query("PREPARE p (text) AS SELECT udf_food_name($1)")
        assert [engine.value(f"EXECUTE p('/{n}')") for n in range(7)] == [label_of(f"/{n}") for n in range(7)]
        engine.query("DEALLOCATE p")


def test_a_cursor_that_outlives_its_transaction(engine: Engine) -> None:
    with engine.connection.transaction():
        engine.query(
            "DECLARE c CURSOR WITH HOLD FOR SELECT udf_food_name('/' || n) FROM generate_series(1, 4) n"
        )
        engine.query("FETCH 1 FROM c")
    assert engine.query("FETCH ALL FROM c") == [(label_of(f"/{n}"),) for n in (2, 3, 4)]
    engine.query("CLOSE c")


def test_a_procedure_may_commit_between_its_calls(engine: Engine, fake_server: OipServer) -> None:
    engine.query("CREATE TABLE done (food text)")
    engine.query("""
        CREATE PROCEDURE work() LANGUAGE plpgsql AS $$ BEGIN
            FOR n IN 1..4 LOOP INSERT INTO done VALUES (udf_food_name('/' || n)); COMMIT; END LOOP;
        END $$""")
    engine.query("CALL work()")
    assert engine.query("SELECT food FROM done") == [(label_of(f"/{n}"),) for n in range(1, 5)]


def test_the_sessions_memory_does_not_grow_with_its_statements(engine: Engine) -> None:
    def resident_kb() -> int:
        pid = engine.connection.info.backend_pid
        with open(f"/proc/{pid}/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))

    def ask() -> None:
        engine.query("SELECT udf_food_name_batch(array_agg('/' || n)) FROM generate_series(1, 2000) n")

    for _ in range(10):
        ask()
    before_kb = resident_kb()
    for _ in range(60):
        ask()
    assert resident_kb() - before_kb < 8_000


def test_the_view_of_functions_joins_server_and_database(engine: Engine, fake_server: OipServer) -> None:
    rows = engine.query(
        "SELECT server, name, version, models, sql_function::text, returns FROM ml_udf.functions"
    )
    assert sorted(rows) == [
        ("ml_udf", "food", "1", ["m"], None, None),
        ("ml_udf", "udf_food_name", "1", ["m"], "udf_food_name(text)", "text"),
    ]
    assert engine.query("SELECT name, version, accuracy FROM ml_udf.models") == [("m", "1", 0.9)]


def test_the_views_outlive_a_dead_server(engine: Engine, fake_server: OipServer) -> None:
    fake_server.stop()
    rows = engine.query("SELECT name, version, sql_function::text FROM ml_udf.functions")
    assert rows == [("udf_food_name", None, "udf_food_name(text)")]
    assert "does not list its functions" in engine.warnings[0].message


def test_the_statistics_count_what_was_sent_and_what_was_not(engine: Engine) -> None:
    engine.query("SELECT udf_food_name_batch(ARRAY['/a', '/a', NULL, '/b'])")
    engine.query("SELECT udf_food_name('/a')")
    engine.query("SET ml_udf.on_error = 'null'; SELECT udf_food_name('missing')")
    assert engine.value("SELECT 0 < median_ms AND median_ms <= p99_ms FROM ml_udf.stat_functions")
    columns = "statements, rows, null_rows, rows_sent, rows_reused, batches, avg_batch::float, failed_rows"
    assert engine.query(f"SELECT {columns} FROM ml_udf.stat_functions") == [(3, 6, 1, 4, 1, 3, 1.3, 1)]


def test_sessions_work_side_by_side(cluster: Sandbox, engine: Engine, fake_server: OipServer) -> None:
    others = [Engine(engine.dsn) for _ in range(4)]
    for round_ in range(3):
        for other in others:
            assert other.value(f"SELECT udf_food_name('/{round_}')") == label_of(f"/{round_}")
    for other in others:
        other.close()


def test_a_closed_connection_leaves_the_server_running(cluster: Sandbox, engine: Engine) -> None:
    began = cluster.sql("SELECT pg_postmaster_start_time()")
    for _ in range(3):
        other = Engine(engine.dsn)
        other.query("SELECT udf_food_name_batch(array_agg('/' || n)) FROM generate_series(1, 999) n")
        other.close()
    assert cluster.sql("SELECT pg_postmaster_start_time()") == began


@pytest.mark.security
def test_statistics_are_those_of_the_current_role_alone(engine: Engine) -> None:
    listed = "SELECT name, statements FROM ml_udf.stat_functions"
    engine.query("CREATE ROLE counted IN ROLE ml_udf_reader")
    try:
        engine.query("SELECT udf_food_name('/a')")
        assert engine.query(listed) == [("udf_food_name", 1)]
        engine.query("SET ROLE counted")
        assert engine.query(listed) == []
        engine.query("SELECT udf_food_name('/a')")
        engine.query("SELECT udf_food_name('/b')")
        assert engine.query(listed) == [("udf_food_name", 2)]
        engine.query("RESET ROLE")
        assert engine.query(listed) == [("udf_food_name", 1)]
    finally:
        engine.query("RESET ROLE; DROP OWNED BY counted; DROP ROLE counted")


@pytest.mark.security
def test_statistics_go_with_discard_all_and_stay_through_a_rollback(engine: Engine) -> None:
    listed = "SELECT name, statements FROM ml_udf.stat_functions"
    for _ in range(2):  # it counts again afterwards
        engine.query("BEGIN")
        engine.query("SELECT udf_food_name('/a')")
        engine.query("ROLLBACK")
        engine.query("SELECT udf_food_name('/a')")
        assert engine.query(listed) == [("udf_food_name", 2)]
        engine.query("DISCARD ALL")
        assert engine.query(listed) == []


def test_bytes_of_a_query_are_evaluated_as_they_are_whatever_bytea_output_says(
    engine: Engine, fake_server: OipServer
) -> None:
    fake_server.functions["eye"] = "image"
    photos = [b"", b"\x00\xff", b"xx41", b"\\x41"]
    engine.query("CREATE TABLE photos (photo bytea, label text)")
    for photo in photos:
        engine.query("INSERT INTO photos VALUES (%s, %s)", photo, label_of(photo))
    query = "SELECT photo, label FROM photos UNION ALL SELECT NULL, 'none'"
    for shown in ("hex", "escape"):
        engine.query(f"SET bytea_output = '{shown}'")
        found = engine.query(f"SELECT * FROM ml_udf.evaluate('eye', $${query}$$, 'label', 'photo')")
        assert found[0][:2] == ("accuracy", 1.0)
        assert found[0][3] == len(photos)
