"""A recorded timeline as a scene: the load that a server saw, for the simulator to run any policy on.

The rows of each interval between two records are spread evenly over it; variants, devices, workers and copies
are those of the first record, goals of the last.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from server.capacity.policy import Fleet
from tests.benchmarks.capacity_fleet import Scene

__all__ = ["scene_of_record"]

_ENDLESS_S = 1e9


def scene_of_record(fleets: Sequence[Fleet]) -> Scene:
    """From the first record to the last. Raises ValueError if there are fewer than two."""
    if len(fleets) < 2:
        raise ValueError(f"a load needs at least two records, not {len(fleets)}")
    began_s = fleets[0].now_s
    arrivals: dict[str, list[float]] = {one.name: [] for fleet in fleets for one in fleet.functions}
    for before, after in itertools.pairwise(fleets):
        counted = {one.name: one.arrived for one in before.functions}
        for load in after.functions:
            rows = max(0, load.arrived - counted.get(load.name, load.arrived))
            apart_s = (after.now_s - before.now_s) / max(1, rows)
            first_s = before.now_s - began_s + apart_s / 2
            arrivals[load.name] += [first_s + number * apart_s for number in range(rows)]
    goals_s = {one.name: min(one.goal_s, _ENDLESS_S) for fleet in fleets for one in fleet.functions}
    variants = {name: one for fleet in reversed(fleets) for name, one in fleet.variants.items()}
    workers = [one for one in fleets[0].workers.values() if one.state != "leaving"]
    there = {one.name for one in workers}
    return Scene(
        functions=goals_s,
        variants=variants,
        devices=fleets[0].devices,
        workers=workers,
        copies=[one for one in fleets[0].copies if one.worker in there and one.state != "leaving"],
        arrivals=arrivals,
        until_s=fleets[-1].now_s - began_s,
    )
