"""`make bench-training-beside`: what a study on a worker takes away from those who ask the same worker.

A steady open-loop load of single photos, which have a latency goal, alone and beside a study that trains as
fast as it may, in turn. Shown: the callers' p50 and p99, their ratio, and the epochs that the study got on
with meanwhile. Latency counts from when a row was due to leave, so what a busy machine does to the load
generator is in both.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import duckdb
from rich.table import Table

import ml_udf.duckdb
from examples.foodlog.draw import Album, draw_album
from server.scheduling.simulation.arrivals import poisson
from tests.benchmarks.load_generator import Replay, replay, request_bytes
from tests.benchmarks.report import console, write_json
from tests.inference_server import ANEW, InferenceServer, inference_server
from tests.models import image_model

_FUNCTION = "udf_beside"
_GOAL = 1.5
_START_S = 60.0


def main() -> None:
    parser = argparse.ArgumentParser(description="Callers' latency beside a study on the same worker.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=12.0, help="of each measurement")
    parser.add_argument("--rate", type=float, default=40.0, help="rows per second")
    parser.add_argument("--architecture", default="squeezenet", help="of the model that answers")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ml_udf-bench-") as folder:
        work = Path(folder)
        draw_album(work / "drawn", Album(images=400, rows=1))
        with inference_server(work / "home", media_roots=[work / "drawn"], flags=[ANEW]) as server:
            server.deploy(image_model(work / "made", "beside", options.architecture), _FUNCTION)
            run(server, sorted((work / "drawn").rglob("*.jpg")), options)


def run(server: InferenceServer, photos: Sequence[Path], options: argparse.Namespace) -> None:
    con = duckdb.connect()
    registration = ml_udf.duckdb.register(con, server.url)
    con.execute("CREATE TABLE photos (image_path VARCHAR, label VARCHAR)")
    con.executemany(
        "INSERT INTO photos VALUES (?, ?)", [(str(path), f"class {at % 4}") for at, path in enumerate(photos)]
    )
    con.execute(
        "SELECT ml_udf.create_dataset('photos', $$SELECT image_path, label FROM photos$$,"
        " target => 'label', key => 'image_path')"
    ).fetchall()
    arrivals_s = poisson(Random(1), options.rate, options.seconds)
    requests = _requests(server, photos)
    asyncio.run(replay(server.url, arrivals_s[: len(arrivals_s) // 4], requests))  # warm

    def measure() -> Replay:
        return asyncio.run(replay(server.url, arrivals_s, requests))

    rounds: list[dict[str, float]] = []
    for _ in range(options.rounds):
        alone = measure()
        job = _start_study(con)
        before = _epochs(con, job)
        beside = measure()
        trained = _epochs(con, job) - before
        con.execute(f"SELECT ml_udf.cancel({job})").fetchall()
        rounds.append({**_of("alone", alone), **_of("beside", beside), "epochs": trained})
    registration.close()
    _report(rounds, options)


def _start_study(con: duckdb.DuckDBPyConnection) -> int:
    """A study that trains: its first epoch is over."""
    ((job,),) = con.execute(
        "SELECT ml_udf.train('photos', task => 'image-classification', models => ['xception', 'resnet'],"
        " budget => '5000 epochs', max_epochs => 1000, size => 32)"
    ).fetchall()
    deadline_s = time.monotonic() + _START_S
    while not _epochs(con, job):
        if time.monotonic() > deadline_s:
            raise SystemExit(f"the study did not train within {_START_S:g} s")
        time.sleep(0.2)
    return int(job)


def _epochs(con: duckdb.DuckDBPyConnection, job: int) -> int:
    ((epochs,),) = con.execute("SELECT sum(epochs) FROM ml_udf.trials WHERE job_id = ?", [job]).fetchall()
    return int(epochs or 0)


def _requests(server: InferenceServer, photos: Sequence[Path]) -> Callable[[int], bytes]:
    def request(number: int) -> bytes:
        path = str(photos[number % len(photos)])
        row = {"name": "image_path", "shape": [1], "datatype": "BYTES", "data": [path]}
        return request_bytes(
            server.url, f"/v2/models/{_FUNCTION}/infer", json.dumps({"inputs": [row]}).encode()
        )

    return request


def _of(name: str, measured: Replay) -> dict[str, float]:
    if lost := measured.lost():
        raise SystemExit(f"{lost} rows of {len(measured.outcomes)} got no answer")
    return {
        f"{name}_p50_ms": 1000 * measured.quantile_s(0.5),
        f"{name}_p99_ms": 1000 * measured.quantile_s(0.99),
        f"{name}_refused": measured.refused(),
    }


def _report(rounds: list[dict[str, float]], options: argparse.Namespace) -> None:
    table = Table("", "alone", "beside a study", "ratio (least to greatest)")
    ratios: dict[str, Any] = {}
    for quantile in ("p50", "p99"):
        pairs = [(one[f"alone_{quantile}_ms"], one[f"beside_{quantile}_ms"]) for one in rounds]
        shares = [beside / alone for alone, beside in pairs]
        ratios[quantile] = {"median": statistics.median(shares), "min": min(shares), "max": max(shares)}
        table.add_row(
            f"{quantile}, ms",
            *(f"{statistics.median(values):.1f}" for values in zip(*pairs, strict=True)),
            f"{statistics.median(shares):.2f} ({min(shares):.2f} to {max(shares):.2f})",
        )
    console.print(table)
    verdict = "met" if ratios["p99"]["median"] <= _GOAL else "MISSED"
    epochs = statistics.median(one["epochs"] for one in rounds)
    console.print(f"p99 ratio, goal {_GOAL:g}: {verdict}; the study trained {epochs:.0f} epochs beside it")
    write_json("training_beside", {"rate": options.rate, "rounds": rounds, "ratios": ratios})


if __name__ == "__main__":
    main()
