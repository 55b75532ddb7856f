"""`aimd`: Clipper §4.3.1, with the delayed batching of §4.3.2.

Batches take as many queries as possible, up to a maximum batch size. That maximum grows by a fixed amount
until the latency to process a batch exceeds the latency objective; then it is reduced by 10 %. With a delay,
a batch that would not be full waits for more queries, for so long after the first one came (Nagle's idea).
"""

from __future__ import annotations

from typing import Any

from server.scheduling.policy import (
    BatchOutcome,
    Decision,
    Dispatch,
    FunctionView,
    Wait,
    member_names,
    number_option,
)

__all__ = ["Aimd"]


class Aimd:
    """Options: `start` (first cap, rows, 1), `increase` (rows, 1), `backoff` (share, 0.1), `delay_ms` (0)."""

    name = "aimd"

    def initial(self, options: dict[str, Any]) -> dict[str, Any]:
        """State: the cap, rows, and the options."""
        return {
            "cap": number_option(options, "start", 1.0, low=1.0),
            "increase": number_option(options, "increase", 1.0, low=0.0),
            "backoff": number_option(options, "backoff", 0.1, low=0.0, high=1.0),
            "delay_s": number_option(options, "delay_ms", 0.0, low=0.0) / 1000,
        }

    def decide(self, state: dict[str, Any], view: FunctionView) -> tuple[dict[str, Any], Decision]:
        """All that is queued, up to the cap; after the delay if that is less than the cap."""
        cap = min(view.max_batch, max(1, int(state["cap"])))
        if view.queued_rows < cap:
            until_s = view.queue[0].arrived_s + state["delay_s"]
            if view.now_s < until_s:
                return state, Wait(until_s)
        return state, Dispatch(member_names(view), min(cap, view.queued_rows))

    def observe(self, state: dict[str, Any], outcome: BatchOutcome) -> dict[str, Any]:
        """Additive increase while full batches stay within the objective, multiplicative decrease else."""
        cap = state["cap"]
        if outcome.latency_s > outcome.slo_s:
            cap = max(1.0, cap * (1 - state["backoff"]))
        elif outcome.rows >= int(cap):
            cap += state["increase"]
        return {**state, "cap": cap}
