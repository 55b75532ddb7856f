"""`ewma`: Rafiqi §3.2-3.3, adaptive batching by exponential averaging.

A daemon wakes every quantum and releases the function if at least `t` rows are queued. The threshold t then
follows the load: with c rows arrived in the last quantum, t ← αt + (1 − α)c when c is above t, and t is
halved when c is below it, so that it rises gradually and falls off fast. Functions take turns in least
recently used order (arbitration).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from server.scheduling.policy import (
    BatchOutcome,
    Decision,
    Dispatch,
    FunctionView,
    RowRun,
    Wait,
    member_names,
    number_option,
)

__all__ = ["Ewma", "rows_arrived"]

_QUANTA_AT_ONCE = 64  # of idleness to account for: halved so often, any threshold is 0


class Ewma:
    """Options: `quantum_ms` (5), `alpha` (0.5), `cap` (highest threshold, 128)."""

    name = "ewma"

    def initial(self, options: dict[str, Any]) -> dict[str, Any]:
        """State: the threshold, the quanta accounted for, and whether the function is released."""
        return {
            "threshold": 0.0,
            "quanta": -1,
            "released": False,
            "quantum_s": number_option(options, "quantum_ms", 5.0, low=0.01) / 1000,
            "alpha": number_option(options, "alpha", 0.5, low=0.0, high=1.0),
            "cap": number_option(options, "cap", 128.0, low=1.0),
        }

    def decide(self, state: dict[str, Any], view: FunctionView) -> tuple[dict[str, Any], Decision]:
        """What the daemon did at each quantum since the last look, then run what it released."""
        quantum_s = state["quantum_s"]
        threshold, released = state["threshold"], state["released"]
        present = math.floor(view.now_s / quantum_s + 1e-6)  # a tick by rounding is a tick
        for quantum in range(max(state["quanta"] + 1, present - _QUANTA_AT_ONCE), present + 1):
            tick_s = min(view.now_s, quantum * quantum_s)
            queued = rows_arrived(view.queue, -math.inf, tick_s)
            released = released or (queued > 0 and queued >= threshold)
            count = rows_arrived(view.queue, tick_s - quantum_s, tick_s)
            if count < threshold:
                threshold /= 2
            else:
                threshold = state["alpha"] * threshold + (1 - state["alpha"]) * count
            threshold = min(threshold, state["cap"])
        state = {
            **state,
            "threshold": threshold,
            "quanta": max(present, state["quanta"]),
            "released": released,
        }
        if not released:
            return state, Wait((state["quanta"] + 1) * quantum_s)
        return {**state, "released": False}, Dispatch(
            member_names(view), min(view.max_batch, view.queued_rows)
        )

    def observe(self, state: dict[str, Any], outcome: BatchOutcome) -> dict[str, Any]:
        """Latency does not matter to this rule."""
        return state


def rows_arrived(queue: Sequence[RowRun], after_s: float, until_s: float) -> int:
    """Rows of the queue that arrived in (after, until]."""
    return sum(run.rows for run in queue if after_s < run.arrived_s <= until_s)
