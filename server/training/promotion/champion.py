"""What test rows say of a function: how sure an accuracy is, and whether a challenger is better. Pure.

Equal inputs, and rows of one entity, are answered alike: they are one observation, a cluster, not as many as
there are rows. So intervals count clusters (Wilson's, with the effective number of rows, after Korn &
Graubard 1998), and the paired test draws a coin for each cluster, not for each row. With clusters of one row
each the test is McNemar's exact one (1947).

Test rows are read more than once: each look at them gives a chance to be lucky. Look number k has the level
0.05 / (k (k + 1)); all of them together then err with a chance of at most 0.05, however many there will be.
This holds for looks that were not chosen by what earlier ones said; where they were, it is a brake and no
proof (Dwork et al. 2015).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from server.ensemble.fit import Fit
from server.training.promotion.label_thresholds import moved_to_half
from server.training.promotion.selection import Combine, answers_of, mean_of, pooled_of
from server.wilson import wilson

__all__ = ["Match", "Tested", "interval", "level_of", "match"]

_LEVEL = 0.05
_MOST_STEPS = 200_000_000  # of counting; beyond them the normal distribution is as good

Right = NDArray[np.bool_]  # for each test row, whether it was answered rightly
Clusters = NDArray[np.int64]  # for each test row, what it is one observation with


class Tested:
    """What members answered to the test rows, whose labels are known: float32 [n, width] of each.

    thresholds: [width], from which on labels are answered; None = one half, or rows have one class.
    """

    def __init__(
        self,
        scores: Mapping[str, NDArray[Any]],
        labels: NDArray[Any],
        thresholds: NDArray[np.float64] | None = None,
    ) -> None:
        self.scores = scores
        self.labels = labels
        self._thresholds = thresholds

    def right(self, combine: Combine = "mean", fit: Fit | None = None) -> Right:
        """For each row, whether the members together answer it rightly. fit: of members of these names."""
        answers = answers_of(list(self.scores), self.scores, self.labels, combine, fit)
        right: Right = answers == self.labels
        return right

    def together(self, combine: Combine = "mean", fit: Fit | None = None) -> NDArray[Any]:
        """What the members say together: float [n, width]. A vote has no probabilities: it is told by the
        mean.
        """
        names = list(self.scores)
        if combine == "log_pool" and fit is not None:
            return pooled_of(names, self.scores, fit)
        mean = mean_of(names, self.scores)
        return mean if self._thresholds is None else moved_to_half(mean, self._thresholds)


@dataclass(frozen=True, slots=True)
class Match:
    """How a challenger did against the champion: the one-sided p that it is no better."""

    p_value: float

    def is_won(self, level: float = _LEVEL) -> bool:
        """Whether the challenger is better, at that level."""
        return self.p_value < level


def level_of(look: int) -> float:
    """The level of look number `look`, 1 for the first."""
    return _LEVEL / (look * (look + 1))


def match(challenger: Right, champion: Right, clusters: Clusters | None = None) -> Match:
    """The exact one-sided test that the challenger is no better. clusters: None = each row is its own."""
    ahead = challenger.astype(np.int64) - champion.astype(np.int64)
    if clusters is not None:
        _, places = np.unique(clusters, return_inverse=True)
        ahead_of = np.bincount(places, weights=ahead, minlength=1).round().astype(np.int64)
    else:
        ahead_of = ahead
    return Match(_chance(np.abs(ahead_of[ahead_of != 0]), int(ahead.sum())))


def interval(right: Right, clusters: Clusters | None = None, level: float = _LEVEL) -> tuple[float, float]:
    """The interval of a share, by Wilson (1927): honest for few rows, and near 0 and 1.

    level: the chance that it misses. clusters: None = each row is its own.
    """
    rows = len(right)
    if rows == 0:
        return 0.0, 1.0
    share = float(right.mean())
    z = NormalDist().inv_cdf(1 - level / 2)
    effective = rows if clusters is None else _effective_rows(right, clusters, z)
    return wilson(share, effective, level)


def _effective_rows(right: Right, clusters: Clusters, z: float) -> float:
    """How many independent rows would show as much."""
    rows = len(right)
    _, places, sizes = np.unique(clusters, return_inverse=True, return_counts=True)
    if len(sizes) == rows:
        return rows
    squares = sizes.astype(np.float64) ** 2
    # As though every row of a cluster were answered as the others (Kish 1965).
    least = rows**2 / float(squares.sum())
    answered = np.bincount(places, weights=right)
    freedom = (
        float(squares.sum()) ** 2 / float((squares**2).sum()) - 1
    )  # of the variance, after Satterthwaite
    if freedom < 1 or bool(((answered == 0) | (answered == sizes)).all()):
        return least
    share = float(right.mean())
    variance = float(((answered - share * sizes) ** 2).sum()) / rows**2  # of the share, between clusters
    estimated = share * (1 - share) / variance if variance else rows
    return min(float(rows), max(estimated, least) * (z / _student(z, freedom)) ** 2)


def _student(z: float, freedom: float) -> float:
    """Student's quantile for the normal one's probability (Cornish & Fisher 1938), from a freedom of 1."""
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


def _chance(sizes: NDArray[np.int64], reached: int) -> float:
    """The chance that sums of ±sizes, each sign a fair coin, are at least `reached`."""
    if not len(sizes):
        return 1.0
    total = int(sizes.sum())
    if len(sizes) * total > _MOST_STEPS:
        deviation = math.sqrt(float((sizes.astype(np.float64) ** 2).sum()))
        step = float(np.gcd.reduce(sizes))  # sums are 2 steps apart: half of that is the continuity's
        return NormalDist().cdf(-(reached - step) / deviation)
    chance = np.zeros(2 * total + 1)  # of each sum from −total to total
    chance[total] = 1.0
    for size in sizes.tolist():
        chance = 0.5 * (np.roll(chance, size) + np.roll(chance, -size))
    return float(min(1.0, chance[total + reached :].sum()))
