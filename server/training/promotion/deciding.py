"""From which probability on the second of two classes is answered, chosen on validation rows. Pure.

The class of the larger probability is the best answer where every mistake costs the same, as accuracy counts
them; by a metric that counts classes and not rows, rare ones above all are answered too seldom then. The
threshold is that of the best score, where it is better than a half by more than a standard error: of few rare
rows any threshold seems better by chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_worker.tasks.metrics import Metric
from server.training.promotion.resampling import Clusters, gains

__all__ = ["decided", "decision_thresholds"]

_METRICS = ("macro_f1",)  # that go by answers, and do not count rows alone
_TRIED = 200
_HALF = 0.5
_LEVEL = 0.16  # a gain of one standard error: a surer one is seldom to be had of few rare rows


def decision_thresholds(
    metric: Metric, scores: NDArray[Any], labels: NDArray[Any], clusters: Clusters | None = None
) -> tuple[float, ...]:
    """Those of both classes, which add up to 1; () where halves do as well, or the metric asks for none.

    scores: float [n, 2], of validation rows.
    """
    if metric.name not in _METRICS or scores.ndim != 2 or scores.shape[1] != 2 or len(labels) < 2:
        return ()
    seen = np.unique(scores[:, 1].astype(np.float64))
    between = (seen[1:] + seen[:-1]) / 2
    if len(between) > _TRIED:
        between = np.quantile(between, np.linspace(0, 1, _TRIED))
    tried = [float(each) for each in between if 0 < each < 1]
    if not tried:
        return ()
    merits = [metric.merit(metric.of(decided(scores, (1 - each, each)), labels)) for each in tried]
    best = max(merits)
    # Of equal ones the nearest to a half: it moves the fewest answers.
    chosen = min(
        (at for at, merit in zip(tried, merits, strict=True) if merit == best), key=lambda at: abs(at - _HALF)
    )
    told = decided(scores, (1 - chosen, chosen))
    return (1 - chosen, chosen) if gains(metric, told, scores, labels, clusters, _LEVEL) else ()


def decided(scores: NDArray[Any], thresholds: Sequence[float]) -> NDArray[Any]:
    """Scores whose largest is the class that is answered: each as a part of its threshold, adding up to 1.

    thresholds: of each class; () = the most probable is answered.
    """
    if not thresholds:
        return scores
    parts: NDArray[Any] = scores / np.asarray(thresholds)
    summed = parts.sum(axis=1, keepdims=True)
    return np.where(summed > 0, parts / np.where(summed > 0, summed, 1), scores)
