"""`python -m tests.benchmarks.plan_node`: what PostgreSQL's plan node itself costs, with no model behind it.

A row       a trivial function by batches, against the same row by row, and against the bare scan: seconds
            that the backend was on a processor.
A plan      planning and running queries that call no function with a twin, in sessions with the module loaded
            and without it; rounds in turn, the ratio with its spread.
Overlap     wall time over the server's own, with the next batch gathered meanwhile and without.
Cancels     how long a backend needs to come back from a cancel at a random moment.
Memory      the private memory of a backend while millions of rows pass through the node at work_mem = 4MB.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from ml_udf.cli.pg_sandbox import Sandbox
from ml_udf.cli.pg_server import PostgresServer
from tests.benchmarks.backend_memory import backend_memory
from tests.benchmarks.plan_node_overlap import overlap
from tests.benchmarks.report import console, write_json
from tests.postgres.batch.building import batch_cluster

SCHEMA = """
    CREATE FUNCTION same(x int) RETURNS int LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE COST 10000
        AS 'BEGIN RETURN x; END';
    CREATE FUNCTION same_batch(xs int[]) RETURNS int[] LANGUAGE plpgsql STABLE PARALLEL SAFE COST 10000
        AS 'BEGIN RETURN xs; END';
    CREATE FUNCTION same_text(x text) RETURNS text LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE COST 10000
        AS 'BEGIN RETURN x; END';
    CREATE FUNCTION same_text_batch(xs text[]) RETURNS text[] LANGUAGE plpgsql STABLE PARALLEL SAFE COST 10000
        AS 'BEGIN RETURN xs; END';
    CREATE FUNCTION twinless(x int) RETURNS int LANGUAGE plpgsql STABLE AS 'BEGIN RETURN x; END';
    CREATE TABLE numbers AS SELECT i AS id, 'image/' || i || '.jpg' AS path, i % 100 AS few
        FROM generate_series(1, {rows}) AS i;
    CREATE TABLE small AS SELECT i AS id, i % 10 AS grp, 'name ' || i AS name
        FROM generate_series(1, 1000) AS i;
    CREATE INDEX ON small (id);
    VACUUM ANALYZE
"""
ROW_QUERIES = {
    "int, all distinct": ("SELECT count({}) FROM numbers", "id", "same(id)"),
    "int, 100 distinct": ("SELECT count({}) FROM numbers", "few", "same(few)"),
    "text, all distinct": ("SELECT count({}) FROM numbers", "path", "same_text(path)"),
    "text, streamed": ("SELECT {} FROM numbers OFFSET {rows}", "path", "same_text(path)"),
    "text, a computed input": (
        "SELECT {} FROM numbers OFFSET {rows}",
        "lower(path)",
        "same_text(lower(path))",
    ),
    "text, as a filter": ("SELECT count(*) FROM numbers WHERE {} > ''", "path", "same_text(path)"),
}
PLAN_QUERIES = {
    "a point query": "SELECT name FROM small WHERE id = 7",
    "a join with grouping": (
        "SELECT a.grp, count(*), max(b.name) FROM small AS a JOIN small AS b USING (id)"
        " WHERE a.grp < 5 GROUP BY a.grp ORDER BY 2"
    ),
    "own functions without twins": (
        "SELECT twinless(a.id), a.grp FROM small AS a JOIN small AS b USING (id)"
        " WHERE twinless(b.grp) = 3 AND a.grp < 5 ORDER BY 1"
    ),
}
MEMORY_QUERIES = {
    "aggregate of a call": "SELECT sum(same(i)) FROM millions",
    "filter by a call": "SELECT count(*) FROM millions WHERE same(i) > 0",
    "a call of long texts": "SELECT sum(length(same_text(repeat('x', 200) || i))) FROM millions",
    "sorted by a call": "SELECT i FROM millions ORDER BY same(i % 1000) LIMIT 1",
}
# JIT compiles at these costs, for both ways alike; parallel workers would share the rows.
SINGLE = "SET jit = off; SET max_parallel_workers_per_gather = 0"
PLANS_A_ROUND = 300


def cpu_s(connection: psycopg.Connection, query: str, times: int = 1) -> float:
    """Seconds that the backend itself ran for a query: what else the machine does hardly counts."""
    scheduled = Path(f"/proc/{connection.info.backend_pid}/schedstat")
    began_ns = int(scheduled.read_text().split()[0])
    for _ in range(times):
        connection.execute(query.encode()).fetchall()
    return (int(scheduled.read_text().split()[0]) - began_ns) / 1e9


@contextmanager
def session(cluster: Sandbox, *, loaded: bool = True) -> Iterator[psycopg.Connection]:
    """A connection; not `loaded`: one whose backend does not have the module."""
    options = "" if loaded else "-c session_preload_libraries="
    with psycopg.connect(cluster.dsn("bench"), autocommit=True, options=options) as connection:
        connection.execute(SINGLE)
        yield connection


def rows(cluster: Sandbox, count: int, rounds: int) -> list[dict[str, Any]]:
    """Nanoseconds a row of the node, and of row by row, above the bare scan."""
    results = []
    with session(cluster) as connection:
        for name, (query, bare, call) in ROW_QUERIES.items():
            seconds: dict[str, list[float]] = {"scan": [], "node": [], "row by row": []}
            for _ in range(rounds):
                for way, expression in (("scan", bare), ("node", call), ("row by row", call)):
                    connection.execute(f"SET ml_udf.batching = {'off' if way == 'row by row' else 'on'}")
                    seconds[way].append(cpu_s(connection, query.format(expression, rows=count)))
            above = {
                way: [
                    (one - scan) / count * 1e9
                    for one, scan in zip(seconds[way], seconds["scan"], strict=True)
                ]
                for way in ("node", "row by row")
            }
            ns = {way: statistics.median(values) for way, values in above.items()}
            results.append({"query": name, "rows": count, "ns_a_row": ns, "all_ns_a_row": above})
            console.print(
                f"{name:22} node {ns['node']:7.0f} ns/row"
                f" ({min(above['node']):.0f} to {max(above['node']):.0f}),"
                f" row by row {ns['row by row']:7.0f} ns/row"
            )
    return results


def plans(cluster: Sandbox, rounds: int) -> list[dict[str, Any]]:
    """Time with the module over time without it, for planning alone and for planning and running."""
    results = []
    for name, query in PLAN_QUERIES.items():
        for what, text in (("plan", f"EXPLAIN {query}"), ("plan and run", query)):
            ratios = [plan_ratio(cluster, text) for _ in range(rounds)]
            middle = statistics.median(ratios)
            results.append({"query": name, "what": what, "ratio": middle, "ratios": ratios})
            console.print(f"{name:28} {what:13} {middle:.3f} ({min(ratios):.3f} to {max(ratios):.3f})")
    return results


def plan_ratio(cluster: Sandbox, query: str) -> float:
    """One round, in new backends: where a process happens to lie in memory is worth some percent."""
    with session(cluster) as loaded, session(cluster, loaded=False) as bare:
        for one in (loaded, bare):  # fill what a session fills once
            cpu_s(one, "SELECT same(1)")
            cpu_s(one, query, PLANS_A_ROUND // 10)
        times_s = [cpu_s(one, query, PLANS_A_ROUND) for one in (loaded, bare, bare, loaded)]
    return (times_s[0] + times_s[3]) / (times_s[1] + times_s[2])


def memory(cluster: Sandbox, count: int) -> list[dict[str, Any]]:
    """Private memory of a backend, sampled while `count` rows pass at work_mem = 4MB."""
    results = []
    for name, query in MEMORY_QUERIES.items():
        with session(cluster) as connection:
            connection.execute("SET work_mem = '4MB'")
            results.append(backend_memory(connection, name, query, count))
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description="What PostgreSQL's plan node itself costs.")
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--memory-rows", type=int, default=5_000_000)
    parser.add_argument("--overlap-rows", type=int, default=20_000)
    parser.add_argument("--cancels", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--pg-config", type=Path)
    options = parser.parse_args()

    server = PostgresServer.find(options.pg_config)
    with_server = overlap(server, options.overlap_rows, options.rounds, options.memory_rows, options.cancels)
    with batch_cluster(server, autovacuum="off") as cluster:
        cluster.sql("CREATE DATABASE bench")
        for statement in SCHEMA.format(rows=options.rows).split(";\n"):
            cluster.sql(statement, "bench")
        cluster.sql(
            f"CREATE TABLE millions AS SELECT generate_series(1, {options.memory_rows}) AS i", "bench"
        )
        console.print(
            f"PostgreSQL {server.version}; {options.rounds} rounds in turn, median (least to greatest)"
        )
        write_json(
            "plan_node",
            {
                "postgresql": server.version,
                "rows": rows(cluster, options.rows, options.rounds),
                "plans": plans(cluster, options.rounds),
                "with_server": with_server,
                "memory": memory(cluster, options.memory_rows),
            },
        )


if __name__ == "__main__":
    main()
