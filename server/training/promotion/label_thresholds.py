"""From which score on each label is answered, chosen on validation rows. Pure.

One half is the best threshold of probabilities that are right; of rare labels a linear model's seldom get
there. So each label has the threshold with the best F1 of its own validation rows, where enough of them show
it; and all keep one half, unless the F1 of all labels together gains (Pillai, Fumera & Roli 2013, "Threshold
optimisation for multi-label classifiers").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_worker.tasks.metrics import METRICS

__all__ = ["HALF", "chosen_thresholds", "moved_to_half", "thresholds_by_label"]

HALF = 0.5
_LEAST_ROWS = 10  # that show a label, and as many that do not
_TRIED = np.arange(5, 96, 5) / 100

Scores = NDArray[np.floating[Any]]


def chosen_thresholds(scores: Scores, targets: NDArray[np.bool_]) -> NDArray[np.float64]:
    """[k] thresholds of scores [n, k], by what was to be said."""
    found = np.full(scores.shape[1], HALF)
    for place in range(scores.shape[1]):
        wanted = targets[:, place]
        if min(int(wanted.sum()), int((~wanted).sum())) >= _LEAST_ROWS:
            found[place] = _best(scores[:, place], wanted)
    metric = METRICS["micro_f1"]
    gains = metric.of(moved_to_half(scores, found), targets) > metric.of(scores, targets)
    return found if gains else np.full(scores.shape[1], HALF)


def _best(scores: Scores, wanted: NDArray[np.bool_]) -> float:
    """Of equally good ones that next to one half."""
    said = scores[:, None] >= _TRIED.astype(np.float32)
    hits = (said & wanted[:, None]).sum(axis=0)
    f1 = 2 * hits / np.maximum(1, said.sum(axis=0) + wanted.sum())
    best = np.flatnonzero(f1 >= f1.max() - 1e-12)
    return float(_TRIED[best[np.abs(_TRIED[best] - HALF).argmin()]])


def moved_to_half(scores: Scores, thresholds: NDArray[np.float64]) -> Scores:
    """Scores in the same order, of which those that reach their threshold reach one half, and no others:
    metrics of labels know no other threshold.
    """
    limits = thresholds.astype(np.float32)
    below = HALF * scores / limits
    above = HALF + HALF * (scores - limits) / (1 - limits)
    moved: Scores = np.where(scores >= limits, above, np.minimum(below, np.nextafter(np.float32(HALF), 0)))
    return moved


def thresholds_by_label(thresholds: NDArray[np.float64] | None, labels: Sequence[str]) -> Mapping[str, float]:
    """Those that are not one half, as a manifest has them."""
    if thresholds is None:
        return {}
    told = zip(labels, thresholds.tolist(), strict=True)
    return {label: threshold for label, threshold in told if threshold != HALF}
