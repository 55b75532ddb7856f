"""`python -m tests.benchmarks.tuning_workers`: one and the same study with one worker and with two.

Real servers, worker processes and trials. The study (`study`, random, no early stop) gives each trial its
knobs and its seed whoever runs it, so both must train the same epochs to the same scores; checked. A trial
trains with one thread, so two workers use two cores. Shown: the wall time of each, their ratio, and where the
rest of a factor of two went: an epoch may take longer while another one runs beside it, and a worker may
wait, for the master between two epochs or for the last trial at the end.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import httpx
from rich.table import Table

import ml_udf.duckdb
from examples.foodlog.draw import Album, draw_album
from tests.benchmarks.report import console, write_json
from tests.inference_server import ANEW, InferenceServer, inference_server

_WORKERS = (1, 2)
_JOB_S = 300.0


@dataclass(frozen=True)
class Run:
    """One study. epochs_s: what its epochs took, added up. scores: of each trial's epochs."""

    workers: int
    wall_s: float
    epochs_s: float
    scores: dict[str, list[float]]

    @property
    def busy(self) -> float:
        """The share of the workers' time that went into epochs."""
        return self.epochs_s / (self.workers * self.wall_s)


def main() -> None:
    parser = argparse.ArgumentParser(description="The same study with one worker process and with two.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=6, help="of each trial")
    parser.add_argument("--model", default="resnet")
    parser.add_argument("--size", type=int, default=64, help="pixels of a side")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ml_udf-bench-") as folder:
        photos = Path(folder) / "drawn"
        draw_album(photos, Album(images=400, rows=1))
        rounds = [
            [
                measure(Path(folder) / f"home-{number}-{workers}", photos, workers, options)
                for workers in _WORKERS
            ]
            for number in range(options.rounds)
        ]
    _report(rounds, options)


def measure(home: Path, photos: Path, workers: int, options: argparse.Namespace) -> Run:
    """The study on a server of its own, whose training processes have started before."""
    flags = [f"--workers={workers}", "--threads=1"]
    with inference_server(home, media_roots=[photos], flags=[ANEW, *flags]) as server:
        _register(server, sorted(photos.rglob("*.jpg")))
        _study(server, options.model, options.size, trials=2 * workers, epochs=1)  # warm
        began_s = time.perf_counter()
        events = _study(server, options.model, options.size, trials=options.trials, epochs=options.epochs)
        wall_s = time.perf_counter() - began_s
    scores: dict[str, list[float]] = {}
    for event in events:
        scores.setdefault(str(event["trial"]), []).append(event["score"])
    used = len({event["worker"] for event in events})
    if len(events) != options.trials * options.epochs or used != workers:
        raise SystemExit(f"{len(events)} epochs were trained by {used} of {workers} workers")
    return Run(workers, wall_s, sum(event["took_s"] for event in events), scores)


def _register(server: InferenceServer, photos: Sequence[Path]) -> None:
    con = duckdb.connect()
    con.execute("CREATE TABLE photos (image_path VARCHAR, label VARCHAR)")
    con.executemany(
        "INSERT INTO photos VALUES (?, ?)", [(str(path), f"class {at % 4}") for at, path in enumerate(photos)]
    )
    registration = ml_udf.duckdb.register(con, server.url)
    con.execute(
        "SELECT ml_udf.create_dataset('photos', $$SELECT image_path, label FROM photos$$,"
        " target => 'label', key => 'image_path')"
    ).fetchall()
    registration.close()
    con.close()


def _study(
    server: InferenceServer, model: str, size: int, *, trials: int, epochs: int
) -> list[dict[str, Any]]:
    """Every epoch's event of a study that trains so many trials for so many epochs each."""
    form = {
        "dataset": "photos",
        "models": [model],
        "policy": "study",
        "budget": trials * epochs,
        "max_epochs": epochs,
        "max_trials": trials,  # else a worker that is free early shares the last epochs with one more trial
        "patience": epochs,
        "size": size,
        "seed": 7,
    }
    with httpx.Client(base_url=server.url, timeout=_JOB_S) as client:
        job = client.post("/v1/jobs", json=form).raise_for_status().json()["id"]
        with client.stream("GET", f"/v1/jobs/{job}/events") as stream:
            events = [json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: ")]
        told = client.get(f"/v1/jobs/{job}").raise_for_status().json()
    if events[-1].get("state") != "done":
        raise SystemExit(f"the job ended as {events[-1]}")
    found = [event for event in events if event["event"] == "epoch"]
    if told["epochs_used"] != trials * epochs:
        raise SystemExit(f"{told['epochs_used']} epochs were charged, not {trials * epochs}")
    return found


def _report(rounds: Sequence[Sequence[Run]], options: argparse.Namespace) -> None:
    for one, two in rounds:
        if one.scores != two.scores:
            raise SystemExit(f"two workers found other scores than one: {one.scores} {two.scores}")
    columns = list(zip(*rounds, strict=True))
    table = Table("workers", "wall, s", "an epoch, s", "workers' time in epochs")
    total = options.trials * options.epochs
    for workers, runs in zip(_WORKERS, columns, strict=True):
        table.add_row(
            str(workers),
            f"{statistics.median(run.wall_s for run in runs):.1f}",
            f"{statistics.median(run.epochs_s for run in runs) / total:.3f}",
            f"{statistics.median(run.busy for run in runs):.1%}",
        )
    ratios = [one.wall_s / two.wall_s for one, two in rounds]
    slower = [two.epochs_s / one.epochs_s for one, two in rounds]
    console.print(table)
    console.print(
        f"two workers are {statistics.median(ratios):.2f} times as fast ({min(ratios):.2f} to"
        f" {max(ratios):.2f}); an epoch beside another takes {statistics.median(slower):.2f} times as long"
    )
    result = {
        "model": options.model,
        "size": options.size,
        "trials": options.trials,
        "epochs": options.epochs,
        "rounds": [
            [
                {"workers": run.workers, "wall_s": run.wall_s, "epochs_s": run.epochs_s, "busy": run.busy}
                for run in runs
            ]
            for runs in rounds
        ],
        "speed_up": {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)},
        "epoch_beside_another": statistics.median(slower),
    }
    write_json("tuning_workers", result)


if __name__ == "__main__":
    main()
