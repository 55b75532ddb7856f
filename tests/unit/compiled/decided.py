"""`python -m tests.unit.compiled.decided`: which core serves, and what it decides of rows that are drawn.

Prints a line of JSON: the core's name, and of each case the digest of every row's fate, to the last digit.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from random import Random

from server.compiled.finder import chosen_core
from server.scheduling.arbitration import MostInTime
from server.scheduling.simulation.arrivals import bursty
from server.scheduling.simulation.simulator import (
    FunctionLoad,
    SimulatedDevice,
    SimulationResult,
    Workload,
    simulate,
)
from tests.unit.scheduling.test_following_functions import BEST_RATE, following, run
from tests.unit.scheduling.views import affine

POLICIES = ("goodput", "clockwork", "window", "greedy", "aimd", "ewma", "quantile")
SELECTIONS = ("value", "gear", "slackfit", "async", "all")


def main() -> None:
    decided = {name: _digest(result) for name, result in _cases()}
    print(json.dumps({"core": chosen_core().name, "decided": decided}))  # noqa: T201  # a script's word


def _cases() -> Iterator[tuple[str, SimulationResult]]:
    for policy in POLICIES:
        functions = tuple(
            FunctionLoad(
                name,
                bursty(Random(f"{policy} {name}"), 600, 1.0),
                0.05,
                64,
                affine,
                policy=policy,
                rows_per_request=rows,
            )
            for name, rows in (("a", 1), ("b", 3), ("c", 1))
        )
        devices = (SimulatedDevice("d0", places=2), SimulatedDevice("d1", places=2))
        yield policy, simulate(Workload(functions, devices, 0.01, 0.05, 7, MostInTime()))
    for policy in SELECTIONS:
        yield (
            f"select {policy}",
            run(following("e", policy, 1.1 * BEST_RATE, 0.5), following("f", policy, 500, 0.5)),
        )


def _digest(result: SimulationResult) -> str:
    text = json.dumps([result.to_json(), result.total.latencies_s, result.total.overdue_at_s])
    return hashlib.sha256(text.encode()).hexdigest()


if __name__ == "__main__":
    main()
