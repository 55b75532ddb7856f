"""Bulk jobs on every engine: listed, paused, resumed, capped, cancelled, while their statement runs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest

from ml_udf.bulk import BulkCalls
from ml_udf.config import Options
from ml_udf.duckdb import score_table
from ml_udf.errors import MlUdfError
from tests.engines import DuckDb, Engine, SqlError, make_engine
from tests.inference_server import InferenceServer
from tests.waiting import wait_until, wait_until_steady

ROWS = 800


@pytest.fixture
def engines(
    engine_name: str, server: InferenceServer, request: pytest.FixtureRequest
) -> Iterator[tuple[Engine, Engine]]:
    """Two sessions: one asks, the other looks."""
    if engine_name == "postgres-by-row":
        pytest.skip("one row a request, as by the plan node's; the job is the same")
    functions = ["udf_text", "udf_slow"]
    with contextlib.ExitStack() as stack:
        looks = make_engine(engine_name, server.url, request, functions)
        stack.callback(looks.close)
        asks = make_engine(engine_name, server.url, request, functions)
        stack.callback(asks.close)
        asks.set("batch_rows", "1")
        asks.set("max_in_flight", "1")
        asks.set("answer_cache", "off")
        yield asks, looks


@pytest.fixture
def calls(server: InferenceServer) -> Iterator[BulkCalls]:
    with server.client() as client:
        yield BulkCalls(client)


def scan() -> str:
    """A statement of rows that nobody has asked, a request each."""
    return f"SELECT count(udf_text('{uuid4()} ' || i)) FROM generate_series(1, {ROWS}) AS t(i)"


def running(calls: BulkCalls, known: set[str], rows: int = 1) -> dict[str, Any]:
    """The job that is new and has had so many rows answered."""
    found: list[dict[str, Any]] = []

    def is_there() -> bool:
        found[:] = [job for job in calls.all() if job["id"] not in known and job["kind"] == "statement"]
        return bool(found) and found[0]["rows_done"] >= rows

    wait_until(is_there, 60)
    return found[0]


@contextlib.contextmanager
def asked(asks: Engine, calls: BulkCalls, sql: str) -> Iterator[tuple[Future[Any], set[str]]]:
    """A statement under way in a thread, and the jobs that there were before."""
    known = {job["id"] for job in calls.all()}
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(asks.query, sql), known


def test_a_paused_statement_waits_and_goes_on_where_it_was(
    engines: tuple[Engine, Engine], calls: BulkCalls
) -> None:
    asks, looks = engines
    asks.set("timeout_ms", "5000")  # of a request: a pause takes nothing from it
    with asked(asks, calls, scan()) as (answer, known):
        job = running(calls, known)
        assert looks.query(f"SELECT ml_udf.pause_bulk('{job['id']}')") == [("paused",)]

        def seen() -> list[tuple[Any, ...]]:
            return looks.query(
                "SELECT state, function, kind, rows_done, rows_total, max_rows_per_s FROM ml_udf.bulk_jobs "
                f"WHERE id = '{job['id']}'"
            )

        wait_until_steady(seen, for_s=1.2)
        ((state, function, kind, rows_done, rows_total, cap),) = seen()
        assert (state, function, kind, rows_total, cap) == ("paused", "udf_text", "statement", None, None)
        assert 0 < rows_done < ROWS
        assert not answer.done()
        assert looks.query(f"SELECT ml_udf.resume_bulk('{job['id']}')")[0][0] in ("idle", "running")
        assert answer.result(120) == [(ROWS,)]


def test_a_cancelled_job_fails_its_statement_as_one_that_is_cancelled(
    engines: tuple[Engine, Engine], calls: BulkCalls
) -> None:
    asks, looks = engines
    with asked(asks, calls, "SELECT udf_slow('x')") as (answer, known):
        job = running(calls, known, rows=0)
        assert looks.query(f"SELECT ml_udf.cancel_bulk('{job['id']}')") == [("cancelled",)]
        with pytest.raises(SqlError) as caught:
            answer.result(60)
    assert caught.value.sqlstate == "57014"
    assert f"bulk job {job['id']} was cancelled" in caught.value.text
    with pytest.raises(SqlError, match="was cancelled"):
        looks.query(f"SELECT ml_udf.resume_bulk('{job['id']}')")


def test_a_cap_holds_rows_back_until_it_is_taken_away(
    engines: tuple[Engine, Engine], calls: BulkCalls
) -> None:
    asks, looks = engines
    with asked(asks, calls, scan()) as (answer, known):
        job = running(calls, known)
        assert looks.query(f"SELECT ml_udf.cap_bulk('{job['id']}', 0.5)") == [(0.5,)]
        wait_until_steady(lambda: calls_of(calls, job)["rows_done"], for_s=1.0)
        capped = calls_of(calls, job)
        assert capped["max_rows_per_s"] == 0.5
        assert capped["rows_done"] < ROWS
        assert looks.query(f"SELECT ml_udf.cap_bulk('{job['id']}', NULL)") == [(None,)]
        assert answer.result(120) == [(ROWS,)]


def test_a_table_that_is_scored_is_listed_with_its_progress_and_ends_when_cancelled(
    engines: tuple[Engine, Engine], server: InferenceServer, calls: BulkCalls
) -> None:
    asks, _ = engines
    table = f"bulk_{uuid4().hex[:8]}"
    asks.query(f"CREATE TABLE {table} (id integer PRIMARY KEY, x text)")
    asks.query(f"INSERT INTO {table} SELECT i, '{uuid4()} ' || i FROM generate_series(1, {ROWS}) AS t(i)")
    known = {job["id"] for job in calls.all()}
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(score, asks, server, table)
        found: list[dict[str, Any]] = []

        def is_under_way() -> bool:
            found[:] = [job for job in calls.all() if job["id"] not in known and job["kind"] == "table"]
            # Of three pages that are answered the first is stored: two are on the way at once.
            return answer.done() or (bool(found) and found[0]["rows_done"] >= 30)

        wait_until(is_under_way, 60)
        assert not answer.done(), answer.exception()
        (job,) = found
        assert (job["rows_total"], job["what"]) == (ROWS, f"{table}_answers")
        calls.cancel(job["id"])
        with pytest.raises((SqlError, MlUdfError), match=f"bulk job {job['id']} was cancelled"):
            answer.result(60)
    ((stored,),) = asks.query(f"SELECT count(*) FROM {table}_answers")
    assert 0 < stored < ROWS  # what was answered before stays
    asks.query(f"DROP TABLE {table}_answers")
    asks.query(f"DROP TABLE {table}")


def score(asks: Engine, server: InferenceServer, table: str) -> None:
    """`score_table` of either engine, in pages of ten rows."""
    if isinstance(asks, DuckDb):
        score_table(
            asks.connection,
            server.url,
            table,
            "udf_text",
            "x",
            result_table=f"{table}_answers",
            batch_rows=10,
            options=Options(batch_rows=1, answer_cache="off"),
        )
    else:
        asks.query(
            f"CALL ml_udf.score_table('{table}', 'udf_text', 'x', result_table => '{table}_answers', "
            "batch_rows => 10)"
        )


def calls_of(calls: BulkCalls, job: dict[str, Any]) -> dict[str, Any]:
    return next(each for each in calls.all() if each["id"] == job["id"])


def test_a_statement_whose_job_is_paused_can_be_cancelled(
    engines: tuple[Engine, Engine], calls: BulkCalls
) -> None:
    asks, _ = engines
    with asked(asks, calls, scan()) as (answer, known):
        job = running(calls, known)
        calls.pause(job["id"])
        wait_until_steady(lambda: calls_of(calls, job)["rows_done"], for_s=0.5)
        timer: threading.Timer = asks.cancel_after(0.0)
        with pytest.raises(SqlError):
            answer.result(30)
        timer.join()


def test_what_is_no_job_and_no_cap_is_said(engines: tuple[Engine, Engine]) -> None:
    _, looks = engines
    for sql in ("ml_udf.pause_bulk('none')", "ml_udf.cap_bulk('none', 5)", "ml_udf.cancel_bulk('none')"):
        with pytest.raises(SqlError, match="there is no bulk job 'none'") as caught:
            looks.query(f"SELECT {sql}")
        assert caught.value.sqlstate == "22023"
    with pytest.raises(SqlError, match="which bulk job"):
        looks.query("SELECT ml_udf.pause_bulk(NULL)")
    with pytest.raises(SqlError, match="must be a number of rows above 0"):
        looks.query("SELECT ml_udf.cap_bulk('none', -1)")


def test_rows_of_clients_that_name_no_job_are_one_by_caller_and_function(
    server: InferenceServer, calls: BulkCalls
) -> None:
    with server.client() as client:
        client.predict("udf_text", ["a", "b"])
        client.predict("udf_text", ["c"])
    found = [job for job in calls.all() if (job["kind"], job["function"]) == ("requests", "udf_text")]
    assert len(found) == 1
    assert found[0]["rows_done"] >= 3


def test_a_client_without_a_job_waits_as_well(server: InferenceServer, calls: BulkCalls) -> None:
    with server.client() as client:
        client.predict("udf_text", ["a"])
        job = next(job for job in calls.all() if (job["kind"], job["function"]) == ("requests", "udf_text"))
        calls.pause(job["id"])
        try:
            with ThreadPoolExecutor(1) as pool:
                answer = pool.submit(client.predict, "udf_text", [str(uuid4())])
                wait_until_steady(answer.done, for_s=0.3)
                assert not answer.done()
                calls.resume(job["id"])
                assert answer.result(60).errors == [None]
        finally:
            calls.resume(job["id"])
