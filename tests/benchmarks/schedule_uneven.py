"""The third part of `make bench-schedule`: overload on devices whose batches take now more, now less.

One function with a goal that is its rows' deadline, up to three times as much as its devices do in full
batches, and what a batch takes off by a jitter in ln. Three devices as a processor's cores (6 + 1.1 b ms, 48
rows, a goal of 120 ms), or one as a GPU (3 + 0.12 b ms, 128 rows, 40 ms); neither they nor the seeds were
used to choose a constant. l̂ is learned. What counts is the rows answered in time per second, of what the
devices do in full batches; the same seed gives every rule the same arrivals. Simulated: the very core that
serves decides.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from random import Random

from rich.table import Table

from server.scheduling.arbitration import papers_turns
from server.scheduling.latency_model import LatencyModel
from server.scheduling.simulation.arrivals import bursty, poisson
from server.scheduling.simulation.simulator import FunctionLoad, SimulatedDevice, Workload, simulate
from tests.benchmarks.report import console, write_json
from tests.benchmarks.schedule import half_width
from tests.benchmarks.schedule_cases import CONTENDERS, OURS, Affine

_RULES = (OURS, "window", "clockwork", "aimd", "quantile")
_PROFILED = (1, 4, 8, 16)  # and the largest
_PERIOD_S = 1.0
_TITLE = "in time per second, of the capacity, % (late, of those answered)"


@dataclass(frozen=True)
class Kind:
    """So many devices alike."""

    name: str
    devices: int
    latency_s: Affine
    max_batch: int
    slo_s: float

    @property
    def capacity(self) -> float:
        """Rows per second in full batches."""
        return self.devices * self.max_batch / self.latency_s(self.max_batch)


KINDS = (
    Kind("cores", 3, Affine(0.006, 0.0011), 48, 0.12),
    Kind("a GPU", 1, Affine(0.003, 0.00012), 128, 0.04),
)


@dataclass(frozen=True)
class Cell:
    """load: of the capacity · jitter: standard deviation of ln(what a batch takes / l(b))."""

    kind: Kind
    arrivals: str  # "Poisson" or "bursty"
    load: float
    jitter: float


@dataclass(frozen=True)
class Run:
    """in_time: per second, of the capacity · late: of those that were answered."""

    in_time: float
    late: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--rules", default=",".join(_RULES))
    flags = parser.parse_args()
    rules = tuple(flags.rules.split(","))
    chosen = [
        Cell(kind, arrivals, load, jitter)
        for kind in KINDS
        for jitter in (0.0, 0.15, 0.3, 0.5)
        for arrivals in ("Poisson", "bursty")
        for load in (0.95, 1.5, 3.0)
    ]
    jobs = [
        (cell, rule, seed, flags.seconds) for cell in chosen for rule in rules for seed in range(flags.seeds)
    ]
    runs: dict[tuple[Cell, str], list[Run]] = {}
    with ProcessPoolExecutor(flags.jobs, initializer=os.nice, initargs=(10,)) as pool:
        for (cell, rule, _, _), run in zip(jobs, pool.map(_one, jobs, chunksize=flags.seeds), strict=True):
            runs.setdefault((cell, rule), []).append(run)
    _print(chosen, rules, runs)
    write_json(
        "schedule-uneven",
        {
            "cells": [
                {**asdict(cell), "rule": rule, "runs": [asdict(run) for run in runs[cell, rule]]}
                for cell in chosen
                for rule in rules
            ]
        },
    )


def _one(job: tuple[Cell, str, int, float]) -> Run:
    """One simulation."""
    cell, rule, seed, seconds = job
    kind = cell.kind
    contender = next(one for one in CONTENDERS if one.name == rule)
    random, rate = Random(f"uneven {seed} {kind.name}"), cell.load * kind.capacity
    if cell.arrivals == "bursty":
        arrivals_s = bursty(random, rate, seconds, period_s=_PERIOD_S)
    else:
        arrivals_s = poisson(random, rate, seconds)
    function = FunctionLoad(
        name="f",
        arrivals_s=arrivals_s,
        slo_s=kind.slo_s,
        max_batch=kind.max_batch,
        latency_s=kind.latency_s,
        predicted_s=LatencyModel({rows: kind.latency_s(rows) for rows in (*_PROFILED, kind.max_batch)}),
        policy=contender.policy,
        policy_options={"start": kind.max_batch} if contender.policy == "aimd" else contender.options,
    )
    devices = tuple(SimulatedDevice(f"d{n}", in_flight_limit=2, kind="one") for n in range(kind.devices))
    turns = papers_turns(contender.policy)
    workload = Workload((function,), devices, jitter=cell.jitter, seed=1000 + seed, arbitration=turns)
    result = simulate(workload).functions["f"]
    answered = result.good + result.late
    return Run(result.good / seconds / kind.capacity, result.late / max(1, answered))


def _print(cells: Sequence[Cell], rules: Sequence[str], runs: dict[tuple[Cell, str], list[Run]]) -> None:
    table = Table("", *rules, f"{OURS} − best other", title=_TITLE)
    for cell in cells:
        means = {rule: statistics.mean(run.in_time for run in runs[cell, rule]) for rule in rules}
        late = {rule: statistics.mean(run.late for run in runs[cell, rule]) for rule in rules}
        best = max((rule for rule in rules if rule != OURS), key=means.__getitem__, default=OURS)
        gains = [
            100 * (mine.in_time - theirs.in_time)
            for mine, theirs in zip(runs[cell, OURS], runs[cell, best], strict=True)
        ]
        table.add_row(
            f"{cell.kind.name}, {cell.arrivals}, jitter {cell.jitter:g}, load {cell.load:g}",
            *(f"{100 * means[rule]:.1f} ({100 * late[rule]:.0f})" for rule in rules),
            f"{statistics.mean(gains):+.1f} ± {half_width(gains):.1f} ({best})",
        )
    console.print(table)
    for jitter in dict.fromkeys(cell.jitter for cell in cells):
        for rule in rules:
            theirs = [run.in_time for cell in cells if cell.jitter == jitter for run in runs[cell, rule]]
            console.print(f"jitter {jitter:g}, {rule}: {100 * statistics.mean(theirs):.1f} in the mean")


if __name__ == "__main__":
    main()
