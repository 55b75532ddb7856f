"""How long a backend needs to come back from a statement that is cancelled at a random moment."""

from __future__ import annotations

import contextlib
import random
import statistics
import threading
import time
from typing import Any

import psycopg

from tests.benchmarks.report import console

__all__ = ["cancelled"]

QUERIES = {
    "a scan": "SELECT count(udf_one(t)) FROM texts",
    "rows as they come": "SELECT udf_one(t) FROM texts",
    "a model's rows for another": "SELECT count(udf_two(t)) FROM texts WHERE udf_one(t) > ''",
    "rows that cost the backend much": "SELECT count(udf_one(spun(t))) FROM texts",
    "texts of 2,000 characters": "SELECT count(udf_one(repeat(t, 200))) FROM texts",
}


def cancelled(connection: psycopg.Connection, times: int) -> list[dict[str, Any]]:
    """Cancel each query at random moments, `times` in all.

    `late_ms` is counted from when the backend had been signalled: a cancel travels over a connection of its
    own, to a process that the server starts for it. `request_ms` is what that took.
    """
    source = random.Random(1)
    results = []
    for name, query in QUERIES.items():
        began_s = time.perf_counter()
        connection.execute(query.encode()).fetchall()
        whole_s = time.perf_counter() - began_s
        late_ms: list[float] = []
        request_ms: list[float] = []
        while len(late_ms) < times / len(QUERIES):
            found = one(connection, query, source.uniform(0.0, 0.9) * whole_s)
            if found is not None:
                request_ms.append(found[0])
                late_ms.append(found[1])
        late_ms.sort()
        results.append({"query": name, "late_ms": late_ms, "request_ms": sorted(request_ms)})
        console.print(
            f"{name:36} {len(late_ms)} cancels: back {statistics.median(late_ms):.1f} ms after the signal,"
            f" most {late_ms[-3:]}; the request itself took {statistics.median(request_ms):.1f},"
            f" most {max(request_ms):.1f}"
        )
    return results


def one(connection: psycopg.Connection, query: str, after_s: float) -> tuple[float, float] | None:
    """Milliseconds of the request and from the signal to the error; None where the query was faster."""
    asked_s: list[float] = []
    signalled_s: list[float] = []

    def cancel() -> None:
        asked_s.append(time.perf_counter())
        connection.cancel()
        signalled_s.append(time.perf_counter())

    timer = threading.Timer(after_s, cancel)
    timer.start()
    ended_s: float | None = None
    try:
        connection.execute(query.encode()).fetchall()
    except psycopg.errors.QueryCanceled:
        ended_s = time.perf_counter()
    timer.join()
    if ended_s is None:
        with contextlib.suppress(psycopg.errors.QueryCanceled):  # a cancel that came late
            connection.execute("SELECT pg_sleep(0.01)")
        return None
    return (signalled_s[0] - asked_s[0]) * 1e3, max(0.0, ended_s - signalled_s[0]) * 1e3
