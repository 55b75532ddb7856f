"""What `make bench-schedule` compares: the cells of load, the contenders, and one run of one in one cell.

Every contender gets what speaks for it: rows that expire are refused for all (but for Rafiki's greedy as its
paper has it, which refuses nothing), functions take turns as its paper says, and its options are the
paper's, but that `aimd` starts at the largest batch: a run is too short to grow to it. The same cell and seed
give every contender the very same arrivals, so that differences are paired.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from server.scheduling.arbitration import papers_turns
from server.scheduling.simulation.arrivals import bursty, poisson
from server.scheduling.simulation.simulator import FunctionLoad, SimulationResult, Workload, simulate

SLO_S = 0.05
MAX_BATCH = 64
BURST_PERIOD_S = 0.25  # a burst every quarter of a second, 75 ms long on the average, of 2.5 times the rate


@dataclass(frozen=True)
class Affine:
    """l(b) = fixed + per_row · b, seconds."""

    fixed_s: float
    per_row_s: float

    def __call__(self, rows: int) -> float:
        return self.fixed_s + self.per_row_s * rows

    def times(self, factor: float) -> Affine:
        return Affine(self.fixed_s * factor, self.per_row_s * factor)

    @property
    def capacity(self) -> float:
        """Rows per second at the largest batch."""
        return MAX_BATCH / self(MAX_BATCH)


ALIKE = (Affine(0.005, 0.00025),)
MIXED = (Affine(0.002, 0.0001), Affine(0.005, 0.00025), Affine(0.010, 0.0005), Affine(0.001, 0.0005))


@dataclass(frozen=True)
class Cell:
    """One case: how many functions share the device, how much comes and how, and how far l̂ is off."""

    functions: int
    load: float  # of the device's capacity at the largest batches
    arrivals: str  # "Poisson" or "bursty"
    mixed: bool
    l_hat: float = 1.0  # predicted / true

    @property
    def title(self) -> str:
        kind = "mixed" if self.mixed else "alike"
        return f"{self.functions:2d} {kind} {self.load:4.0%} {self.arrivals}"


@dataclass(frozen=True)
class Contender:
    """A batching rule with its options, and why it loses where it does."""

    name: str
    policy: str
    refuses: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""


OURS = "goodput"
CONTENDERS = (
    Contender(
        "greedy, no refusal",
        "greedy",
        refuses=False,
        why="answers expired rows first, so that under overload every row behind them expires too",
    ),
    Contender(
        "greedy",
        "greedy",
        why="waits until a head is nearly overdue, then runs it in the largest batch: the last moment is too "
        "late where the worker is shared or busy",
    ),
    Contender(
        "aimd",
        "aimd",
        options={"start": MAX_BATCH},
        why="caps a batch by its own latency and not by the wait before it, and answers the oldest rows "
        "first, which are those already lost",
    ),
    Contender("quantile", "quantile", why="as aimd, with a cap that is found sooner"),
    Contender(
        "ewma",
        "ewma",
        why="decides once a quantum whatever the worker does, knows no deadline, and is FIFO",
    ),
    Contender(
        "ewma-code",
        "ewma-code",
        why="its timer starts anew with every row: a function with more than a row per quantum starves",
    ),
    Contender(
        "window",
        "window",
        why="first-rate with one function; with several, taking turns spends the worker on small batches and "
        "lets large ones expire, and it trusts a wrong profile",
    ),
    Contender(
        "clockwork",
        "clockwork",
        why="only whole sizes run, so up to half of a queue waits for the next batch; and the earliest start "
        "says nothing of how many rows it saves",
    ),
    Contender(OURS, "goodput"),
)


def cells(
    functions: Sequence[int] = (1, 4, 8, 32),
    loads: Sequence[float] = (0.3, 0.6, 0.9, 1.1, 1.5),
    l_hats: Sequence[float] = (1.0, 0.7, 1.3),
) -> list[Cell]:
    """Every combination; one function alone is not mixed."""
    return [
        Cell(count, load, arrivals, mixed, l_hat)
        for l_hat in l_hats
        for count in functions
        for mixed in (False, True)
        for load in loads
        for arrivals in ("Poisson", "bursty")
        if not (mixed and count == 1)
    ]


def run(cell: Cell, contender: Contender, seed: int, rows: int) -> SimulationResult:
    """One simulation, of about `rows` rows in all."""
    latencies = MIXED if cell.mixed else ALIKE
    truths = [latencies[number % len(latencies)] for number in range(cell.functions)]
    rates = [truth.capacity * cell.load / cell.functions for truth in truths]
    duration_s = rows / sum(rates)
    functions = tuple(
        FunctionLoad(
            name=f"f{number}",
            arrivals_s=arrivals_of(cell, seed, number, rate, duration_s),
            slo_s=SLO_S,
            max_batch=MAX_BATCH,
            latency_s=truth,
            predicted_s=truth.times(cell.l_hat),
            refuses=contender.refuses,
            policy=contender.policy,
            policy_options=contender.options,
        )
        for number, (truth, rate) in enumerate(zip(truths, rates, strict=True))
    )
    return simulate(Workload(functions, seed=seed, arbitration=papers_turns(contender.policy)))


def arrivals_of(cell: Cell, seed: int, number: int, rate: float, duration_s: float) -> list[float]:
    """When rows of the function of that number come."""
    random = Random(f"{seed} {number}")
    if cell.arrivals == "bursty":
        return bursty(random, rate, duration_s, period_s=BURST_PERIOD_S)
    return poisson(random, rate, duration_s)
