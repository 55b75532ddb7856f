"""A cancel, a timeout and a termination end a statement that waits for the server, soon."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import psycopg
import pytest

from ml_udf.cli.pg_sandbox import Sandbox
from tests.postgres.fixtures import Engine
from tests.postgres.oip_server import OipServer, label_of
from tests.waiting import once, wait_until

SOON_S = 1.0  # the goal is 0.2 s; this box may be busy
BOTH_FORMS = pytest.mark.parametrize(
    "sql", ["udf_food_name('/slow')", "udf_food_name_batch(ARRAY['/slow', '/x'])"]
)


@pytest.mark.alone
@BOTH_FORMS
def test_a_cancel_ends_the_statement(
    engine: Engine, fake_server: OipServer, record_property: Callable[[str, object], None], sql: str
) -> None:
    engine.query("SELECT udf_food_name('/warm')")
    fake_server.delay_s = 3.0
    with (
        once(lambda: fake_server.under_way, engine.connection.cancel) as acted_s,
        pytest.raises(psycopg.errors.QueryCanceled) as caught,
    ):
        engine.query(f"SELECT {sql}")
    took_s = time.monotonic() - acted_s[0]
    record_property("cancelled_within_ms", round(took_s * 1000))
    assert took_s < SOON_S
    assert "user request" in (caught.value.diag.message_primary or "")
    fake_server.delay_s = 0.0
    assert engine.value("SELECT udf_food_name('/a')") == label_of("/a")


@pytest.mark.alone
def test_a_cancel_ends_a_view_over_a_server_that_says_nothing(engine: Engine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        engine.query(f"CREATE SERVER silent FOREIGN DATA WRAPPER ml_udf OPTIONS (url '{url}')")
        with (
            once(lambda: bool(select.select([silent], [], [], 0)[0]), engine.connection.cancel) as acted_s,
            pytest.raises(psycopg.errors.QueryCanceled) as caught,
        ):
            engine.query("SELECT * FROM ml_udf.residency")
        assert time.monotonic() - acted_s[0] < SOON_S
        assert "user request" in (caught.value.diag.message_primary or "")
    engine.query("DROP SERVER silent")


@pytest.mark.alone
@BOTH_FORMS
def test_statement_timeout_ends_the_statement(
    engine: Engine, fake_server: OipServer, record_property: Callable[[str, object], None], sql: str
) -> None:
    fake_server.delay_s = 3.0
    engine.query("SET statement_timeout = '400ms'")
    began_s = time.monotonic()
    with pytest.raises(psycopg.errors.QueryCanceled):
        engine.query(f"SELECT {sql}")
    took_s = time.monotonic() - began_s
    record_property("late_by_ms", round(took_s * 1000 - 400))
    assert 0.3 < took_s < 0.4 + SOON_S


def test_statement_timeout_is_not_hidden_by_on_error_null(engine: Engine, fake_server: OipServer) -> None:
    fake_server.delay_s = 3.0
    engine.query("SET statement_timeout = '400ms'; SET ml_udf.on_error = 'null'")
    with pytest.raises(psycopg.errors.QueryCanceled):
        engine.query("SELECT udf_food_name('/slow')")


def test_the_rest_of_statement_timeout_travels_as_the_deadline(
    engine: Engine, fake_server: OipServer
) -> None:
    engine.query("SET statement_timeout = '5s'")
    engine.query("SELECT pg_sleep(0.5), udf_food_name('/a')")
    (sent,) = fake_server.parameters
    assert 2000 < sent["ml_udf_deadline_ms"] <= 4600


def test_each_statement_of_one_message_has_its_own_deadline(engine: Engine, fake_server: OipServer) -> None:
    engine.query("SET statement_timeout = '5s'")
    engine.query("SELECT pg_sleep(1); SELECT udf_food_name('/a')")
    (sent,) = fake_server.parameters
    assert 4000 < sent["ml_udf_deadline_ms"] <= 5000


def test_a_statement_timeout_that_is_set_within_the_statement_is_the_next_ones(
    engine: Engine, fake_server: OipServer
) -> None:
    engine.query("""DO $$ BEGIN
        PERFORM set_config('statement_timeout', '1ms', false);
        PERFORM pg_sleep(0.01), udf_food_name('/a');
        PERFORM set_config('statement_timeout', '0', false);
    END $$""")
    (sent,) = fake_server.parameters
    assert sent["ml_udf_deadline_ms"] > 5000


def test_what_a_cursor_asked_is_remembered_whatever_the_deadlines_of_its_fetches(
    engine: Engine, fake_server: OipServer
) -> None:
    engine.query("SET statement_timeout = '30s'")
    with engine.connection.transaction():
        engine.query("DECLARE c CURSOR FOR SELECT udf_food_name('/' || n % 3) FROM generate_series(1, 9) n")
        for _ in range(3):
            assert len(engine.query("FETCH 3 FROM c")) == 3
    assert sorted(fake_server.rows) == ["/0", "/1", "/2"]


def test_each_fetch_of_a_cursor_has_its_own_deadline(engine: Engine, fake_server: OipServer) -> None:
    engine.query("SET statement_timeout = '2s'")
    with engine.connection.transaction():
        engine.query("DECLARE c CURSOR FOR SELECT udf_food_name('/' || n) FROM generate_series(1, 9) n")
        for _ in range(3):
            engine.query("FETCH 1 FROM c")
            time.sleep(0.8)
    assert len(fake_server.rows) == 3
    assert all(sent["ml_udf_deadline_ms"] > 1000 for sent in fake_server.parameters)


def test_timeout_ms_gives_up_on_the_server_alone(engine: Engine, fake_server: OipServer) -> None:
    fake_server.delay_s = 2.0
    engine.query("SET ml_udf.timeout_ms = 300; SET ml_udf.on_error = 'null'")
    assert engine.value("SELECT udf_food_name('/slow')") is None
    (warning,) = engine.warnings
    assert "deadline_exceeded" in warning.message


@pytest.mark.alone
def test_a_termination_ends_the_backend_and_nothing_else(
    cluster: Sandbox, engine: Engine, fake_server: OipServer
) -> None:
    began = cluster.sql("SELECT pg_postmaster_start_time()")
    engine.query("SELECT udf_food_name('/warm')")
    fake_server.delay_s = 3.0
    kill = f"SELECT pg_terminate_backend({engine.connection.info.backend_pid})"
    with (
        once(lambda: fake_server.under_way, lambda: cluster.sql(kill)) as acted_s,
        pytest.raises(psycopg.errors.AdminShutdown),
    ):
        engine.query("SELECT udf_food_name('/slow')")
    assert time.monotonic() - acted_s[0] < SOON_S
    assert cluster.sql("SELECT pg_postmaster_start_time()") == began


def test_many_cancels_leave_a_sound_session(engine: Engine, fake_server: OipServer) -> None:
    fake_server.delay_s = 0.05
    for round_ in range(20):
        cancel = threading.Timer(0.01 + 0.007 * round_, engine.connection.cancel)
        cancel.start()
        with suppress(psycopg.errors.QueryCanceled):
            engine.query("SELECT udf_food_name('/' || n) FROM generate_series(1, 3) n")
        cancel.join()
        time.sleep(0.01)
        with suppress(psycopg.errors.QueryCanceled):  # a cancel that came late
            engine.query("SELECT 1")
    fake_server.delay_s = 0.0
    assert engine.value("SELECT udf_food_name('/a')") == label_of("/a")


def test_the_server_is_told_when_a_statement_is_cancelled(engine: Engine, fake_server: OipServer) -> None:
    fake_server.delay_s = 1.0
    stop = once(lambda: fake_server.under_way, engine.connection.cancel)
    with stop, pytest.raises(psycopg.errors.QueryCanceled):
        engine.query("SELECT udf_food_name('/slow')")
    wait_until(lambda: fake_server.abandoned)
    assert fake_server.abandoned == 1
