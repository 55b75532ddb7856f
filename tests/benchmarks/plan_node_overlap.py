"""What it is worth that the plan node gathers while the server computes: wall time over the server's own.

The models wait a known time a row and use no processor, so the server's own time is known whatever the
machine does: that time × rows × models, by its workers. Queries in turn with `ml_udf.overlap` on and off.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg

from ml_udf.cli.pg_sandbox import sandbox
from ml_udf.cli.pg_server import PostgresServer
from tests.benchmarks.backend_memory import backend_memory
from tests.benchmarks.plan_node_cancels import cancelled
from tests.benchmarks.report import console
from tests.inference_server import ANEW, inference_server
from tests.models import hashing_model

__all__ = ["overlap"]

ROW_MS = 0.1
WORKERS = 2
FUNCTIONS = ("udf_one", "udf_two")
SCHEMA = """
    CREATE TABLE texts AS SELECT 'text ' || i AS t FROM generate_series(1, {rows}) AS i;
    CREATE FUNCTION spun(t text) RETURNS text LANGUAGE plpgsql STABLE AS $$
    BEGIN
        FOR turn IN 1 .. 60 LOOP
            PERFORM md5(t);
        END LOOP;
        RETURN t;
    END $$;
    VACUUM ANALYZE texts"""
QUERIES = (
    ("a scan", 1, "SELECT count(udf_one(t)) FROM texts"),
    ("rows that cost the backend much", 1, "SELECT count(udf_one(spun(t))) FROM texts"),
    ("two models", 2, "SELECT count(udf_one(t)), count(udf_two(t)) FROM texts"),
    ("a model's rows for another", 2, "SELECT count(udf_two(t)) FROM texts WHERE udf_one(t) > ''"),
)


def overlap(server: PostgresServer, rows: int, rounds: int, memory_rows: int, cancels: int) -> dict[str, Any]:
    """For each query, wall time over the time that the models need for its rows, with and without overlap;
    how long cancels take; and a backend's memory while `memory_rows` distinct rows go to a model that costs
    nothing.
    """
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ml_udf-overlap-")))
        inference = stack.enter_context(inference_server(work / "home", flags=[ANEW, f"--workers={WORKERS}"]))
        for number, function in enumerate(FUNCTIONS):
            inference.deploy(hashing_model(work / "made", f"m{number}", row_delay_ms=ROW_MS), function)
        inference.deploy(hashing_model(work / "made", "noop"), "udf_noop")
        cluster = stack.enter_context(sandbox(server, batching=True, local=False))
        dsn = cluster.database("bench", url=inference.url, functions=[*FUNCTIONS, "udf_noop"])
        cluster.sql(SCHEMA.format(rows=rows), "bench")
        with psycopg.connect(dsn, autocommit=True) as connection:
            for function in FUNCTIONS:
                connection.execute(f"SELECT count({function}(t)) FROM texts".encode())
            ratios = [
                measured(connection, name, query, rows * models, rounds) for name, models, query in QUERIES
            ]
            late = cancelled(connection, cancels)
            connection.execute("SET work_mem = '4MB'")
            query = f"SELECT count(udf_noop('row ' || n)) FROM generate_series(1, {memory_rows}) AS n"
            memory = backend_memory(connection, "a no-op model", query, memory_rows)
    return {"overlap": ratios, "cancels": late, "memory": memory}


def measured(
    connection: psycopg.Connection, name: str, query: str, model_rows: int, rounds: int
) -> dict[str, Any]:
    model_s = model_rows * ROW_MS / WORKERS / 1e3
    ratios: dict[str, list[float]] = {"on": [], "off": []}
    for _ in range(rounds):
        for way, found in ratios.items():
            connection.execute(f"SET ml_udf.overlap = {way}".encode())
            began_s = time.perf_counter()
            connection.execute(query.encode()).fetchall()
            found.append((time.perf_counter() - began_s) / model_s)
    middle = {way: statistics.median(found) for way, found in ratios.items()}
    console.print(
        f"{name:36} of the models' {model_s:.1f} s: {middle['on']:.2f}"
        f" ({min(ratios['on']):.2f} to {max(ratios['on']):.2f}) with overlap,"
        f" {middle['off']:.2f} ({min(ratios['off']):.2f} to {max(ratios['off']):.2f}) without"
    )
    return {"query": name, "model_rows": model_rows, "model_s": model_s, "median": middle, "all": ratios}
