"""`make bench-ensemble`: rows/s of an ensemble of three in DuckDB, beside one of its members alone.

Three models of one architecture and size, so each picture is decoded once for all of them. What an ensemble
costs beside its forward passes is the ratio; and bench-before holds both against another commit: there this
file is copied into a tree that lacks it, so it asks for nothing that moved.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import duckdb

import ml_udf.duckdb
from ml_udf.client import Client
from tests.benchmarks.report import Series, print_series, write_json
from tests.benchmarks.sql import distinct_files
from tests.inference_server import ANEW, inference_server
from tests.models import image_model

MEMBERS = ("first", "second", "third")
FUNCTIONS = {"single model": ("udf_single", MEMBERS[:1]), "ensemble of three": ("udf_ensemble", MEMBERS)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Rows/s of an ensemble of three, beside a single model.")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--architecture", default="squeezenet")
    options = parser.parse_args()
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ml_udf-bench-")))
        measured = run(stack, work, options.rows, options.rounds, options.architecture)
    title = f"DuckDB with an ensemble ({options.architecture}, distinct images)"
    print_series(title, measured, against=measured[0])
    write_json(
        "ensemble",
        {
            "architecture": options.architecture,
            "series": {one.name: {"rows": one.rows, "rows_per_s": one.rows_per_s} for one in measured},
        },
    )


def run(stack: ExitStack, work: Path, rows: int, rounds: int, architecture: str) -> Sequence[Series]:
    """Both functions in turn, round by round, on one server."""
    files = distinct_files(work, rows)
    server = stack.enter_context(inference_server(work / "home", media_roots=[work / "files"], flags=[ANEW]))
    client = Client(server.url)
    stack.callback(client.close)
    for seed, name in enumerate(MEMBERS):
        server.deploy(image_model(work / "made", name, architecture, seed=seed))
    for function, members in FUNCTIONS.values():
        client.put(f"/v1/functions/{function}", {"models": list(members)})
    con = duckdb.connect()
    functions = [function for function, _ in FUNCTIONS.values()]
    stack.callback(ml_udf.duckdb.register(con, server.url, functions=functions).close)
    con.execute("CREATE TABLE files AS SELECT unnest(?) AS image_path", [files])
    measured = [Series(name, rows) for name in FUNCTIONS]
    for number in range(rounds + 1):
        for series, function in zip(measured, functions, strict=True):
            began_s = time.perf_counter()
            query = f"SELECT {function}(image_path) AS answer, count(*) FROM files GROUP BY answer"
            counted = sum(count for _, count in con.execute(query).fetchall())
            if counted != rows:
                raise SystemExit(f"{function} answered {counted} of {rows} rows")
            if number:  # the first round warms both up
                series.rows_per_s.append(rows / (time.perf_counter() - began_s))
    return measured


if __name__ == "__main__":
    main()
