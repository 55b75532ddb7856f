"""`greedy`: Rafiki, Algorithm 3 (section 5.1).

"It always applies the largest batch size possible": with at least max B rows queued, run the oldest max B.
Otherwise b is the largest size of B that the queue fills, and it runs only when the oldest request is about
to be overdue, c(b) + w(q0) + δ ≥ τ, with the back-off δ = 0.1τ. Nothing is ever refused. Below min B the
paper leaves the rows waiting for more; with 1 in B, the leftovers run when they are due.
"""

from __future__ import annotations

from typing import Any

from server.scheduling.policy import (
    BatchOutcome,
    Decision,
    Dispatch,
    FunctionView,
    Wait,
    batch_latency_s,
    member_names,
    number_option,
)

__all__ = ["Greedy"]


class Greedy:
    """Options: `backoff` (δ/τ, 0.1)."""

    name = "greedy"

    def initial(self, options: dict[str, Any]) -> dict[str, Any]:
        """State: the back-off."""
        return {"backoff": number_option(options, "backoff", 0.1, low=0.0, high=1.0)}

    def decide(self, state: dict[str, Any], view: FunctionView) -> tuple[dict[str, Any], Decision]:
        """Algorithm 3, lines 2-12; the wait ends when line 8 becomes true."""
        members = member_names(view)
        if view.queued_rows >= view.max_batch:
            return state, Dispatch(members, view.max_batch)
        rows = max((b for b in view.batch_sizes if b <= view.queued_rows), default=0)
        if rows == 0:
            return state, Wait()
        tau = view.slo_s
        due_s = view.queue[0].arrived_s + tau - state["backoff"] * tau - batch_latency_s(view, rows)
        return state, (Dispatch(members, rows) if view.now_s >= due_s else Wait(due_s))

    def observe(self, state: dict[str, Any], outcome: BatchOutcome) -> dict[str, Any]:
        """Greedy learns nothing."""
        return state
