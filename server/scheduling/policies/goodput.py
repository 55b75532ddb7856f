"""`goodput`: the default. As many rows as possible answered within their goal.

A free worker never waits: a lone row runs at once, and batches grow by themselves while it is busy. What is
decided is which rows a batch takes. Skipping h heads leaves more time for those behind, so that b of them
fit; the worker answers b / l̂(b) rows per second. Of all (h, b) the one of the highest rate would win if the
overload lasted for ever; while it may be a burst, one that loses fewer rows and less than 2 % of the rate is
better, because rows kept can be saved once the burst is over. So the 2 % shrink with the strain: the share of
recent batches for which heads had to be skipped. Heads that no batch can save are given up at once.

l̂ is corrected by what batches took of late against what it said, so that a profile that is wrong by a third
costs nothing after a few batches: a high quantile of the last 16 ratios where batches are sized, their median
where heads are given up. A few slow batches make the next ones smaller, but refuse nothing.
Between functions: arbitration.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from server.scheduling.policy import (
    BatchOutcome,
    Decision,
    Dispatch,
    FunctionView,
    Refuse,
    Wait,
    batch_latency_s,
    member_names,
    number_option,
    start_s,
)

__all__ = ["Goodput"]

_STRAIN_WEIGHT = 0.1  # of the newest batch
_RATIOS = 16  # batches remembered
_SAFE = 0.7  # quantile of them by which batches are sized


class Goodput:
    """Options: `tolerance` (of the best rate, given up to skip fewer rows, 0.02), `delay_ms` (0).

    With a delay, a batch that is not full waits for more rows, for so long after its first one came, if all
    its rows can still make their goals: worth it where a batch costs much more than a row, and callers ask
    again as soon as they are answered.
    """

    name = "goodput"

    def initial(self, options: dict[str, Any]) -> dict[str, Any]:
        """State: the strain, 0 to 1, and the two corrections of l̂ with the ratios they come from."""
        return {
            "tolerance": number_option(options, "tolerance", 0.02, low=0.0, high=1.0),
            "delay_s": number_option(options, "delay_ms", 0.0, low=0.0) / 1000,
            "strain": 0.0,
            "correction": 1.0,
            "typical": 1.0,
            "ratios": [1.0],  # the profile counts for one batch
        }

    def decide(self, state: dict[str, Any], view: FunctionView) -> tuple[dict[str, Any], Decision]:
        """Give up heads that cannot be saved, then the best (skip, rows)."""
        takes_s = _corrected(view, state["correction"])
        start = start_s(view)
        soonest = start + state["typical"] * batch_latency_s(view, 1)
        lost = 0
        for run in view.queue:
            if run.due_s >= soonest:
                break
            lost += run.rows
        if lost:
            return state, Refuse(lost, soonest)
        choices = _choices(view, start, takes_s)
        best_rate, skipped, _ = max(choices)
        strain = state["strain"] + _STRAIN_WEIGHT * ((skipped > 0) - state["strain"])
        enough = best_rate * (1 - state["tolerance"] * (1 - strain))
        _, skip, rows = next(choice for choice in choices if choice[0] >= enough)
        if state["delay_s"] and rows == view.queued_rows < view.max_batch:
            head = view.queue[0]
            until_s = min(head.arrived_s + state["delay_s"], head.due_s - takes_s(view.max_batch))
            if view.now_s < until_s:
                return state, Wait(until_s)
        return {**state, "strain": strain}, Dispatch(member_names(view), rows, skip, takes_s(rows))

    def at_ease(
        self,
        state: dict[str, Any],
        latency_s: Callable[[int], float],
        starts_s: float,
        due_s: float,
        rows: int,
    ) -> tuple[dict[str, Any], float] | None:
        """Where all rows that a batch may take make the goal of the first, `decide` takes them all."""
        takes_s: float = state["correction"] * latency_s(rows)
        # A row alone never takes longer: neither does l̂ say so, nor is the median above the safe quantile.
        if state["delay_s"] or takes_s > due_s - starts_s:
            return None
        strain = state["strain"]
        return ({**state, "strain": strain + _STRAIN_WEIGHT * (0 - strain)} if strain else state), takes_s

    def observe(self, state: dict[str, Any], outcome: BatchOutcome) -> dict[str, Any]:
        """Compare what the batch took with what l̂ said."""
        if outcome.predicted_s <= 0 or outcome.latency_s <= 0:
            return state
        ratios = [*state["ratios"], outcome.latency_s / outcome.predicted_s][-_RATIOS:]
        ascending = sorted(ratios)
        return {
            **state,
            "ratios": ratios,
            "correction": ascending[int(_SAFE * (len(ratios) - 1))],
            "typical": ascending[(len(ratios) - 1) // 2],
        }


def _choices(
    view: FunctionView, start: float, takes_s: Callable[[int], float]
) -> list[tuple[float, int, int]]:
    """(rows per second, skip, rows) of the largest batch behind each skip, fewest skipped first.

    Deadlines ascend along the queue (within one priority), so the batch that fits only grows until all the
    rest fits: two pointers, no search.
    """
    swap_s = sum(member.swap_s for member in view.members if not member.resident)
    choices: list[tuple[float, int, int]] = []
    skip, rows = 0, 0
    for run in view.queue:
        most = min(view.max_batch, view.queued_rows - skip)
        budget_s = run.due_s - start
        rows = most if takes_s(most) <= budget_s else max(1, min(rows, most))
        while rows < most and takes_s(rows + 1) <= budget_s:
            rows += 1
        choices.append((rows / (takes_s(rows) + swap_s), skip, rows))
        if rows == most:
            break
        skip += run.rows
    return choices


def _corrected(view: FunctionView, correction: float) -> Callable[[int], float]:
    if len(view.members) == 1:
        latency_s = view.members[0].latency_s
        return lambda rows: correction * latency_s(rows)
    return lambda rows: correction * batch_latency_s(view, rows)
