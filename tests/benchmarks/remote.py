"""`make bench-remote`: rows/s of SQL through a remote model, beside a direct loop over the same endpoint.

The endpoint speaks the Open Inference Protocol, in a process of its own; it answers at once, or after so long
as a model would take. Distinct texts, rounds in turn so that the machine's mood falls on all alike:
    client loop    ml_udf's own client of such an endpoint, as the worker has it, in a loop: no server, no SQL
    duckdb         SELECT udf(text) FROM texts, through an inference server whose only member is that model
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import duckdb

import ml_udf.duckdb
from gpu_worker.model_files.manifest import read_manifest
from gpu_worker.networks.remote.opening import open_remote
from gpu_worker.settings import Settings
from tests.benchmarks.report import Series, console, print_series, ratio, write_json
from tests.inference_server import ANEW, inference_server
from tests.models import CLASSES, label_of
from tests.remote_endpoint import Endpoint, Handler, oip_model

FUNCTION = "udf_far"
CONCURRENCY, BATCH_ROWS = 4, 64
DELAYS_MS = (0, 20)
_START_S = 30.0


def main() -> None:
    parser = argparse.ArgumentParser(description="Rows/s through a remote model, beside a direct loop.")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    cells = []
    for delay_ms in DELAYS_MS:
        with ExitStack() as stack:
            work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ml_udf-bench-")))
            url = stack.enter_context(endpoint_apart(delay_ms / 1000))
            cells.append(cell(stack, work, url, delay_ms, options.rows, options.rounds))
    write_json("remote", {"concurrency": CONCURRENCY, "batch_rows": BATCH_ROWS, "cells": cells})


def cell(stack: ExitStack, work: Path, url: str, delay_ms: int, rows: int, rounds: int) -> dict[str, Any]:
    texts = [f"text number {number} about laksa" for number in range(rows)]
    expected = [label_of(text) for text in texts]
    folder = oip_model(work, url, concurrency=CONCURRENCY, batch_rows=BATCH_ROWS)
    ways: list[tuple[Series, Callable[[], Sequence[str]]]] = [
        (Series("client loop", rows), client_loop(stack, folder, url, texts)),
        (Series("duckdb", rows), through_sql(stack, work, folder, url, texts)),
    ]
    load = []
    for _ in range(rounds):
        load.append(os.getloadavg()[0])
        for series, ask in ways:
            began_s = time.perf_counter()
            answers = ask()
            series.rows_per_s.append(rows / (time.perf_counter() - began_s))
            assert list(answers) == expected, f"{series.name} answers otherwise"
    direct, sql = series_of = [series for series, _ in ways]
    title = f"an endpoint that takes {delay_ms} ms a request; {BATCH_ROWS} rows each, {CONCURRENCY} at a time"
    print_series(title, series_of, against=direct)
    middle, low, high = ratio(sql, direct)
    console.print(f"SQL / client loop: {middle:.2f} ({low:.2f} to {high:.2f}); load {max(load):.1f}\n")
    return {
        "delay_ms": delay_ms,
        "rows": rows,
        "rows_per_s": {series.name: series.rows_per_s for series in series_of},
        "sql_of_client_loop": [middle, low, high],
        "load": load,
    }


def client_loop(
    stack: ExitStack, folder: Path, url: str, texts: Sequence[str]
) -> Callable[[], Sequence[str]]:
    network = open_remote(read_manifest(str(folder)), Settings(device="remote", allow_remote=(url,)))
    stack.callback(network.close)
    step = CONCURRENCY * BATCH_ROWS

    def ask() -> Sequence[str]:
        found: list[str] = []
        for start in range(0, len(texts), step):
            rows = [text.encode() for text in texts[start : start + step]]
            found += [CLASSES[best] for best in network.scores(rows, lambda: False).argmax(axis=1)]
        return found

    return ask


def through_sql(
    stack: ExitStack, work: Path, folder: Path, url: str, texts: Sequence[str]
) -> Callable[[], Sequence[str]]:
    server = stack.enter_context(inference_server(work / "home", flags=[ANEW, f"--allow-remote={url}"]))
    server.deploy(folder, FUNCTION)
    con = stack.enter_context(duckdb.connect())
    con.execute("CREATE TABLE texts(number INTEGER, text VARCHAR)")
    con.execute(
        "INSERT INTO texts SELECT * FROM (SELECT unnest(?), unnest(?))", [[*range(len(texts))], [*texts]]
    )
    ml_udf.duckdb.register(con, server.url, functions=(FUNCTION,))

    def ask() -> Sequence[str]:
        return [
            value
            for (value,) in con.execute(f"SELECT {FUNCTION}(text) FROM texts ORDER BY number").fetchall()
        ]

    return ask


@contextmanager
def endpoint_apart(delay_s: float) -> Iterator[str]:
    """The URL of one in a process of its own: it shares no interpreter with who asks."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=listen, args=(there, delay_s), daemon=True)
    process.start()
    try:
        if not here.poll(_START_S):
            raise RuntimeError("the endpoint did not start")
        yield here.recv()
    finally:
        process.terminate()
        process.join()


def listen(told: Connection, delay_s: float) -> None:
    """Serves until it is ended."""
    running = Endpoint()

    def wait(_: Handler) -> bool:
        running.requests.clear()  # it keeps what it was asked, for tests
        if delay_s:
            time.sleep(delay_s)
        return False

    running.before = wait
    told.send(running.url)
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    main()
