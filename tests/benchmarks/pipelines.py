"""`make bench-pipelines`: how the goal of a pipeline is best split among its stages.

Simulated: detect → classify, by the scheduler that serves. Shares of the calls in goal, by load (of what one
device can do), by which stage is the dear one, by how the number of things in a picture varies (γ of Nexus is
three on average), and by how short the goal is. Seeds are paired: each split has the same arrivals. Live: a
server with a detector and a classifier of known times, asked at random; each split in turn, on one machine.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from rich.table import Table

from server.scheduling.simulation.arrivals import poisson
from server.scheduling.simulation.pipelines import PipelineLoad, SimulatedStage, simulate_pipeline
from server.scheduling.splitting import SPLITS
from tests.benchmarks.figures import apart, give_way, spread, wide
from tests.benchmarks.report import say, write_json

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
_GOALS = (3.0, 8.0)  # times what a call takes alone


def main() -> None:
    flags = _parser().parse_args()
    give_way()
    seeds = range(_FIRST_SEED, _FIRST_SEED + (2 if flags.quick else 10))
    calls = 150 if flags.quick else _CALLS
    cells = [
        _cell(costs, fan_out, load, goal, seeds, calls)
        for costs, fan_out, goal, load in itertools.product(_COSTS, _FAN_OUTS, _GOALS, _LOADS)
    ]
    _print_cells(cells)
    write_json("pipelines", {"calls": calls, "seeds": list(seeds), "cells": cells})


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


def _line(first_s: float, row_s: float) -> Callable[[int], float]:
    return lambda rows: first_s + row_s * rows


def _geometric(random: Random, mean: float) -> int:
    """From 0 on, so many on average."""
    return math.floor(math.log(1 - random.random()) / math.log(mean / (1 + mean)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer calls and seeds: does it run?")
    return parser


if __name__ == "__main__":
    main()
