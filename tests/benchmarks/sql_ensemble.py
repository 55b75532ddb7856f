"""`make bench-sql`, an ensemble: the food log's function by `value` beside the same one by `all`.

One server, one function of the members that a short job chose, photos that none of them saw; `select` is
changed between the rounds, and both engines ask as a scan does (bulk) and as a caller does (interactive).
Rows per second, and the accuracy, since `value` asks fewer members. And what a single row takes while the
server has nothing else to do: `value` asks one member after the other.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import duckdb
import numpy as np
import psycopg
from rich.table import Table

import ml_udf.duckdb
from ml_udf.cli.pg_sandbox import sandbox
from ml_udf.cli.pg_server import PostgresServer, SetupError
from tests.benchmarks.ensembles_live_food import (
    FUNCTION,
    FoodEnsemble,
    food_ensemble,
    fresh_photos,
    introduction,
)
from tests.benchmarks.ensembles_live_load import ask_by
from tests.benchmarks.ensembles_live_rows import Asking
from tests.benchmarks.report import Series, console, ratio, say, write_json
from tests.inference_server import ANEW, InferenceServer, inference_server

POLICIES = ("all", "value")
CLASSES = ("bulk", "interactive")
# A job of some minutes chooses two of three that are often sure. Of `--models small_cnn,vgg,resnet` and of
# `--models xception,resnet,inception --epochs 4` every row needs both: there is nothing to spare.
MODELS, EPOCHS = "small_cnn,resnet,inception", 16
GOAL_MS = 500
_QUERY = f"SELECT {FUNCTION}(image_path) AS answer, food_name, count(*) FROM files GROUP BY 1, 2"
_POINTS = 0.2  # of accuracy that `value` may be behind
_REST_S = 5.0
_PAUSE_S = 0.005  # between two rows of the only caller

Ask = Callable[[str], Sequence[tuple[str, str, int]]]  # row class → (answer, truth, rows)


@dataclass
class _Way:
    """One engine, one row class, one policy."""

    series: Series
    accuracy: list[float] = field(default_factory=list)

    def take(self, told: Sequence[tuple[str, str, int]], took_s: float) -> None:
        rows = sum(count for _, _, count in told)
        if rows != self.series.rows:
            raise RuntimeError(f"{self.series.name} answered {rows} of {self.series.rows} rows")
        self.series.rows_per_s.append(rows / took_s)
        self.accuracy.append(sum(count for answer, truth, count in told if answer == truth) / rows)


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=6_000, help="as many photos, none of which anybody saw")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--single-rows", type=int, default=300, help="asked one by one, each round")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="of each member's training")
    parser.add_argument("--models", default=MODELS, help="architectures of which members are chosen")
    parser.add_argument("--quick", action="store_true", help="fewer photos, rows and rounds: a minute")
    flags = parser.parse_args()
    if flags.quick:
        flags.rows, flags.rounds, flags.single_rows = 1_000, 2, 100
    food = food_ensemble(flags.epochs, flags.models.split(","))
    say(introduction(food))
    with ExitStack() as stack:
        result = _run(stack, food, flags.rows, flags.rounds, flags.single_rows)
    write_json("sql_ensemble", result)


def _run(stack: ExitStack, food: FoodEnsemble, rows: int, rounds: int, single_rows: int) -> dict[str, Any]:
    images, files = fresh_photos(rows)
    home = stack.enter_context(food.home())
    server = stack.enter_context(inference_server(home, media_roots=[images], flags=[ANEW]))
    engines = _engines(stack, server, files)
    ways = {
        (engine, kind, policy): _Way(Series(f"{engine}, {kind}, {policy}", rows))
        for engine in engines
        for kind in CLASSES
        for policy in POLICIES
    }
    single: dict[str, list[float]] = {policy: [] for policy in POLICIES}
    for number in range(rounds + 1):
        for policy in POLICIES if number % 2 == 0 else reversed(POLICIES):
            input_name = ask_by(server, food, policy, GOAL_MS)
            next(iter(engines.values()))("bulk")  # its plans are fitted meanwhile
            for engine, ask in engines.items():
                for kind in CLASSES:
                    began_s = time.perf_counter()
                    told = ask(kind)
                    if number:  # the first round warms up, and teaches l̂
                        ways[engine, kind, policy].take(told, time.perf_counter() - began_s)
            if number:
                time.sleep(_REST_S)  # what scans brought is forgotten, and the richest plan followed again
                single[policy] += _single(server, input_name, [path for path, _ in files[:single_rows]])
        say(f"round {number} of {rounds}")
    return _report(ways, list(engines), single)


def _engines(
    stack: ExitStack, server: InferenceServer, files: Sequence[tuple[str, str]]
) -> Mapping[str, Ask]:
    con = stack.enter_context(duckdb.connect())
    stack.callback(ml_udf.duckdb.register(con, server.url, functions=[FUNCTION]).close)
    paths, names = zip(*files, strict=True)
    con.execute(
        "CREATE TABLE files AS SELECT unnest(?) AS image_path, unnest(?) AS food_name",
        [list(paths), list(names)],
    )

    def on_duckdb(kind: str) -> Sequence[tuple[str, str, int]]:
        con.execute(f"SET VARIABLE ml_udf_row_class = '{kind}'")
        return con.execute(_QUERY).fetchall()

    engines: dict[str, Ask] = {"duckdb": on_duckdb}
    try:
        cluster = stack.enter_context(sandbox(PostgresServer.find(), batching=None))
    except SetupError as error:
        say(f"PostgreSQL's part is left out: {error}")
        return engines
    dsn = cluster.database("bench", url=server.url, functions=[FUNCTION])
    cursor = stack.enter_context(psycopg.connect(dsn, autocommit=True)).cursor()
    cursor.execute("CREATE TABLE files (image_path text, food_name text)")
    with cursor.copy("COPY files FROM STDIN") as copy:
        for row in files:
            copy.write_row(row)
    cursor.execute("ANALYZE files")

    def on_postgres(kind: str) -> Sequence[tuple[str, str, int]]:
        cursor.execute(f"SET ml_udf.row_class = {kind}".encode())
        return cursor.execute(_QUERY.encode()).fetchall()

    return {**engines, "postgres": on_postgres}


def _single(server: InferenceServer, input_name: str, photos: Sequence[str]) -> list[float]:
    """Seconds of each row, asked one by one by the only caller."""
    asking = Asking(server.url, FUNCTION, input_name)
    took_s = []
    with contextlib.closing(http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=10)) as caller:
        for photo in photos:
            body = asking.body(photo)
            began_s = time.perf_counter()
            caller.request("POST", asking.path, body, {"Content-Type": "application/json"})
            reply = caller.getresponse()
            reply.read()
            took_s.append(time.perf_counter() - began_s)
            if reply.status != 200:
                raise RuntimeError(f"a row was answered {reply.status}")
            time.sleep(_PAUSE_S)
    return took_s


def _report(
    ways: Mapping[tuple[str, str, str], _Way], engines: Sequence[str], single: Mapping[str, list[float]]
) -> dict[str, Any]:
    table = Table("", "all, rows/s", "value, rows/s", "value / all", "accuracy, all", "value", "points")
    told: dict[str, Any] = {"rows": {}, "single_ms": {}}
    for engine in engines:
        for kind in CLASSES:
            everyone, value = (ways[engine, kind, policy] for policy in POLICIES)
            middle, low, high = ratio(value.series, everyone.series)
            accuracies = [100 * float(np.mean(way.accuracy)) for way in (everyone, value)]
            points = accuracies[1] - accuracies[0]
            table.add_row(
                f"{engine}, {kind}",
                f"{everyone.series.median:,.0f} ({everyone.series.spread()})",
                f"{value.series.median:,.0f} ({value.series.spread()})",
                f"{middle:.2f} ({low:.2f} to {high:.2f})",
                *(f"{each:.1f} %" for each in accuracies),
                f"{points:+.2f} {'met' if points >= -_POINTS else 'MISSED'}",
            )
            told["rows"][f"{engine}, {kind}"] = {
                "all_rows_per_s": everyone.series.rows_per_s,
                "value_rows_per_s": value.series.rows_per_s,
                "ratio": [middle, low, high],
                "accuracy": {"all": accuracies[0], "value": accuracies[1]},
            }
    console.print(table)
    for policy, took_s in single.items():
        p50, p99 = (1000 * float(np.quantile(took_s, share)) for share in (0.5, 0.99))
        told["single_ms"][policy] = {"rows": len(took_s), "p50": p50, "p99": p99}
        say(f"a single row, nothing else to do, {policy}: p50 {p50:.1f} ms, p99 {p99:.1f} ms")
    return told


if __name__ == "__main__":
    main()
