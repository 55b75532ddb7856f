"""1,000 registered models of which 20 fit, an hour of simulated time: part of `make bench-residency`.

Rows come by Zipf's law with exponent 1.0, 20 a second; a load takes 50 ms, the goal is a second.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from random import Random
from typing import Any

from server.scheduling.arbitration import MostInTime
from server.scheduling.simulation.arrivals import poisson
from server.scheduling.simulation.simulator import FunctionLoad, SimulatedDevice, Workload, simulate
from tests.benchmarks.schedule_cases import Affine

__all__ = ["many_models"]

MODELS, PLACES = 1000, 20
ROWS_PER_S = 20.0
LOAD_S, GOAL_S = 0.05, 1.0
_LATENCY = Affine(0.005, 0.0005)
_PAGE_BYTES = 4096
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
    with _Memory() as memory:
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
        "resident_mb": memory.resident_mb,
    }


class _Memory:
    """What this process holds, at the beginning, the quarters and the end of a block, by its wall time."""

    def __init__(self) -> None:
        self._seen: list[float] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> _Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(timeout=10)

    @property
    def resident_mb(self) -> list[float]:
        last = len(self._seen) - 1
        return [round(self._seen[last * quarter // 4], 1) for quarter in range(5)]

    def _watch(self) -> None:
        while True:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            self._seen.append(pages * _PAGE_BYTES / 1e6)
            if self._over.wait(_EVERY_S):
                return
