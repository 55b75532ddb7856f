"""While the server computes one batch the node gathers and sends the next; what nobody reads is dropped."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from ml_udf.cli.pg_sandbox import Sandbox
from tests.postgres.fixtures import Engine
from tests.postgres.oip_server import OipServer, label_of
from tests.waiting import once, wait_until

ROWS = 1_000
BATCH = 100


@pytest.fixture
def engine(batching_cluster: Sandbox, fake_server: OipServer) -> Iterator[Engine]:
    if not batching_cluster.sql("SELECT 1 FROM pg_database WHERE datname = 'overlap'"):
        batching_cluster.database("overlap", url=fake_server.url, functions=["udf_food_name", "food"])
    engine = Engine(batching_cluster.dsn("overlap"))
    engine.query(f"ALTER SERVER ml_udf OPTIONS (SET url '{fake_server.url}')")
    engine.query(f"CREATE TEMP TABLE log AS SELECT n, '/' || n AS path FROM generate_series(1, {ROWS}) AS n")
    engine.query(f"SET ml_udf.gather_rows = {BATCH}; SET ml_udf.max_in_flight = 1")
    engine.query("SELECT udf_food_name('/warm'), food('/warm')")
    fake_server.forget()
    yield engine
    engine.close()


def test_the_next_batch_is_at_the_server_before_the_first_is_answered(
    engine: Engine, fake_server: OipServer
) -> None:
    fake_server.delay_s = 0.05
    assert engine.value("SELECT count(udf_food_name(path)) FROM log") == ROWS
    assert len(fake_server.requests) == ROWS // BATCH
    assert fake_server.most_at_once == 2


def test_without_overlap_one_batch_follows_the_other(engine: Engine, fake_server: OipServer) -> None:
    fake_server.delay_s = 0.02
    engine.query("SET ml_udf.overlap = off")
    assert engine.value("SELECT count(udf_food_name(path)) FROM log") == ROWS
    assert fake_server.most_at_once == 1


@pytest.mark.parametrize(
    "query",
    [
        "SELECT n, udf_food_name(path) FROM log",
        "SELECT n, udf_food_name(path) FROM log ORDER BY udf_food_name(path), n",
        "SELECT n, udf_food_name(path) FROM log WHERE food(path) <> 'c3'",
        "SELECT n, CASE WHEN n % 3 > 0 THEN udf_food_name(path) END FROM log",
        "SELECT n, udf_food_name(nullif(path, '/7')) FROM log",
        "SELECT n, udf_food_name('/' || n % 10), food(path) FROM log",
        "SELECT n, udf_food_name(food(path)) FROM log",
        "SELECT l.n, r.n FROM log AS l JOIN log AS r ON udf_food_name(l.path) = food(r.path) AND r.n < 9",
        "SELECT g, (SELECT count(udf_food_name(path)) FROM log WHERE n > 200 * g)"
        " FROM generate_series(1, 4) AS g",
    ],
)
def test_the_rows_are_those_without_overlap(engine: Engine, query: str) -> None:
    overlapped = engine.query(query)
    engine.query("SET ml_udf.overlap = off")
    assert sorted(overlapped, key=repr) == sorted(engine.query(query), key=repr)


def test_two_functions_of_a_row_are_computed_at_the_same_time(engine: Engine, fake_server: OipServer) -> None:
    fake_server.delay_s = 0.05
    engine.query("SELECT udf_food_name(path), food('x' || path) FROM log OFFSET 2000")
    assert fake_server.most_at_once >= 3


def test_a_limit_sends_its_rows_and_no_batch_ahead(engine: Engine, fake_server: OipServer) -> None:
    engine.query("SELECT udf_food_name(path) FROM log LIMIT 3")
    assert len(fake_server.rows) == 3
    fake_server.forget()
    engine.query("SELECT udf_food_name(path) FROM log LIMIT 250")
    assert len(fake_server.rows) == 250


def test_a_reader_that_may_stop_gets_nothing_ahead_before_it_has_read_much(
    engine: Engine, fake_server: OipServer
) -> None:
    engine.query("SELECT n FROM log WHERE udf_food_name(path) > '' LIMIT 70")
    assert len(fake_server.rows) == 16 + 64
    fake_server.forget()
    engine.query("SELECT n FROM log WHERE udf_food_name(path) > '' LIMIT 120")
    # The query's end takes the batch ahead back; the server may not have read it by then.
    assert len(fake_server.rows) in (16 + 64 + BATCH, 16 + 64 + 2 * BATCH)


def test_a_cursor_is_not_run_ahead_of(engine: Engine, fake_server: OipServer) -> None:
    with engine.connection.transaction():
        engine.query("DECLARE c CURSOR FOR SELECT udf_food_name(path) FROM log")
        engine.query("FETCH 200 FROM c")
        assert len(fake_server.rows) == 16 + 64 + 2 * BATCH
        assert fake_server.most_at_once == 1


def test_rows_in_front_of_a_fault_are_served(engine: Engine, fake_server: OipServer) -> None:
    engine.query("UPDATE log SET path = 'missing/' || n WHERE n IN (750, 790)")
    with engine.connection.cursor(name="c", withhold=True) as cursor:
        cursor.execute("SELECT n, udf_food_name(path) FROM (SELECT * FROM log ORDER BY n) AS s LIMIT 749")
        assert len(cursor.fetchall()) == 749
    with pytest.raises(psycopg.errors.UndefinedFile, match="missing/750"):
        engine.query("SELECT n, udf_food_name(path) FROM (SELECT * FROM log ORDER BY n) AS s")


def test_the_fault_tells_its_input(engine: Engine) -> None:
    engine.query("UPDATE log SET path = 'missing/' || n WHERE n = 555")
    with pytest.raises(psycopg.errors.UndefinedFile) as caught:
        engine.query("SELECT count(udf_food_name(path)) FROM log")
    assert "udf_food_name('missing/555')" in (caught.value.diag.message_detail or "")


def test_faults_become_null_and_are_counted_once(engine: Engine) -> None:
    engine.query("UPDATE log SET path = 'missing/' || n WHERE n % 100 = 7; SET ml_udf.on_error = 'null'")
    assert engine.value("SELECT count(udf_food_name(path)) FROM log") == ROWS - 10
    (warning,) = engine.warnings
    assert "10 inputs could not be answered" in warning.message


def test_what_was_begun_is_counted_with_the_rest(engine: Engine) -> None:
    before = engine.query("SELECT rows, rows_sent, batches FROM ml_udf.stat_functions ORDER BY name")[-1]
    engine.query("SELECT count(udf_food_name(path)) FROM log")
    after = engine.query("SELECT rows, rows_sent, batches FROM ml_udf.stat_functions ORDER BY name")[-1]
    assert [b - a for a, b in zip(before, after, strict=True)] == [ROWS, ROWS, ROWS // BATCH]


@pytest.mark.parametrize("in_block", [False, True], ids=["alone", "in a transaction block"])
@pytest.mark.parametrize("how", ["cancel", "timeout"])
def test_a_stop_drops_both_batches(engine: Engine, fake_server: OipServer, how: str, in_block: bool) -> None:
    """At once, though in a block the failed statement's memory lives until the client's ROLLBACK."""
    fake_server.delay_s = 1.0
    if in_block:
        engine.query("BEGIN")
    if how == "timeout":
        engine.query("SET statement_timeout = '400ms'")
    act = engine.connection.cancel if how == "cancel" else lambda: None
    with once(lambda: fake_server.under_way == 2, act), pytest.raises(psycopg.errors.QueryCanceled):
        engine.query("SELECT count(udf_food_name(path)) FROM log")
    wait_until(lambda: fake_server.abandoned == 2)
    if in_block:
        engine.query("ROLLBACK")


def test_a_rescan_drops_what_the_last_scan_did_not_read(engine: Engine, fake_server: OipServer) -> None:
    engine.query("UPDATE log SET path = '/late' || n WHERE n > 200")
    query = (
        "SELECT g, (SELECT count(*) FROM (SELECT 1 FROM log WHERE udf_food_name(path || g) > '' LIMIT 120)"
        " AS s) FROM generate_series(1, 2) AS g"
    )
    assert engine.query(query) == [(1, 120), (2, 120)]
    wait_until(lambda: fake_server.abandoned >= 1)


def test_a_closed_reader_drops_what_was_begun(engine: Engine, fake_server: OipServer) -> None:
    engine.query("UPDATE log SET path = '/late' || n WHERE n > 200")
    engine.query("SELECT n FROM log WHERE udf_food_name(path) > '' LIMIT 120")
    wait_until(lambda: fake_server.abandoned == 1)


def test_a_caught_error_leaves_nothing_behind(engine: Engine, fake_server: OipServer) -> None:
    engine.query("UPDATE log SET path = 'missing/' || n WHERE n = 150")
    engine.query(
        "DO $$ BEGIN FOR i IN 1 .. 5 LOOP BEGIN PERFORM count(udf_food_name(path)) FROM log;"
        " EXCEPTION WHEN undefined_file THEN NULL; END; END LOOP; END $$"
    )
    assert engine.value("SELECT udf_food_name('/a')") == label_of("/a")
    wait_until(lambda: fake_server.under_way == 0)


def test_what_a_caught_error_leaves_is_dropped_before_the_statement_ends(
    engine: Engine, fake_server: OipServer
) -> None:
    """The rows that come behind a batch that was begun are what fails, again and again."""
    fake_server.delay_s = 0.3
    engine.query(
        "DO $$ BEGIN FOR i IN 1 .. 3 LOOP BEGIN"
        " PERFORM count(udf_food_name(path || i)) FROM log WHERE 1 / (n - 150) < 9;"
        " EXCEPTION WHEN division_by_zero THEN NULL; END; END LOOP; PERFORM pg_sleep(1); END $$"
    )
    assert len(fake_server.requests) == 3
    assert fake_server.abandoned == 3


def test_a_twin_that_calls_another_gets_its_answers(engine: Engine) -> None:
    """Only the function that the node calls is asked to begin, not those that it calls in turn."""
    engine.query(
        "CREATE FUNCTION pg_temp.outer_name(text) RETURNS text STABLE LANGUAGE plpgsql AS"
        " 'BEGIN RETURN udf_food_name($1); END';"
        "CREATE FUNCTION pg_temp.outer_name_batch(text[]) RETURNS text[] STABLE LANGUAGE plpgsql"
        " AS 'BEGIN RETURN udf_food_name_batch($1); END'"
    )
    rows = engine.query("SELECT path, pg_temp.outer_name(path) FROM log")
    assert rows == [(path, label_of(path)) for path, _ in rows]


def test_memory_of_both_batches_stays_within_work_mem(engine: Engine, fake_server: OipServer) -> None:
    engine.query("SET work_mem = '64kB'; SET ml_udf.gather_rows = 4096")
    engine.query("SELECT count(udf_food_name(path || repeat('x', 1000))) FROM log")
    assert max(map(len, fake_server.requests)) <= 32
