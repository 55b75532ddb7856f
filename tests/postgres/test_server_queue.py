"""A statement that is stopped is back at once, and its rows leave the inference server's queue."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
import pytest

from ml_udf.cli.pg_sandbox import Sandbox, sandbox
from ml_udf.cli.pg_server import PostgresServer
from tests.contract.oip_wire import metric
from tests.inference_server import ANEW, InferenceServer, inference_server
from tests.models import hashing_model, label_of
from tests.waiting import wait_until

FUNCTION = "udf_text"
ROWS = 2_000
MAX_BATCH = 50
TIMEOUT_MS, MOST_TIMEOUT_MS = 700, 12_000  # a busy machine may need longer until the rows wait
GOAL_S = 0.2
BUSY_S = 2.0  # one try may meet a machine that does other things, not every one
TRIES = 3
PATIENCE_S = 90.0
SCAN = f"SELECT count({FUNCTION}('text ' || n)) FROM generate_series(1, {ROWS}) AS n"


@dataclass(frozen=True, slots=True)
class Stopped:
    """Seconds from a stop until the client had its error, and until no row waited in the server."""

    back_s: float
    empty_s: float


@pytest.fixture(scope="module")
def inference(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InferenceServer]:
    folder = tmp_path_factory.mktemp("queue")
    with inference_server(folder / "home", flags=[ANEW, "--workers=1"]) as server:
        server.deploy(hashing_model(folder, "text_hash"), FUNCTION, max_batch=MAX_BATCH)
        yield server


@contextmanager
def worker_halted(server: InferenceServer) -> Iterator[None]:
    """The batch that runs takes as long as the block, which no learned latency foretells.

    A model known to be slow would not do: rows that cannot be answered in time are refused, and never wait.
    """
    (pid,) = server.worker_pids()
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.fixture(scope="module")
def scanned(postgres_server: PostgresServer, inference: InferenceServer) -> Iterator[Sandbox]:
    with sandbox(postgres_server, batching=None, local=False) as cluster:
        assert cluster.installed is not None
        if cluster.installed.module is None:
            pytest.skip(f"BATCHING NOT TESTED: {cluster.installed.notes}")
        cluster.database("queued", url=inference.url, functions=[FUNCTION])
        yield cluster


def waiting_rows(server: InferenceServer) -> float:
    return metric(server.port, "ml_udf_queue_rows", function=FUNCTION)


def stopped(cluster: Sandbox, server: InferenceServer, how: str, *, in_block: bool) -> Stopped:
    """Stop a scan while one of its batches runs and most of its rows wait behind it."""
    timeout_ms = TIMEOUT_MS
    while (found := stop(cluster, server, how, timeout_ms, in_block=in_block)) is None:
        timeout_ms *= 2
        assert timeout_ms < MOST_TIMEOUT_MS
    return found


def stop(
    cluster: Sandbox, server: InferenceServer, how: str, timeout_ms: int, *, in_block: bool
) -> Stopped | None:
    """None if the timeout came before the rows waited."""
    with psycopg.connect(cluster.dsn("queued"), autocommit=True) as connection:
        connection.execute(f"SELECT {FUNCTION}('warm')".encode())
        connection.execute("SET ml_udf.gather_rows = 1000")
        if how == "statement_timeout":
            connection.execute(f"SET statement_timeout = {timeout_ms}".encode())
        if in_block:
            connection.execute("BEGIN")
        with worker_halted(server), ThreadPoolExecutor(1) as pool:
            began_s = time.monotonic()
            scan = pool.submit(failed, connection)
            wait_until(lambda: waiting_rows(server) >= ROWS / 2 or scan.done())
            if how == "statement_timeout":
                stop_s = began_s + timeout_ms / 1e3
                if time.monotonic() > stop_s:
                    return None
            else:
                cluster.sql(f"SELECT {how}({connection.info.backend_pid})")
                stop_s = time.monotonic()
            wait_until(lambda: waiting_rows(server) == 0)
            empty_s = time.monotonic()
            code, back_s = scan.result(PATIENCE_S)
    assert code == ("57P01" if how == "pg_terminate_backend" else "57014")
    return Stopped(max(0.0, back_s - stop_s), max(0.0, empty_s - stop_s))


def failed(connection: psycopg.Connection) -> tuple[str | None, float]:
    """Run the scan, which fails: the error's code, and when it came."""
    with pytest.raises(psycopg.Error) as caught:
        connection.execute(SCAN.encode())
    return caught.value.sqlstate, time.monotonic()


@pytest.mark.parametrize("in_block", [False, True], ids=["alone", "in a transaction block"])
@pytest.mark.parametrize("how", ["pg_cancel_backend", "statement_timeout", "pg_terminate_backend"])
def test_a_stopped_statement_is_back_and_its_rows_are_gone_within_200_ms(
    scanned: Sandbox,
    inference: InferenceServer,
    record_property: Callable[[str, object], None],
    how: str,
    in_block: bool,
) -> None:
    tries = [stopped(scanned, inference, how, in_block=in_block) for _ in range(TRIES)]
    record_property("back_ms", [round(one.back_s * 1e3) for one in tries])
    record_property("empty_ms", [round(one.empty_s * 1e3) for one in tries])
    assert min(one.back_s for one in tries) < GOAL_S
    assert min(one.empty_s for one in tries) < GOAL_S
    assert max(max(one.back_s, one.empty_s) for one in tries) < BUSY_S


def test_a_stop_takes_the_rows_of_its_own_statement_alone(
    scanned: Sandbox, inference: InferenceServer
) -> None:
    def ask() -> object:
        with psycopg.connect(scanned.dsn("queued"), autocommit=True) as other:
            return other.execute(f"SELECT {FUNCTION}('mine')".encode()).fetchone()

    with psycopg.connect(scanned.dsn("queued"), autocommit=True) as connection, ThreadPoolExecutor(2) as pool:
        connection.execute("SET ml_udf.gather_rows = 1000")
        with worker_halted(inference):
            scan = pool.submit(failed, connection)
            wait_until(lambda: waiting_rows(inference) >= ROWS / 2)
            before = waiting_rows(inference)
            asked = pool.submit(ask)
            wait_until(lambda: waiting_rows(inference) > before)
            connection.cancel()
            wait_until(lambda: waiting_rows(inference) == 1)
            assert scan.result(PATIENCE_S)[0] == "57014"
        assert asked.result(PATIENCE_S) == (label_of("mine"),)
