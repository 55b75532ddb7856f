"""1,000 registered models of which 20 fit, an hour of simulated time: part of `make bench-residency`.

Rows come by Zipf's law with exponent 1.0, 20 a second; a load takes 50 ms, the goal is a second.
"""

from __future__ import annotations

import os
import time
from random import Random
from typing import Any

from server.scheduling.arbitration import MostInTime
from server.scheduling.simulation.arrivals import poisson
from server.scheduling.simulation.simulator import FunctionLoad, SimulatedDevice, Workload, simulate
from tests.benchmarks.resident_memory import MemoryByTime
from tests.benchmarks.schedule_cases import Affine

__all__ = ["many_models"]

MODELS, PLACES = 1000, 20
ROWS_PER_S = 20.0
LOAD_S, GOAL_S = 0.05, 1.0
_LATENCY = Affine(0.005, 0.0005)
_EVERY_S = 0.5


def many_models(placement: str, seconds: float) -> dict[str, Any]:
    """Loads a minute, what the models that fared worst got, and the memory of this process meanwhile."""
    draw = Random(f"many {seconds:g}")
    times_s = poisson(draw, ROWS_PER_S, seconds)
    weights = [1 / (rank + 1) for rank in range(MODELS)]
    arrivals: list[list[float]] = [[] for _ in range(MODELS)]
    for at_s, model in zip(times_s, draw.choices(range(MODELS), weights, k=len(times_s)), strict=True):
        arrivals[model].append(at_s)
    functions = tuple(
        FunctionLoad(f"m{number}", came_s, GOAL_S, 32, _LATENCY) for number, came_s in enumerate(arrivals)
    )
    device = SimulatedDevice(places=PLACES)
    load = Workload(functions, (device,), swap_s=LOAD_S, arbitration=MostInTime(), placement=placement)
    began_s = time.perf_counter()
    with MemoryByTime([os.getpid()], every_s=_EVERY_S) as memory:
        result = simulate(load)
    asked = {name: one for name, one in result.functions.items() if one.offered}
    total = result.total
    return {
        "placement": placement,
        "simulated_s": seconds,
        "took_s": round(time.perf_counter() - began_s, 1),
        "rows": total.offered,
        "answered_in_goal": total.good,
        "answered_late": total.late,
        "refused": total.refused,
        "unaccounted": total.offered - total.good - total.late - total.refused,
        "loads_per_minute": 60 * result.swaps / seconds,
        "models_asked": len(asked),
        "models_without_an_answer": sum(not one.latencies_s for one in asked.values()),
        "most_refused_of_those": max(
            (one.offered for one in asked.values() if not one.latencies_s), default=0
        ),
        "longest_wait_s": max(total.latencies_s, default=0.0),
        "worst_model_of_50_rows": min(
            (one.goodput for one in asked.values() if one.offered >= 50), default=1.0
        ),
        "resident_mb": [round(own_mb, 1) for _, (own_mb,) in memory.quarters()],
    }
