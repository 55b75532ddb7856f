"""`ewma-code`: the rule of Rafiqi's public code, which is not its paper's.

Two differences from `ewma`. The threshold grows by the whole count, t ← t + c, instead of averaging. And the
daemon's timer is made anew by every arrival, so that it fires only when no row came for a whole quantum: the
faster rows come the rarer it fires, and a steady stream can starve. Kept to compare with, not to be used.
"""

from __future__ import annotations

from typing import Any

from server.scheduling.policies.ewma import rows_arrived
from server.scheduling.policy import (
    BatchOutcome,
    Decision,
    Dispatch,
    FunctionView,
    Wait,
    member_names,
    number_option,
)

__all__ = ["EwmaCode"]


class EwmaCode:
    """Options: `quantum_ms` (5), `cap` (highest threshold, 128)."""

    name = "ewma-code"

    def initial(self, options: dict[str, Any]) -> dict[str, Any]:
        """State: the threshold, and when the timer last fired."""
        return {
            "threshold": 0.0,
            "fired_s": -1.0,
            "quantum_s": number_option(options, "quantum_ms", 5.0, low=0.01) / 1000,
            "cap": number_option(options, "cap", 128.0, low=1.0),
        }

    def decide(self, state: dict[str, Any], view: FunctionView) -> tuple[dict[str, Any], Decision]:
        """Nothing before a whole quantum without arrivals; then as the paper's daemon does."""
        last_s = max(run.arrived_s for run in view.queue)
        fires_s = max(last_s, state["fired_s"]) + state["quantum_s"]
        if view.now_s < fires_s:
            return state, Wait(fires_s)
        threshold = state["threshold"]
        count = rows_arrived(view.queue, state["fired_s"], view.now_s)
        grown = threshold / 2 if count < threshold else threshold + count
        state = {**state, "threshold": min(grown, state["cap"]), "fired_s": view.now_s}
        if view.queued_rows < threshold:
            return state, Wait(view.now_s + state["quantum_s"])
        return state, Dispatch(member_names(view), min(view.max_batch, view.queued_rows))

    def observe(self, state: dict[str, Any], outcome: BatchOutcome) -> dict[str, Any]:
        """Latency does not matter to this rule."""
        return state
