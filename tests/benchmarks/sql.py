"""`make bench-sql`: rows/s of SQL with a model, against the ceiling and against the usual ways.

One model, distinct image files (so that nothing is won by duplicates), rounds in turn so that the machine's
mood falls on all alike:
    bare loop       the same model offline, files decoded likewise, at its best batch size: the ceiling
    duckdb          SELECT udf(image_path) FROM files, through ml_udf and an inference server
    http by row     the same in DuckDB, one HTTP call per row
    plpython by row a PL/Python function with torch in the backend, one row at a time
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import duckdb
import psycopg

import ml_udf.duckdb
from examples.foodlog.draw import Album, draw_album
from ml_udf.cli.pg_sandbox import Sandbox, sandbox
from ml_udf.cli.pg_server import PostgresServer, SetupError
from ml_udf.client import Client, Options
from tests.benchmarks.bare_loop import BareLoop
from tests.benchmarks.report import Series, console, print_series, ratio, write_json
from tests.inference_server import inference_server
from tests.models import CLASSES, image_model

FUNCTION = "udf_bench"
BY_ROW_ROWS = 1_000  # of the slow ways: a rate needs no more


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--rows", type=int, default=20_000)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--architecture", default="squeezenet")
    options = arguments.parse_args()
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

    server = stack.enter_context(inference_server(work / "home", media_roots=[work / "files"]))
    server.deploy(model, FUNCTION)
    con = duckdb.connect()
    stack.callback(ml_udf.duckdb.register(con, server.url, functions=[FUNCTION]).close)
    con.execute("CREATE TABLE files AS SELECT unnest(?) AS image_path", [files])
    define_by_row(con, stack, server.url)
    cursor = plpython_by_row(stack, model, files[:BY_ROW_ROWS])

    expected = [CLASSES[label] for label in loop.run(files, setup)]
    few = f"LIMIT {BY_ROW_ROWS}"
    contenders: list[tuple[Series, Callable[[], list[str]]]] = [
        (Series("bare loop", rows, note=str(setup)), lambda: [CLASSES[c] for c in loop.run(files, setup)]),
        (Series("duckdb", rows), lambda: column(con, f"SELECT {FUNCTION}(image_path) FROM files")),
        (
            Series("http by row", BY_ROW_ROWS),
            lambda: column(con, f"SELECT by_row(image_path) FROM (FROM files {few})"),
        ),
    ]
    if cursor is not None:
        contenders.append((Series("plpython by row", BY_ROW_ROWS), lambda: pg_column(cursor)))
    for _ in range(rounds):
        for series, ask in contenders:
            began_s = time.perf_counter()
            answers = ask()
            series.rows_per_s.append(series.rows / (time.perf_counter() - began_s))
            wrong = sum(a != b for a, b in zip(answers, expected[: series.rows], strict=True))
            if wrong > series.rows // 1000:  # another batch size rounds differently, rarely to another label
                sys.exit(f"{series.name} answered {wrong} of {series.rows} rows otherwise than the bare loop")
    report([series for series, _ in contenders], architecture)


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


def define_by_row(con: duckdb.DuckDBPyConnection, stack: ExitStack, url: str) -> None:
    client = Client(url)
    stack.callback(client.close)
    version = client.describe(FUNCTION).version

    def by_row(path: str) -> str:
        options = Options(row_class="interactive")
        return str(client.predict(FUNCTION, [path], options, version=version).values[0])

    con.create_function("by_row", by_row, ["VARCHAR"], "VARCHAR")


PLPYTHON = """
CREATE EXTENSION IF NOT EXISTS plpython3u;
CREATE FUNCTION by_row(path text) RETURNS text LANGUAGE plpython3u STABLE AS $$
    if 'loop' not in SD:
        import sys; sys.path[:0] = {path!r}
        import torch
        from tests.benchmarks.one_row import OneRow
        SD['loop'] = OneRow({model!r})
    return SD['loop'].label(path)
$$;
CREATE TABLE files (image_path text);
"""


def plpython_by_row(stack: ExitStack, model: Path, files: Sequence[str]) -> psycopg.Cursor[tuple[str]] | None:
    try:
        cluster: Sandbox = stack.enter_context(sandbox(PostgresServer.find(), extension=False))
    except SetupError as error:
        console.print(f"[bold yellow]PostgreSQL's part is left out:[/] {error}")
        return None
    cursor = stack.enter_context(psycopg.connect(cluster.dsn(), autocommit=True)).cursor()
    path = [str(Path.cwd()), *(p for p in sys.path if p.endswith("site-packages"))]
    cursor.execute(PLPYTHON.format(path=path, model=str(model)))
    cursor.executemany("INSERT INTO files VALUES (%s)", [(file,) for file in files])
    cursor.execute("SELECT by_row(image_path) FROM files LIMIT 1")  # torch's import is not its speed
    return cursor


def column(con: duckdb.DuckDBPyConnection, query: str) -> list[str]:
    return [row[0] for row in con.execute(query).fetchall()]


def pg_column(cursor: psycopg.Cursor[tuple[str]]) -> list[str]:
    return [row[0] for row in cursor.execute("SELECT by_row(image_path) FROM files").fetchall()]


def report(series: list[Series], architecture: str) -> None:
    ceiling = series[0]
    print_series(f"SQL with a model ({architecture}, distinct images)", series, against=ceiling)
    goals = {"duckdb of the bare loop": (ratio(series[1], ceiling), 0.8)}
    for slow in series[2:]:
        goals[f"duckdb over {slow.name}"] = (ratio(series[1], slow), 3.0)
    for name, ((middle, low, high), goal) in goals.items():
        verdict = "met" if middle >= goal else "MISSED"
        console.print(f"{name}: {middle:.2f} ({low:.2f} to {high:.2f}); goal {goal}: {verdict}")
    write_json(
        "sql",
        {
            "architecture": architecture,
            "series": {s.name: {"rows": s.rows, "rows_per_s": s.rows_per_s} for s in series},
            "ratios": {name: {"median": r[0], "min": r[1], "max": r[2]} for name, (r, _) in goals.items()},
        },
    )


if __name__ == "__main__":
    main()
