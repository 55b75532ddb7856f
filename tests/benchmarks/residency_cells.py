"""Open loop of `make bench-residency`: cells drawn at random, the contenders, and one run of one in one cell.

A cell: 5 to 1,000 models on one device, or on 2 to 8, of which some fit; what comes, how much, how long a
model takes to load and a batch to run, how far l̂ and the load times are off. All is drawn from the cell's
number and its set, so constants can be set on cells that the report never sees, and every contender gets the
very same rows at the same times. Sizes are in thousandths of the mean model.

Load is what the rows that come would take in batches of 4, as a share of what all devices could do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from random import Random
from typing import Any

from server.scheduling.arbitration import Arbitration, MostInTime, least_recently_served
from server.scheduling.simulation.arrivals import bursty, poisson
from server.scheduling.simulation.simulator import (
    FunctionLoad,
    SimulatedDevice,
    SimulationResult,
    Workload,
    simulate,
)
from tests.benchmarks.schedule_cases import Affine

__all__ = [
    "ABLATIONS",
    "BOUND",
    "CONTENDERS",
    "OURS",
    "PATTERNS",
    "Cell",
    "Contender",
    "drawn_cell",
    "run",
    "workload",
]

MAX_BATCH = 32
MEAN_BYTES = 1000
PATTERNS = ("Zipf", "cyclic", "bursts", "shifting")
_BLOCKS = 12  # of a run, for the interval of a difference within one cell
_MOST_ROWS_PER_S = (
    50,
    30,
)  # and so many more for each device: so that a cell is simulated in a second or two


_IN_TIME = MostInTime()


@dataclass(frozen=True)
class Contender:
    """A placement policy and how it is run. fits: every device holds everything.

    It goes to another process by its name: compiled, a rule of the scheduler's cannot be sent.
    """

    name: str
    placement: str
    loads_block: bool = False
    fits: bool = False
    arbitration: Arbitration = _IN_TIME
    options: Mapping[str, Any] = field(default_factory=dict)

    def __reduce__(self) -> tuple[Callable[[str], Contender], tuple[str]]:
        return _named, (self.name,)


OURS = "value"
BOUND = "everything resident"
CONTENDERS = (
    Contender(BOUND, "lru", fits=True),
    Contender(OURS, "value"),
    Contender("clockwork", "clockwork"),
    Contender("lru (with protection)", "lru"),
    Contender("lru, overlapped", "lru-overlapped"),
    Contender("lru, blocking", "lru-blocking", loads_block=True, arbitration=least_recently_served),
    Contender("lfu-da", "lfu-da"),
    Contender("gdsf", "gdsf"),
    Contender("modelmesh", "modelmesh"),
)
ABLATIONS = tuple(
    Contender(f"value without {title}", OURS, options={part: False})
    for part, title in (
        ("savable", "savable rows"),
        ("rates", "rates"),
        ("chain", "the chain"),
        ("prefetch", "prefetch"),
        ("aborts", "aborts"),
    )
)
_BY_NAME = {one.name: one for one in (*CONTENDERS, *ABLATIONS)}


def _named(name: str) -> Contender:
    return _BY_NAME[name]


@dataclass(frozen=True)
class Cell:
    """One case. load_s: of the mean model. l_hat, told: predicted / true, of batches and of loads."""

    seed: str
    pattern: str
    devices: int
    models: int
    fit: float  # share of all bytes that all devices hold together
    mixed_sizes: bool
    zipf: float
    load: float
    goal_s: float
    load_s: float
    batch_s: float  # l(4), the mean over models
    fixed_share: float  # of l(4) that does not depend on the batch
    rows_per_s: float
    seconds: float
    l_hat: float
    told: float

    @property
    def title(self) -> str:
        return (
            f"{self.seed}: {self.pattern}, {self.devices} devices, {self.models} models, {self.fit:.0%} fit, "
            f"{self.load:.0%} load, {1000 * self.load_s:.0f} ms a load, goal {1000 * self.goal_s:.0f} ms"
        )


def drawn_cell(of: str, number: int, several: bool, busier: float = 1.0) -> Cell:
    """The cell of that number of a set; `several`: on 2 to 8 devices.

    busier: at most so many times the rows a second, each of which takes so much less.
    """
    seed = f"{of} {'several' if several else 'one'} {number}"
    draw = Random(seed)
    devices = draw.randint(2, 8) if several else 1
    models = round(_log_uniform(draw, 5, 1000))
    load = draw.uniform(0.3, 1.1)
    most_rows_per_s = busier * (_MOST_ROWS_PER_S[0] + _MOST_ROWS_PER_S[1] * devices)
    least_s = 4 * load * devices / most_rows_per_s
    goal_s = _log_uniform(draw, max(0.1, 5 * least_s), max(1.0, 10 * least_s))
    batch_s = _log_uniform(draw, max(0.02 * goal_s, least_s), 0.2 * goal_s)
    # As many as a few models a device, as much as almost all.
    fit = _log_uniform(draw, min(0.6, max(0.05, 3 * devices / models)), 0.9)
    return Cell(
        seed=seed,
        pattern=PATTERNS[number % len(PATTERNS)],
        devices=devices,
        models=models,
        fit=fit,
        mixed_sizes=draw.random() < 0.5,
        zipf=draw.uniform(0.6, 1.4),
        load=load,
        goal_s=goal_s,
        load_s=_log_uniform(draw, 0.01, 0.4),
        batch_s=batch_s,
        fixed_share=draw.uniform(0.4, 0.9),
        rows_per_s=load * devices * 4 / batch_s,
        seconds=15.0 if devices == 1 else 10.0,
        l_hat=draw.choice((0.7, 1.0, 1.3)),
        told=draw.choice((0.7, 1.0, 1.3)),
    )


def run(cell: Cell, contender: Contender) -> dict[str, Any]:
    """Shares of rows in their goal: of all, the mean over models, the worst model; and losses by time."""
    return _measured(cell, simulate(workload(cell, contender)))


def workload(cell: Cell, contender: Contender) -> Workload:
    """What that contender is run on in that cell."""
    draw = Random(f"{cell.seed} models")
    sizes = [_size(draw, cell.mixed_sizes) for _ in range(cell.models)]
    latencies = [_latency(draw, cell) for _ in range(cell.models)]
    room = max(max(sizes), round(cell.fit * sum(sizes) / cell.devices))
    functions = tuple(
        FunctionLoad(
            name=f"m{number}",
            arrivals_s=times_s,
            slo_s=cell.goal_s,
            max_batch=MAX_BATCH,
            latency_s=latency,
            predicted_s=latency.times(cell.l_hat),
            size_bytes=size,
        )
        for number, (times_s, latency, size) in enumerate(zip(_arrivals(cell), latencies, sizes, strict=True))
    )
    # A fifth of a load is the same for all sizes.
    device = SimulatedDevice(
        capacity_bytes=0 if contender.fits else room, link_bytes_per_s=MEAN_BYTES / (0.8 * cell.load_s)
    )
    devices = tuple(
        replace(device, name=f"device-{number}", resident=_held_first(sizes, room, number, cell, contender))
        for number in range(cell.devices)
    )
    return Workload(
        functions,
        devices,
        swap_s=0.2 * cell.load_s,
        arbitration=contender.arbitration,
        placement=contender.placement,
        placement_options=contender.options,
        loads_block=contender.loads_block,
        told_swaps=cell.told,
    )


def _held_first(
    sizes: Sequence[int], room: int, device: int, cell: Cell, contender: Contender
) -> tuple[str, ...]:
    """What a device begins with: each its own models, in the order of their numbers, which says nothing."""
    if contender.fits:
        return tuple(f"m{model}" for model in range(len(sizes)))
    held: list[str] = []
    for model in range(device, len(sizes), cell.devices):
        if sizes[model] <= room:
            held.append(f"m{model}")
            room -= sizes[model]
    return tuple(held)


def _measured(cell: Cell, result: SimulationResult) -> dict[str, Any]:
    asked = [one for one in result.functions.values() if one.offered]
    often = [one for one in asked if one.offered >= 10] or asked
    total = result.total
    lost = [0] * _BLOCKS
    for at_s in total.overdue_at_s:
        lost[min(_BLOCKS - 1, int(_BLOCKS * at_s / cell.seconds))] += 1
    return {
        "offered": total.offered,
        "goodput": total.goodput,
        "mean_model": sum(one.goodput for one in asked) / len(asked),
        "worst_model": min(one.goodput for one in often),
        "loads_per_s": result.swaps / result.duration_s,
        "lost": lost,
    }


def _log_uniform(draw: Random, low: float, high: float) -> float:
    return math.exp(draw.uniform(math.log(low), math.log(high)))


def _size(draw: Random, mixed: bool) -> int:
    return round(MEAN_BYTES * _log_uniform(draw, 0.25, 2.5)) if mixed else MEAN_BYTES


def _latency(draw: Random, cell: Cell) -> Affine:
    batch_s = cell.batch_s * _log_uniform(draw, 0.6, 1.6)
    return Affine(batch_s * cell.fixed_share, batch_s * (1 - cell.fixed_share) / 4)


def _arrivals(cell: Cell) -> list[list[float]]:
    """By model, when its rows come."""
    draw = Random(f"{cell.seed} rows")
    weights = [1 / (rank + 1) ** cell.zipf for rank in range(cell.models)]
    draw.shuffle(weights)  # what is loaded at the beginning is not what is popular
    total = sum(weights)
    if cell.pattern == "bursts":
        burst, share = draw.uniform(2.0, 5.0), draw.uniform(0.05, 0.18)
        period_s = draw.uniform(1.0, 6.0)
        return [
            bursty(
                draw,
                cell.rows_per_s * weight / total,
                cell.seconds,
                burst=burst,
                share=share,
                period_s=period_s,
            )
            for weight in weights
        ]
    times_s = poisson(draw, cell.rows_per_s, cell.seconds)
    if cell.pattern == "cyclic":
        chosen = _cyclic(draw, cell, times_s)
    elif cell.pattern == "shifting":
        chosen = _shifting(draw, weights, times_s)
    else:
        chosen = draw.choices(range(cell.models), weights, k=len(times_s))
    found: list[list[float]] = [[] for _ in range(cell.models)]
    for at_s, model in zip(times_s, chosen, strict=True):
        found[model].append(at_s)
    return found


def _cyclic(draw: Random, cell: Cell, times_s: Sequence[float]) -> list[int]:
    """One model after the other has its clump of rows; every tenth row is for any."""
    cycle = draw.sample(range(cell.models), min(cell.models, draw.randint(5, 40)))
    clump_s = _log_uniform(draw, 0.05, 0.5)
    return [
        draw.randrange(cell.models) if draw.random() < 0.1 else cycle[int(at_s / clump_s) % len(cycle)]
        for at_s in times_s
    ]


def _shifting(draw: Random, weights: list[float], times_s: Sequence[float]) -> list[int]:
    """Every few seconds a third of the models swap their popularity."""
    every_s = draw.uniform(2.0, 8.0)
    models, weights = range(len(weights)), list(weights)
    bounds = list(accumulate(weights))
    chosen: list[int] = []
    shifts = 0
    for at_s in times_s:
        while int(at_s / every_s) > shifts:
            shifts += 1
            moved = draw.sample(models, max(2, len(weights) // 3))
            for model, weight in zip(
                moved, draw.sample([weights[one] for one in moved], len(moved)), strict=True
            ):
                weights[model] = weight
            bounds = list(accumulate(weights))
        chosen.append(draw.choices(models, cum_weights=bounds)[0])
    return chosen
