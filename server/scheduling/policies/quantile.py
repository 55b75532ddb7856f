"""`quantile`: Clipper §4.3.1's other strategy.

Latency grows nearly linearly with the batch size, so a quantile regression of recent batches estimates the
99th-percentile latency as a line; the maximum batch size is the largest that the line keeps within the
latency objective. Until batches of different sizes have been seen, the maximum doubles with every full batch.
Once it has settled, all batches are of nearly one size, which shows no slope: then the last known line keeps
its slope, and only its height follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

from server.scheduling.policy import (
    BatchOutcome,
    Decision,
    Dispatch,
    FunctionView,
    member_names,
    number_option,
)

__all__ = ["Quantile", "quantile_line"]


_SPREAD = 1.5  # sizes that differ less show noise rather than a slope


class Quantile:
    """Options: `quantile` (0.99), `window` (batches remembered, 24), `refit` (batches between fits, 8)."""

    name = "quantile"

    def initial(self, options: dict[str, Any]) -> dict[str, Any]:
        """State: the cap, the line's slope, the batches remembered as [rows, seconds], how many were seen."""
        return {
            "cap": 1,
            "per_row_s": None,
            "batches": [],
            "seen": 0,
            "quantile": number_option(options, "quantile", 0.99, low=0.5, high=1.0),
            "window": int(number_option(options, "window", 24, low=2)),
            "refit": int(number_option(options, "refit", 8, low=1)),
        }

    def decide(self, state: dict[str, Any], view: FunctionView) -> tuple[dict[str, Any], Decision]:
        """All that is queued, up to the cap."""
        cap = min(view.max_batch, max(1, state["cap"]))
        return state, Dispatch(member_names(view), min(cap, view.queued_rows))

    def observe(self, state: dict[str, Any], outcome: BatchOutcome) -> dict[str, Any]:
        """Remember the batch; now and then fit the line anew."""
        batches = [*state["batches"], [outcome.rows, outcome.latency_s]][-state["window"] :]
        cap, per_row_s, seen = state["cap"], state["per_row_s"], state["seen"] + 1
        sizes = [rows for rows, _ in batches]
        told = max(sizes) >= _SPREAD * min(sizes)
        if per_row_s is None and (not told or seen < state["refit"]):
            if outcome.rows >= cap and outcome.latency_s <= outcome.slo_s:
                cap *= 2
        elif seen % state["refit"] == 0:
            if told:
                fixed_s, per_row_s = quantile_line(batches, state["quantile"])
            else:
                fixed_s = _quantile(
                    [took_s - per_row_s * rows for rows, took_s in batches], state["quantile"]
                )
            fits = (outcome.slo_s - fixed_s) / per_row_s if per_row_s > 0 else float(2 * max(sizes))
            cap = max(1, int(min(fits, 2 * max(sizes))))  # the line is not trusted far beyond what was seen
        return {**state, "cap": cap, "per_row_s": per_row_s, "batches": batches, "seen": seen}


def quantile_line(points: Sequence[Sequence[float]], quantile: float) -> tuple[float, float]:
    """The line (intercept, slope) of least pinball loss; an optimal one passes through two of the points.

    Raises ValueError if all points share one abscissa.
    """
    best: tuple[float, float, float] | None = None
    for (x1, y1), (x2, y2) in combinations(points, 2):
        if x1 == x2:
            continue
        slope = (y2 - y1) / (x2 - x1)
        intercept = y1 - slope * x1
        loss = 0.0
        for x, y in points:
            above = y - intercept - slope * x
            loss += above * quantile if above > 0 else above * (quantile - 1)
        if best is None or loss < best[0]:
            best = (loss, intercept, slope)
    if best is None:
        raise ValueError("a line needs points of two different batch sizes")
    return best[1], best[2]


def _quantile(values: Sequence[float], share: float) -> float:
    ascending = sorted(values)
    return ascending[min(len(ascending) - 1, int(share * len(ascending)))]
