"""`window`: Nexus's early drop.

The planner gives each function a target batch size: the largest whose batch takes at most half of the SLO,
so that a row that just missed a batch makes the next. A window of that size slides over the queue: a head
that would not live to see its whole window executed is dropped, until one has time enough for all of it.
Functions take turns (arbitration).
"""

from __future__ import annotations

from typing import Any

from server.scheduling.policy import (
    BatchOutcome,
    Decision,
    Dispatch,
    FunctionView,
    Refuse,
    batch_latency_s,
    largest_within,
    member_names,
    number_option,
    start_s,
)

__all__ = ["Window"]


class Window:
    """Options: `target` (rows; 0 = as the planner would), `slo_share` (of a planned batch, 0.5)."""

    name = "window"

    def initial(self, options: dict[str, Any]) -> dict[str, Any]:
        """State: the options."""
        return {
            "target": int(number_option(options, "target", 0, low=0)),
            "slo_share": number_option(options, "slo_share", 0.5, low=0.0, high=1.0),
        }

    def decide(self, state: dict[str, Any], view: FunctionView) -> tuple[dict[str, Any], Decision]:
        """Drop heads until one has time for its whole window, then run the window."""
        planned = largest_within(view, state["slo_share"] * view.slo_s, view.max_batch)
        target = min(view.max_batch, state["target"] or max(1, planned))
        start = start_s(view)
        dropped = 0
        for run in view.queue:
            rows = min(target, view.queued_rows - dropped)
            if start + batch_latency_s(view, rows) <= run.due_s:
                break
            dropped += run.rows
        if dropped:
            return state, Refuse(dropped, start + batch_latency_s(view, target))
        return state, Dispatch(member_names(view), min(target, view.queued_rows))

    def observe(self, state: dict[str, Any], outcome: BatchOutcome) -> dict[str, Any]:
        """The window trusts its profile."""
        return state
