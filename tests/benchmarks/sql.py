"""`make bench-sql`: rows/s of SQL with a model, against the ceiling and against the usual ways.

One model, distinct image files (so that nothing is won by duplicates), rounds in turn so that the machine's
mood falls on all alike:
    bare loop       the same model offline, files decoded likewise, at its best batch size: the ceiling
    duckdb          SELECT udf(image_path), count(*) FROM files GROUP BY 1, through an inference server
    postgres        the same on PostgreSQL: plain SQL through the plan node
    http by row     the same in DuckDB, one HTTP call per row
    plpython by row a PL/Python function with torch in the backend, one row at a time
And, with a model that costs nothing, what remains: PostgreSQL with the plan node against row by row.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import psycopg

import ml_udf.duckdb
from examples.foodlog.draw import Album, draw_album
from ml_udf.cli.pg_sandbox import sandbox
from ml_udf.cli.pg_server import PostgresServer, SetupError
from ml_udf.client import Client
from tests.benchmarks.bare_loop import BareLoop
from tests.benchmarks.report import Series, console, print_series, ratio, write_json
from tests.inference_server import ANEW, InferenceServer, inference_server
from tests.models import CLASSES, hashing_model, image_model

FUNCTION = "udf_bench"
BY_ROW_ROWS = 1_000  # of the slow ways: a rate needs no more
GROUPED = f"SELECT {FUNCTION}(image_path) AS answer, count(*) FROM files GROUP BY answer"

Tally = dict[str, int]


@dataclass
class Contender:
    """One way to answer the question, and the answer that it must give."""

    series: Series
    ask: Callable[[], Tally]
    expected: Tally

    def run(self) -> None:
        began_s = time.perf_counter()
        answer = self.ask()
        self.series.rows_per_s.append(self.series.rows / (time.perf_counter() - began_s))
        # Another batch size rounds differently, which very rarely tips an answer.
        wrong = sum(abs(answer.get(key, 0) - self.expected.get(key, 0)) for key in {*answer, *self.expected})
        if wrong > self.series.rows // 500:
            sys.exit(f"{self.series.name} answered {answer}, expected {self.expected}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Rows/s of SQL with a model.")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--architecture", default="squeezenet")
    options = parser.parse_args()
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ml_udf-bench-")))
        work.chmod(0o755)  # the database's user reads the images too
        run(stack, work, options.rows, options.rounds, options.architecture)


def run(stack: ExitStack, work: Path, rows: int, rounds: int, architecture: str) -> None:
    files = distinct_files(work, rows)
    model = image_model(work / "made", "bench", architecture)
    loop = BareLoop(str(model))
    setup = loop.calibrate(files[:2048], len(os.sched_getaffinity(0)))
    console.print(f"the bare loop is fastest with {setup}")
    server = stack.enter_context(inference_server(work / "home", media_roots=[work / "files"], flags=[ANEW]))
    server.deploy(model, FUNCTION)
    dsn, closed = postgres_database(stack, server.url)

    expected = [CLASSES[label] for label in loop.run(files, setup)]
    counts, few = tally(expected), tally(expected[:BY_ROW_ROWS])
    contenders = [
        Contender(
            Series("bare loop", rows, note=f"batches of {setup.batch}"),
            lambda: tally(CLASSES[label] for label in loop.run(files, setup)),
            counts,
        ),
        *duckdb_ways(stack, server.url, files, counts, few),
        *(postgres_ways(stack, dsn, files, counts) if dsn else []),
        *(postgres_by_row(stack, dsn, model, few) if dsn and not closed else []),
    ]
    for _ in range(rounds):
        for contender in contenders:
            contender.run()
    noop = noop_model(stack, work, server, dsn, rows, rounds) if dsn else None
    report({contender.series.name: contender.series for contender in contenders}, noop, architecture)


def tally(labels: Iterable[str]) -> Tally:
    return dict(Counter(labels))


def distinct_files(work: Path, rows: int) -> list[str]:
    """`rows` paths of real photos; beyond the photos drawn, hard links, which cost a decode like any file."""
    draw_album(work / "drawn", Album(images=min(rows, 1_000), rows=1))
    photos = sorted((work / "drawn").rglob("*.jpg"))
    folder = work / "files"
    folder.mkdir()
    paths = []
    for number in range(rows):
        path = folder / f"{number:06}.jpg"
        path.hardlink_to(photos[number % len(photos)])
        paths.append(str(path))
    return paths


def duckdb_ways(
    stack: ExitStack, url: str, files: Sequence[str], counts: Tally, few: Tally
) -> list[Contender]:
    con = duckdb.connect()
    stack.callback(ml_udf.duckdb.register(con, url, functions=[FUNCTION]).close)
    con.execute("CREATE TABLE files AS SELECT unnest(?) AS image_path", [files])
    client = Client(url)
    stack.callback(client.close)
    version = client.describe(FUNCTION).version

    def by_row(path: str) -> str:
        # A scan like the others, so as bulk rows: after interactive ones the server holds scans back a while.
        return str(client.predict(FUNCTION, [path], version=version).values[0])

    con.create_function("by_row", by_row, ["VARCHAR"], "VARCHAR")
    query = f"SELECT by_row(image_path) AS answer, count(*) FROM (FROM files LIMIT {BY_ROW_ROWS}) GROUP BY 1"
    return [
        Contender(Series("duckdb", len(files)), lambda: dict(con.execute(GROUPED).fetchall()), counts),
        Contender(Series("http by row", BY_ROW_ROWS), lambda: dict(con.execute(query).fetchall()), few),
    ]


def postgres_database(stack: ExitStack, url: str) -> tuple[str | None, str]:
    """A private cluster's database with extension and function, and why it cannot read this checkout."""
    try:
        cluster = stack.enter_context(sandbox(PostgresServer.find(), batching=None))
    except SetupError as error:
        console.print(f"[bold yellow]PostgreSQL's part is left out:[/] {error}")
        return None, ""
    if closed := cluster.hides(python_path()):
        console.print(
            "[bold yellow]'plpython by row' is left out:[/] torch runs in the database's own process there,"
            f" and {closed}; a clone that every user can read shows it"
        )
    return cluster.database("bench", url=url, functions=[FUNCTION]), closed


def python_path() -> list[Path]:
    """Where this checkout and its packages lie."""
    return [Path.cwd(), *(Path(entry) for entry in sys.path if entry.endswith("site-packages"))]


BY_ROW = """
CREATE FUNCTION by_row(path text) RETURNS text LANGUAGE plpython3u STABLE AS $$
    if 'loop' not in SD:
        import sys; sys.path[:0] = {path!r}
        import torch
        from tests.benchmarks.one_row import OneRow
        SD['loop'] = OneRow({model!r})
    return SD['loop'].label(path)
$$
"""


def postgres_ways(stack: ExitStack, dsn: str, files: Sequence[str], counts: Tally) -> list[Contender]:
    batched = stack.enter_context(psycopg.connect(dsn, autocommit=True)).cursor()
    fill(batched, "files", "image_path", files)
    return [
        Contender(Series("postgres", len(files)), lambda: dict(batched.execute(GROUPED).fetchall()), counts)
    ]


def postgres_by_row(stack: ExitStack, dsn: str, model: Path, few: Tally) -> list[Contender]:
    by_row = stack.enter_context(psycopg.connect(dsn, autocommit=True)).cursor()
    by_row.execute(BY_ROW.format(path=list(map(str, python_path())), model=str(model)))
    by_row.execute("SELECT by_row(image_path) FROM files LIMIT 1")  # torch's import is not its speed
    query = (
        "SELECT by_row(image_path) AS answer, count(*) FROM "
        f"(SELECT * FROM files ORDER BY image_path LIMIT {BY_ROW_ROWS}) AS few GROUP BY answer"
    )
    return [
        Contender(Series("plpython by row", BY_ROW_ROWS), lambda: dict(by_row.execute(query).fetchall()), few)
    ]


def fill(cursor: psycopg.Cursor[Any], table: str, column: str, values: Sequence[str]) -> None:
    cursor.execute(f"CREATE TABLE {table} ({column} text)")
    with cursor.copy(f"COPY {table} FROM STDIN") as copy:
        for value in values:
            copy.write_row((value,))
    cursor.execute(f"ANALYZE {table}")


def noop_model(
    stack: ExitStack, work: Path, server: InferenceServer, dsn: str, rows: int, rounds: int
) -> tuple[Series, Series]:
    """Distinct rows through a model that costs nothing: by the plan node, and row by row without it."""
    server.deploy(hashing_model(work / "made", "noop"), "udf_noop")
    cursor = stack.enter_context(psycopg.connect(dsn, autocommit=True)).cursor()
    cursor.execute("SELECT ml_udf.create_function('udf_noop')")
    fill(cursor, "texts", "t", [f"row {number}" for number in range(rows)])
    batched = Series("postgres, no-op model", rows)
    by_row = Series("the same, row by row", BY_ROW_ROWS)
    for _ in range(rounds):
        for series, batching in ((batched, "on"), (by_row, "off")):
            cursor.execute(f"SET ml_udf.batching = {batching}")
            few = f"(SELECT * FROM texts LIMIT {series.rows}) AS few"
            began_s = time.perf_counter()
            answer: Tally = dict(
                cursor.execute(f"SELECT udf_noop(t), count(*) FROM {few} GROUP BY 1").fetchall()
            )
            series.rows_per_s.append(series.rows / (time.perf_counter() - began_s))
            assert sum(answer.values()) == series.rows
    return batched, by_row


def report(series: dict[str, Series], noop: tuple[Series, Series] | None, architecture: str) -> None:
    every = list(series.values())
    print_series(f"SQL with a model ({architecture}, distinct images)", every, against=series["bare loop"])
    goals = [("duckdb", "bare loop", 0.8), ("duckdb", "http by row", 3.0)]
    if "postgres" in series:
        goals += [("postgres", "bare loop", 0.85)]
    if "plpython by row" in series:
        goals += [("duckdb", "plpython by row", 3.0)]
    ratios = [(f"{a} / {b}", ratio(series[a], series[b]), goal) for a, b, goal in goals]
    if noop is not None:
        print_series("A model that costs nothing", list(noop), against=noop[1])
        ratios.append((f"{noop[0].name} / row by row", ratio(*noop), 50.0))
        every += noop
    for name, (middle, low, high), goal in ratios:
        verdict = "met" if middle >= goal else "MISSED"
        console.print(f"{name}: {middle:.2f} ({low:.2f} to {high:.2f}); goal {goal:g}: {verdict}")
    write_json(
        "sql",
        {
            "architecture": architecture,
            "series": {s.name: {"rows": s.rows, "rows_per_s": s.rows_per_s} for s in every},
            "ratios": {n: {"median": r[0], "min": r[1], "max": r[2], "goal": g} for n, r, g in ratios},
        },
    )


if __name__ == "__main__":
    main()
