"""`goodput`: the default. As many rows as possible answered within their goal.

A free worker never waits: a lone row runs at once, and batches grow by themselves while it is busy. What is
decided is which rows a batch takes. Skipping h heads leaves more time for those behind, so that b of them
fit; the worker answers b / l̂(b) rows per second. Of all (h, b) the one of the highest rate would win if the
overload lasted for ever; while it may be a burst, one that loses fewer rows and less than 2 % of the rate is
better, because rows kept can be saved once the burst is over. So the 2 % shrink with the strain: the share of
recent batches for which heads had to be skipped. Heads that no batch can save are given up at once.

What the last 16 batches took against what l̂ said tells how sure it is that a batch ends by its head's goal.
So behind each h two sizes are looked at: what fits by a high quantile of these ratios, and what fits by the
slowest of them; what counts of a batch is its rows that would be in time, in the mean over four of the
ratios. Where a machine is steady the two are one. Heads are given up by the median: a few slow batches make
the next ones smaller, but refuse nothing. Between functions: arbitration.py.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
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
_SAFE = 0.7  # quantile of them by which batches are predicted, and the larger ones sized
_QUARTERS = (0.125, 0.375, 0.625, 0.875)  # quantiles that stand for all of them
_STEADY = 1.01  # a machine is, where the slowest batch took no more than so many times what is predicted
_HEADS = 16  # where it is not, the most of a queue that are looked at, evenly
_ROUNDING_S = 1e-9  # a batch that was made to fit does


class Goodput:
    """Options: `tolerance` (of the best rate, given up to skip fewer rows, 0.02), `delay_ms` (0).

    With a delay, a batch that is not full waits for more rows, for so long after its first one came, if all
    its rows can still make their goals: worth it where a batch costs much more than a row, and callers ask
    again as soon as they are answered.
    """

    name = "goodput"

    def initial(self, options: dict[str, Any]) -> dict[str, Any]:
        """State: the strain, 0 to 1, and the corrections of l̂ with the ratios they come from."""
        return {
            "tolerance": number_option(options, "tolerance", 0.02, low=0.0, high=1.0),
            "delay_s": number_option(options, "delay_ms", 0.0, low=0.0) / 1000,
            "strain": 0.0,
            "correction": 1.0,
            "typical": 1.0,
            "slowest": 1.0,
            "quarters": [1.0] * len(_QUARTERS),
            "ratios": [1.0],  # the profile counts for one batch
        }

    def decide(self, state: dict[str, Any], view: FunctionView) -> tuple[dict[str, Any], Decision]:
        """Give up heads that cannot be saved, then the best (skip, rows)."""
        start = start_s(view)
        soonest = start + state["typical"] * batch_latency_s(view, 1)
        lost = 0
        for run in view.queue:
            if run.due_s >= soonest:
                break
            lost += run.rows
        if lost:
            return state, Refuse(lost, soonest)
        latency_s = _latency(view)
        choices = _choices(view, start, latency_s, state)
        best_rate, skipped, _ = max(choices)
        strain = state["strain"] + _STRAIN_WEIGHT * ((skipped > 0) - state["strain"])
        enough = best_rate * (1 - state["tolerance"] * (1 - strain))
        _, skip, rows = next(choice for choice in choices if choice[0] >= enough)
        if state["delay_s"] and rows == view.queued_rows < view.max_batch:
            head = view.queue[0]
            longest_s = state["correction"] * latency_s(view.max_batch)
            until_s = min(head.arrived_s + state["delay_s"], head.due_s - longest_s)
            if view.now_s < until_s:
                return state, Wait(until_s)
        expected_s = state["correction"] * latency_s(rows)
        return {**state, "strain": strain}, Dispatch(member_names(view), rows, skip, expected_s)

    def at_ease(
        self,
        state: dict[str, Any],
        latency_s: Callable[[int], float],
        starts_s: float,
        due_s: float,
        rows: int,
    ) -> tuple[dict[str, Any], float] | None:
        """Where all rows that a batch may take make the goal of the first, `decide` takes them all."""
        said_s = latency_s(rows)
        # A row alone never takes longer: neither does l̂ say so, nor is the median above the slowest.
        if state["delay_s"] or state["slowest"] * said_s > due_s - starts_s:
            return None
        strain, takes_s = state["strain"], state["correction"] * said_s
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
            "slowest": ascending[-1],
            "quarters": [ascending[int(share * len(ratios))] for share in _QUARTERS],
        }


def _choices(
    view: FunctionView, start: float, latency_s: Callable[[int], float], state: dict[str, Any]
) -> list[tuple[float, int, int]]:
    """(rows in time per second, skip, rows), two sizes behind each skip: fewest skipped, then best first.

    Deadlines ascend along the queue (within one priority), so the batch that fits only grows until all the
    rest fits: two pointers, no search.
    """
    swap_s = sum(member.swap_s for member in view.members if not member.resident)
    correction, slowest = state["correction"], state["slowest"]
    is_steady = slowest <= _STEADY * correction
    in_time = None if is_steady else _InTime(view, start, state["quarters"])
    choices: list[tuple[float, int, int]] = []

    def fitting(fits_s: float, rows: int, most: int) -> int:
        if latency_s(most) <= fits_s:
            return most
        rows = max(1, min(rows, most))
        while rows < most and latency_s(rows + 1) <= fits_s:
            rows += 1
        return rows

    def choice(skip: int, rows: int) -> tuple[float, int, int]:
        said_s = latency_s(rows)
        good = rows if in_time is None else in_time.rows(skip, rows, said_s)
        return good / (correction * said_s + swap_s), skip, rows

    stride = 0 if in_time is None else view.queued_rows // _HEADS
    skip, large, small, looked = 0, 0, 0, -stride
    for run in view.queue:
        if skip < looked + stride:
            skip += run.rows
            continue
        looked = skip
        most = min(view.max_batch, view.queued_rows - skip)
        budget_s = run.due_s - start
        large = fitting(budget_s / correction, large, most)
        small = large if in_time is None else fitting(budget_s / slowest, small, most)
        if small == large:
            choices.append(choice(skip, large))
        else:
            choices += sorted((choice(skip, large), choice(skip, small)), reverse=True)
        if small == most:
            break
        skip += run.rows
    return choices


class _InTime:
    """How many rows of a batch would be in time, in the mean of what batches took of late."""

    def __init__(self, view: FunctionView, start: float, paces: Sequence[float]) -> None:
        """paces: what batches took, of what l̂ said; each as likely."""
        self._start, self._paces = start, paces
        # Of several priorities a later one may be due sooner: it is taken to be due with those before it.
        self._dues_s = list(accumulate((run.due_s for run in view.queue), max))
        self._before = list(accumulate((run.rows for run in view.queue), initial=0))

    def rows(self, skip: int, rows: int, said_s: float) -> float:
        """Of so many behind `skip`, where l̂ says that they take `said_s`."""
        late = 0
        for pace in self._paces:
            due_sooner = self._before[bisect_left(self._dues_s, self._start + pace * said_s - _ROUNDING_S)]
            late += min(rows, max(0, due_sooner - skip))
        return rows - late / len(self._paces)


def _latency(view: FunctionView) -> Callable[[int], float]:
    if len(view.members) == 1:
        return view.members[0].latency_s
    return partial(batch_latency_s, view)
