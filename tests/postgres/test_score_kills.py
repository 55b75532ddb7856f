"""Whatever is killed, and whenever, `ml_udf.score_table` called again ends with every row scored once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from ml_udf.cli.pg_sandbox import Sandbox, sandbox
from ml_udf.cli.pg_server import PostgresServer
from tests.inference_server import ANEW, InferenceServer, inference_server
from tests.models import hashing_model
from tests.models import label_of as model_label_of
from tests.postgres.fixtures import Engine
from tests.postgres.oip_server import OipServer
from tests.postgres.scored import CALL, assert_each_row_was_scored_once, call, make_table
from tests.waiting import wait_until

KILLS = 12
ROWS = 6000
SMALL = "batch_rows => 200, patience_s => 30"
SOON_S = 60


@pytest.fixture
def mortal(postgres_server: PostgresServer, fake_server: OipServer) -> Iterator[tuple[Sandbox, str]]:
    """A cluster of the test's own: PostgreSQL restarts all of it when one backend is killed."""
    with sandbox(postgres_server, settings={"synchronous_commit": "on"}) as cluster:
        yield cluster, cluster.database("kills", url=fake_server.url, functions=["udf_food_name"])


def connected(dsn: str) -> Engine:
    """A connection, waited for while the cluster recovers."""
    end_s = time.monotonic() + SOON_S
    while True:
        try:
            return Engine(dsn)
        except psycopg.OperationalError:
            if time.monotonic() > end_s:
                raise
            time.sleep(0.05)


def finish(dsn: str) -> None:
    """Call it until nothing is due, past a run that an orphaned backend may still carry out, and past the
    restart after the last kill, which takes a connection along that was made just before.
    """
    end_s = time.monotonic() + SOON_S
    while time.monotonic() < end_s:
        engine = connected(dsn)
        with suppress(psycopg.OperationalError):  # also that another run holds its lock
            call(engine, SMALL)
            engine.close()
            return
        engine.close()
        time.sleep(0.1)
    raise AssertionError("another run never ended")


def test_killed_backends_lose_no_row_and_score_none_twice(
    mortal: tuple[Sandbox, str], fake_server: OipServer
) -> None:
    _, dsn = mortal
    engine = connected(dsn)
    make_table(engine, ROWS)
    fake_server.delay_s = 0.05
    dice = random.Random(1)
    killed = 0
    for _ in range(KILLS):
        pid = engine.connection.info.backend_pid
        killer = threading.Timer(dice.uniform(0.05, 0.6), os.kill, (pid, signal.SIGKILL))
        killer.start()
        with suppress(psycopg.Error):
            call(engine, SMALL)
        killer.cancel()
        killer.join()
        killed += engine.connection.broken
        engine.close()
        engine = connected(dsn)
    engine.close()
    assert killed >= KILLS // 3, "some kills were to come before the end"
    fake_server.delay_s = 0.0
    finish(dsn)
    engine = connected(dsn)
    assert_each_row_was_scored_once(engine, ROWS)
    engine.close()


def test_killed_clients_lose_no_row_and_score_none_twice(
    cluster: Sandbox, engine: Engine, fake_server: OipServer
) -> None:
    make_table(engine, ROWS)
    fake_server.delay_s = 0.05
    dice = random.Random(2)
    for _ in range(KILLS):
        client = subprocess.Popen(
            cluster.program("psql", "-Xq", "-d", engine.dsn, "-c", f"{CALL}, {SMALL})"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(dice.uniform(0.05, 0.3))
        client.kill()
        client.wait()
    fake_server.delay_s = 0.0
    finish(engine.dsn)
    assert_each_row_was_scored_once(engine, ROWS)


def test_cancels_keep_what_was_stored_and_leave_a_clean_session(
    engine: Engine, fake_server: OipServer
) -> None:
    make_table(engine, ROWS)
    engine.query("SET application_name = 'mine'")
    fake_server.delay_s = 0.1
    dice = random.Random(3)
    cancelled = 0
    for _ in range(KILLS):
        timer = threading.Timer(dice.uniform(0.05, 0.5), engine.connection.cancel)
        timer.start()
        try:
            call(engine, SMALL)
        except psycopg.errors.QueryCanceled:
            cancelled += 1
        timer.join()
        with suppress(psycopg.errors.QueryCanceled):  # a cancel that came late
            engine.query("SELECT 1")
        assert engine.value("SHOW application_name") == "mine"
        assert engine.query("SELECT 1 FROM pg_locks WHERE locktype = 'advisory'") == []
    assert cancelled >= KILLS // 3
    assert engine.value("SELECT count(*) FROM audit") > 0
    fake_server.delay_s = 0.0
    call(engine, SMALL)
    assert_each_row_was_scored_once(engine, ROWS)


def test_statement_timeout_ends_a_call_that_the_next_one_goes_on_with(
    engine: Engine, fake_server: OipServer
) -> None:
    make_table(engine, 2000)
    fake_server.delay_s = 0.1
    engine.query("SET statement_timeout = '1s'")
    for _ in range(60):
        with suppress(psycopg.errors.QueryCanceled):
            call(engine, "batch_rows => 100")
            break
    assert_each_row_was_scored_once(engine, 2000)


def test_a_server_that_is_away_for_a_while_is_waited_for(engine: Engine, fake_server: OipServer) -> None:
    make_table(engine, 3000)
    fake_server.delay_s = 0.05
    runner = threading.Thread(target=call, args=(Engine(engine.dsn), SMALL))
    runner.start()
    wait_until(lambda: len(fake_server.requests) >= 3, SOON_S)
    fake_server.away = True
    time.sleep(1.5)
    fake_server.away = False
    runner.join()
    assert_each_row_was_scored_once(engine, 3000)


def test_a_server_that_stays_away_ends_the_call_after_the_patience(
    engine: Engine, fake_server: OipServer
) -> None:
    make_table(engine, 500)
    call(engine, "row_limit => 100, batch_rows => 50")
    fake_server.stop()
    began_s = time.monotonic()
    with pytest.raises(psycopg.Error) as caught:
        call(engine, "patience_s => 1, on_error => 'null'")
    assert (caught.value.sqlstate or "").startswith("08")
    assert time.monotonic() - began_s < 30
    assert (
        engine.value("SELECT count(*) FROM foodlog WHERE food IS NOT NULL OR food_error IS NOT NULL") == 100
    )


@pytest.fixture
def real_server(tmp_path: Path) -> Iterator[InferenceServer]:
    with inference_server(tmp_path / "home", flags=[ANEW]) as running:
        running.deploy(hashing_model(tmp_path / "made", "slow_hash", row_delay_ms=1), "udf_slow")
        yield running


def test_killed_workers_and_servers_cost_time_alone(engine: Engine, real_server: InferenceServer) -> None:
    make_table(engine, 4000)
    engine.query(f"ALTER SERVER ml_udf OPTIONS (SET url '{real_server.url}')")
    engine.query("SELECT ml_udf.create_function('udf_slow')")
    other = Engine(engine.dsn)
    failures: list[Exception] = []
    sql = CALL.replace("udf_food_name", "udf_slow")

    def run() -> None:
        try:
            call(other, "batch_rows => 250, patience_s => 60", sql)
        except Exception as error:
            failures.append(error)

    runner = threading.Thread(target=run)
    runner.start()
    dice = random.Random(4)
    killed = 0
    for round_ in range(KILLS):
        time.sleep(dice.uniform(0.1, 0.5))
        if not runner.is_alive():
            break
        if round_ == KILLS // 2:
            os.kill(real_server.pid, signal.SIGKILL)
            real_server.stop()
            real_server.start()
            killed += 1
        else:
            killed += len(real_server.kill_workers())
    runner.join()
    other.close()
    assert failures == []
    assert killed >= 3
    found = engine.query("SELECT image_path, food FROM foodlog")
    assert all(food == model_label_of(path) for path, food in found)
    assert engine.query("SELECT id, count(*) FROM audit GROUP BY id HAVING count(*) <> 1") == []
    assert engine.value("SELECT count(*) FROM audit") == 4000
