"""`clockwork`: Clockwork's rule for INFER actions, which trusts that a batch takes what it took before.

The duration of a batch of each allowed size is the 99th percentile of its last 10 runs (here their largest),
the profile before the first. Each size has its list of requests: those that can still finish in a batch of
that size; a request that cannot leaves the list, and with the smallest size's list it is refused. The
largest size whose list fills it runs, its oldest requests first.
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
    member_names,
    number_option,
    start_s,
)

__all__ = ["Clockwork"]


class Clockwork:
    """Options: `runs` (remembered per size, 10)."""

    name = "clockwork"

    def initial(self, options: dict[str, Any]) -> dict[str, Any]:
        """State: size → seconds of its last runs."""
        return {"runs": int(number_option(options, "runs", 10, low=1)), "took_s": {}}

    def decide(self, state: dict[str, Any], view: FunctionView) -> tuple[dict[str, Any], Decision]:
        """The largest size that the requests which can still finish in it fill."""
        start = start_s(view)
        finish_s = {size: start + self._duration_s(state, view, size) for size in view.batch_sizes}
        smallest = view.batch_sizes[0]
        lost = 0
        for run in view.queue:
            if run.due_s >= finish_s[smallest]:
                break
            lost += run.rows
        if lost:
            return state, Refuse(lost, finish_s[smallest])
        sizes = [size for size in view.batch_sizes if size <= view.queued_rows]
        gone = 0  # heads that are no longer on the list of the size looked at
        runs = iter(view.queue)
        head = next(runs)
        best = (smallest, 0)
        for size in sizes:  # ascending: what left a list has left those of the larger sizes
            while head.due_s < finish_s[size]:
                gone += head.rows
                if gone + size > view.queued_rows:
                    break
                head = next(runs)
            if gone + size > view.queued_rows:
                break
            best = (size, gone)
        size, skip = best
        return state, Dispatch(member_names(view), min(size, view.queued_rows), skip)

    def observe(self, state: dict[str, Any], outcome: BatchOutcome) -> dict[str, Any]:
        """Remember what a batch of this size took."""
        key = str(outcome.rows)
        took_s = [*state["took_s"].get(key, []), outcome.latency_s][-state["runs"] :]
        return {**state, "took_s": {**state["took_s"], key: took_s}}

    def _duration_s(self, state: dict[str, Any], view: FunctionView, size: int) -> float:
        took_s = state["took_s"].get(str(size))
        return float(max(took_s)) if took_s else batch_latency_s(view, size)
