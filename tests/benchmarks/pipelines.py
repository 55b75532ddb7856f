"""`make bench-pipelines`: how the goal of a pipeline is best split among its stages.

Simulated: detect → classify, by the scheduler that serves. Shares of the calls in goal, by load (of what one
device can do), by which stage is the dear one, by how the number of things in a picture varies (γ of Nexus is
three on average), and by how short the goal is. Seeds are paired: each split has the same arrivals. Live: a
server asked of trays with three dishes, at random: detect → crop → classify, by a detector and a classifier
of known times, the crops as ever; each split in turn, on one machine.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

from rich.table import Table

from examples.foodlog.dishes import DISHES
from examples.foodlog.trays import take_tray
from server.scheduling.simulation.arrivals import poisson
from server.scheduling.simulation.pipelines import PipelineLoad, SimulatedStage, simulate_pipeline
from server.scheduling.splitting import SPLITS
from tests.benchmarks.figures import apart, give_way, spread, wide
from tests.benchmarks.report import say, write_json
from tests.inference_server import ANEW, InferenceServer, inference_server
from tests.models import write_manifest

_MEAN_OBJECTS = 3
_CALLS = 250
_FIRST_SEED = 1_000  # nothing is tuned on these

# What a batch takes, seconds: (to begin with, for each row), of the detector and of the classifier.
_COSTS = {
    "detector dear": ((0.010, 0.010), (0.002, 0.001)),
    "alike": ((0.005, 0.006), (0.005, 0.002)),
    "classifier dear": ((0.003, 0.002), (0.008, 0.006)),
}
_FAN_OUTS: dict[str, Callable[[Random], int]] = {
    "always 3": lambda random: _MEAN_OBJECTS,
    "geometric": lambda random: _geometric(random, _MEAN_OBJECTS),
    "0 or 12": lambda random: 12 if random.random() < 0.25 else 0,
}
_LOADS = (0.4, 0.7, 0.9)
_LIVE_RATE, _LIVE_GOAL_MS = 35.0, 150.0
_GOALS = (3.0, 8.0)  # times what a call takes alone


def main() -> None:
    flags = _parser().parse_args()
    give_way()
    seeds = range(_FIRST_SEED, _FIRST_SEED + (2 if flags.quick else 10))
    calls = 150 if flags.quick else _CALLS
    cells = (
        []
        if flags.live
        else [
            _cell(costs, fan_out, load, goal, seeds, calls)
            for costs, fan_out, goal, load in itertools.product(_COSTS, _FAN_OUTS, _GOALS, _LOADS)
        ]
    )
    if cells:
        _print_cells(cells)
    live = _live(3.0 if flags.quick else 6.0, 2 if flags.quick else 5)
    _print_live(live)
    write_json("pipelines", {"calls": calls, "seeds": list(seeds), "cells": cells, "live": live})


def _cell(
    costs: str, fan_out: str, load: float, goal: float, seeds: Sequence[int], calls: int
) -> dict[str, Any]:
    detector, classifier = _COSTS[costs]
    stages = (
        SimulatedStage("detect", _line(*detector), 32, _FAN_OUTS[fan_out]),
        SimulatedStage("classify", _line(*classifier), 64),
    )
    alone_s = sum(detector) + classifier[0] + _MEAN_OBJECTS * classifier[1]
    # What a device can do at the most: full batches of both.
    row_s = stages[0].latency_s(32) / 32 + _MEAN_OBJECTS * stages[1].latency_s(64) / 64
    rate, slo_s = load / row_s, goal * alone_s
    found: dict[str, list[float]] = {split: [] for split in SPLITS}
    for seed, split in itertools.product(seeds, SPLITS):
        arrivals = poisson(Random(f"{seed} arrivals"), rate, calls / rate)
        told = simulate_pipeline(PipelineLoad(stages, arrivals, slo_s, split, jitter=0.1, seed=seed))
        found[split].append(100 * told.in_goal)
    means = ", ".join(f"{split} {statistics.mean(each):.1f}" for split, each in found.items())
    say(f"{costs}, {fan_out}, goal ×{goal:g}, load {load:.0%}: {means}")
    return {"costs": costs, "fan_out": fan_out, "load": load, "goal": goal, "in_goal": found}


def _print_cells(cells: Sequence[dict[str, Any]]) -> None:
    table = Table(
        *("dear", "things", "goal", "load", *SPLITS, "none − even", "none − nexus"),
        title="calls in goal, %; in the simulator",
    )
    for cell in cells:
        found = cell["in_goal"]
        table.add_row(
            *(cell["costs"], cell["fan_out"], f"×{cell['goal']:g}", f"{cell['load']:.0%}"),
            *(spread(found[split]) for split in SPLITS),
            *(apart(found["none"], found[split]) for split in ("even", "nexus")),
        )
    means = {split: statistics.mean(math.fsum(cell["in_goal"][split]) for cell in cells) for split in SPLITS}
    seeds = len(cells[0]["in_goal"]["none"])
    table.add_row("all", "", "", "", *(f"{means[split] / seeds:.2f}" for split in SPLITS), "", "")
    wide.print(table)


# ── live ─────────────────────────────────────────────────────────────────────────────────────────────


def _live(seconds: float, rounds: int) -> dict[str, Any]:
    """Of each split and round, the share of the calls in goal, %; in turn, at the same arrivals."""
    found: dict[str, list[float]] = {split: [] for split in SPLITS}
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        picture, _ = take_tray(sorted(DISHES)[:_MEAN_OBJECTS], 160, 1, 0)
        with inference_server(folder / "home", flags=[ANEW, "--workers=1"]) as server:
            for model, task, options in (
                ("finds", "object-detection", {"boxes": _MEAN_OBJECTS, "delay_ms": 5, "row_delay_ms": 6}),
                ("names", "image-classification", {"delay_ms": 5, "row_delay_ms": 2}),
            ):
                made = write_manifest(
                    folder,
                    model,
                    task=task,
                    architecture="hashing",
                    architecture_options=options,
                    input={"form": "path"},
                )
                server.deploy(made, f"udf_{model}", max_batch=32)
            with server.client() as client:
                for split in SPLITS:
                    stages = ["udf_finds", {"crop": {}}, "udf_names"]
                    body = {"pipeline": stages, "slo_ms": _LIVE_GOAL_MS, "goal_split": split}
                    client.put(f"/v1/functions/udf_{split}", body)
                    for number in range(20):  # l̂ is learned
                        client.predict(f"udf_{split}", [picture + bytes([number])], input_name="image")
            for number, split in itertools.product(range(rounds), SPLITS):
                found[split].append(_asked(server, f"udf_{split}", picture, seconds, number))
    told = {"goal_ms": _LIVE_GOAL_MS, "rate": _LIVE_RATE, "seconds": seconds, "in_goal": found}
    return told | {"load": [load, os.getloadavg()[0]]}


def _asked(server: InferenceServer, function: str, picture: bytes, seconds: float, number: int) -> float:
    """The share of calls that were answered in the goal, %: one picture each, at random times."""
    arrivals = poisson(Random(f"{number} live"), _LIVE_RATE, seconds)
    with server.client() as client, ThreadPoolExecutor(32) as pool:
        began_s = time.monotonic()

        def ask(at_s: float) -> bool:
            time.sleep(max(0.0, began_s + at_s - time.monotonic()))
            client.predict(function, [picture + str(at_s).encode()], input_name="image")
            return time.monotonic() - began_s - at_s <= _LIVE_GOAL_MS / 1000

        kept = list(pool.map(ask, arrivals))
    return 100 * statistics.mean(kept)


def _print_live(live: dict[str, Any]) -> None:
    found = live["in_goal"]
    table = Table(
        *(*SPLITS, "none − even", "none − nexus"),
        title=f"calls in goal, %; live, {live['rate']:g} pictures/s, {live['goal_ms']:g} ms",
    )
    table.add_row(
        *(spread(found[split]) for split in SPLITS),
        *(apart(found["none"], found[split]) for split in ("even", "nexus")),
    )
    wide.print(table)


def _line(first_s: float, row_s: float) -> Callable[[int], float]:
    return lambda rows: first_s + row_s * rows


def _geometric(random: Random, mean: float) -> int:
    """From 0 on, so many on average."""
    return math.floor(math.log(1 - random.random()) / math.log(mean / (1 + mean)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer calls and seeds: does it run?")
    parser.add_argument("--live", action="store_true", help="the live part alone")
    return parser


if __name__ == "__main__":
    main()
