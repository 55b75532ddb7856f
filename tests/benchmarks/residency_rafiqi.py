"""Closed loop of `make bench-residency`: Rafiqi's Figures 2 to 4, for every policy and several clients.

Five models on a device with four places; a row takes 22.5 ms to run and a model 90 ms to load (Rafiqi §4.3
and §6.2: 20 % of the throughput without swaps). Models are asked for in sequence, uniformly, or by Zipf's law
with exponent 1.1. Rows have no goal. What is given is the throughput as a share of that with five places and
as many clients; larger batches can bring it above 1.

The optimum at one client: the fewest seconds in which the sequence, all of it known from the beginning, can
be answered one row after the other, by any loads on the link beside the runs, prefetches among them. It is
found exactly: all times are multiples of a run's, and of two courses that have reached the same places and
link at the same time the one with more rows answered is never worse.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from ml_udf.cli.chart import line_chart
from server.scheduling.simulation.simulator import (
    ClosedLoop,
    FunctionLoad,
    SimulatedDevice,
    Workload,
    simulate,
)
from tests.benchmarks.residency_cells import Contender
from tests.benchmarks.schedule_cases import Affine

__all__ = [
    "ACCESS",
    "CLIENTS",
    "LATENCY",
    "MODELS",
    "SWAP_S",
    "chart",
    "optimum",
    "order",
    "popularity",
    "throughput",
]

MODELS, PLACES = 5, 4
LATENCY = Affine(0.020, 0.0025)  # 22.5 ms for a row
RUN_S, SWAP_S = 0.0225, 0.090
CLIENTS = (1, 2, 4, 16, 64)
ACCESS = ("sequential", "uniform", "Zipf 1.1")
_NO_GOAL_S = 3600.0
_MAX_BATCH = 64


def order(access: str, rows: int) -> list[int]:
    """Which model each row is for."""
    if access == "sequential":
        return [row % MODELS for row in range(rows)]
    return Random(f"Rafiqi {access}").choices(range(MODELS), popularity(access), k=rows)


def popularity(access: str) -> list[float]:
    """By model, how often it is asked for, where rows come at random."""
    power = 1.1 if access == "Zipf 1.1" else 0.0
    return [1 / (rank + 1) ** power for rank in range(MODELS)]


def throughput(contender: Contender, access: str, clients: int, rows: int) -> float:
    """Rows per second."""
    functions = tuple(
        FunctionLoad(
            name=f"m{model}",
            arrivals_s=(),
            slo_s=_NO_GOAL_S,
            max_batch=_MAX_BATCH,
            latency_s=LATENCY,
            refuses=False,
        )
        for model in range(MODELS)
    )
    load = Workload(
        functions,
        (SimulatedDevice(places=MODELS if contender.fits else PLACES),),
        swap_s=SWAP_S,
        arbitration=contender.arbitration,
        placement=contender.placement,
        placement_options=contender.options,
        loads_block=contender.loads_block,
        closed_loop=ClosedLoop(clients, [f"m{model}" for model in order(access, rows)]),
    )
    result = simulate(load)
    answered = len(result.total.latencies_s)
    if answered != rows:
        raise RuntimeError(f"{contender.name} answered {answered} of {rows} rows to {clients} clients")
    return rows / result.duration_s


def optimum(sequence: Sequence[int]) -> float:
    """Rows per second of one client, at best; the device begins with the first four models."""
    steps = round(SWAP_S / RUN_S)
    # (resident models, model on the link, steps until it is there) → rows answered, at most.
    reached: dict[tuple[frozenset[int], int, int], int] = {(frozenset(range(PLACES)), -1, 0): 0}
    passed = 0
    while max(reached.values()) < len(sequence):
        passed += 1
        following: dict[tuple[frozenset[int], int, int], int] = {}
        for (held, coming, left), done in reached.items():
            if done == len(sequence):
                continue
            wanted = sequence[done]
            for after, loading, steps_left in _links(held, coming, left, wanted, steps):
                # What is evicted now is not run now.
                rows = done + (wanted in after)
                if steps_left == 1:
                    place = (after | {loading}, -1, 0)
                else:
                    place = (after, loading, max(0, steps_left - 1))
                if rows > following.get(place, -1):
                    following[place] = rows
        reached = following
    return len(sequence) / (passed * RUN_S)


def _links(
    held: frozenset[int], coming: int, left: int, wanted: int, steps: int
) -> list[tuple[frozenset[int], int, int]]:
    """What the link may do in the next step: what stays resident, what comes, and in how many steps."""
    if left:
        return [(held, coming, left)]
    found = [(held, -1, 0)]
    for model in range(MODELS):
        if model not in held:
            found += [(held - {victim}, model, steps) for victim in held]
    return found


def chart(access: str, shares: dict[str, Sequence[float]]) -> str:
    """SVG: share of the throughput without swaps, by clients (their places, not their number)."""
    percent = {name: [100 * share for share in values] for name, values in shares.items()}
    return line_chart(
        f"{access}: 5 models, 4 places",
        f"clients, as 0 to {len(CLIENTS) - 1}: {', '.join(map(str, CLIENTS))}",
        "% of the throughput without swaps",
        list(range(len(CLIENTS))),
        percent,
        top=140.0,
    )
