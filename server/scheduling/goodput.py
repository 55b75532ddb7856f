"""`goodput`: the default. As many rows per second of device time as can still meet their goal.

Rows whose goal is already lost are passed over while others can be saved, and run when there is room.
Among the first rows that can still be saved, skipping `h` heads allows a larger batch for the ones behind:
take the (h, b) of the best b / l̂(b), but ask 2 % more of it for each row skipped. It never waits while the
worker is free: a lone caller is answered at once.
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

__all__ = ["Goodput"]


class Goodput:
    """Options: `gain_per_skipped_row` (0.02)."""

    name = "goodput"

    def initial(self, options: dict[str, Any]) -> dict[str, Any]:
        """State: the options."""
        return {"gain": number_option(options, "gain_per_skipped_row", 0.02, low=0.0)}

    def decide(self, state: dict[str, Any], view: FunctionView) -> tuple[dict[str, Any], Decision]:
        """The best (skip, rows) for the worker offered."""
        start = start_s(view)
        soonest = start + batch_latency_s(view, 1)
        lost = 0
        for run in view.queue:
            if run.due_s >= soonest:
                break
            lost += run.rows
        if lost:
            return state, Refuse(lost, soonest)
        best_skip, best_rows, best_rate = 0, 1, 0.0
        skipped = 0
        for run in view.queue:
            most = min(view.max_batch, view.queued_rows - skipped)
            rows = largest_within(view, run.due_s - start, most)
            if rows:
                rate = rows / batch_latency_s(view, rows) / (1 + state["gain"] * skipped)
                if rate > best_rate:
                    best_skip, best_rows, best_rate = skipped, rows, rate
                if rows == most:
                    break
            skipped += run.rows
        return state, Dispatch(member_names(view), best_rows, best_skip)

    def observe(self, state: dict[str, Any], outcome: BatchOutcome) -> dict[str, Any]:
        """Nothing yet."""
        return state
