"""Whether a challenger is better than the champion on the same test rows, by any metric. Pure.

As in `champion`, rows of one cluster are one observation. The test is approximate randomisation (Noreen
1989; Yeh 2000): were neither better, it would make no difference to swap what the two say to a cluster; so
how often does a swap of some clusters, each by a fair coin, bring as large a difference as was seen?
Accuracies have an exact test, there.

Draws of coins tell no chance below one in their number, and later looks ask for smaller ones. Where they
cannot tell the look's level, the chance is bounded instead: the bounds hold for every number of rows, so that
no look is too late for a gain that is large enough. Which of the two is used depends on the level and the
number of rows, and on nothing that was drawn.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from gpu_worker.tasks.metrics import Counts, Metric, Predictions, Targets
from server.training.promotion.champion import Match
from server.training.promotion.resampling import SEED, Clusters, draws_of, places_of

__all__ = ["swapped_match"]

_SWAPS = 9_999
_TIMES = 10  # as many draws as would show the level once
_LEAST_TIMES = 2
_MOST_PRODUCTS = 500_000_000  # of coins and counts: a second or two
_PART = 1024
_TILTS = np.geomspace(1e-3, 1e3, 400)


def swapped_match(
    metric: Metric,
    challenger: Predictions,
    champion: Predictions,
    targets: Targets,
    clusters: Clusters | None = None,
    level: float = 0.05,
) -> Match:
    """The one-sided test that the challenger is no better, by swaps of what both say; 1 of no rows.

    level: the chance that the test shall be able to tell.
    """
    if not len(targets):
        return Match(1.0)
    places = places_of(len(targets), clusters)
    if metric.row_losses is not None:
        ahead = metric.row_losses(champion, targets) - metric.row_losses(challenger, targets)
        return Match(_chance_of_sums(ahead, places, level))
    if metric.row_gains is not None:
        return Match(_chance_of_sums(metric.row_gains(challenger, champion, targets), places, level))
    if metric.row_counts is not None and metric.of_counts is not None:
        ours, theirs = (metric.row_counts(said, targets) for said in (challenger, champion))
        return Match(_chance_of_counts(metric, ours, theirs, places, level))

    rows = np.arange(len(targets))
    of = metric.of_rows(np.concatenate([challenger, champion]), np.concatenate([targets, targets]))

    def difference(swapped: NDArray[np.bool_]) -> float:
        ours = rows + len(targets) * swapped
        theirs = rows + len(targets) * ~swapped
        return metric.merit(of(ours)) - metric.merit(of(theirs))

    seen = difference(np.zeros(len(targets), np.bool_))
    draws = draws_of(_wanted(level), 2 * len(targets))
    coins = (coin for part in _coins(draws, int(places.max()) + 1) for coin in part)
    reached = sum(difference(coin[places]) >= seen - 1e-12 for coin in coins)
    return Match((1 + reached) / (1 + draws))


def _chance_of_sums(of_rows: NDArray[np.float64], places: NDArray[np.intp], level: float) -> float:
    """The chance that sums of ±ahead, each sign a fair coin, are at least the sum that was seen. ahead: of
    clusters.
    """
    ahead = np.bincount(places, weights=of_rows).astype(np.float64)
    ahead = ahead[ahead != 0]
    if not len(ahead):
        return 1.0
    seen = float(ahead.sum())
    slack = 1e-12 * float(np.abs(ahead).sum())  # sums in another order differ in their last digits
    draws = draws_of(_wanted(level), len(ahead))
    if not _can_tell(draws, level):
        return _bound_of_sums(ahead, seen)
    reached = sum(
        int(((1.0 - 2.0 * coins) @ ahead >= seen - slack).sum()) for coins in _coins(draws, len(ahead))
    )
    return (1 + reached) / (1 + draws)


def _bound_of_sums(ahead: NDArray[np.float64], seen: float) -> float:
    """Chernoff's bound (1952): the least of Π cosh(t a) · e^(−t seen) over some t > 0, which all hold."""
    if seen <= 0:
        return 1.0
    tilts = _TILTS / math.sqrt(float(ahead @ ahead))
    reached = np.abs(tilts[:, None] * ahead)  # log cosh x = |x| + log(1 + e^(−2|x|)) − log 2
    logs = (reached + np.log1p(np.exp(-2 * reached)) - math.log(2)).sum(axis=1) - tilts * seen
    return min(1.0, math.exp(float(logs.min())))


def _chance_of_counts(
    metric: Metric, ours: Counts, theirs: Counts, places: NDArray[np.intp], level: float
) -> float:
    """The same of a function of counts, [n, 3, classes] each; only clusters that were told differently
    matter.
    """
    assert metric.of_counts is not None
    rows = (ours != theirs).any(axis=(1, 2))
    if not rows.any():
        return 1.0
    whole, other = ours.sum(axis=0), theirs.sum(axis=0)
    seen = float(metric.of_counts(whole) - metric.of_counts(other))
    _, at = np.unique(places[rows], return_inverse=True)
    ahead = np.zeros((int(at.max()) + 1, *whole.shape), np.int64)
    np.add.at(ahead, at, ours[rows] - theirs[rows])
    draws = min(_wanted(level), _MOST_PRODUCTS // ahead.size)
    if not _can_tell(draws, level):
        return _bound_of_counts(ahead, whole, seen)
    reached, flat = 0, ahead.reshape(len(ahead), -1).astype(np.float64)
    for coins in _coins(draws, len(ahead)):
        moved = (coins @ flat).reshape(-1, *whole.shape)
        gained = metric.of_counts(whole - moved) - metric.of_counts(other + moved)
        reached += int((gained >= seen - 1e-12).sum())
    return (1 + reached) / (1 + draws)


def _bound_of_counts(ahead: Counts, whole: Counts, seen: float) -> float:
    """McDiarmid's bound of bounded differences (1989) for a mean of F1s: e^(−2 seen² / Σ c²), where c is the
    most that a cluster's swap can change.

    F1 = 2 hit / there; of a swap that moves hit by h and there by s it changes by (2h − F1 s) / (there + s),
    so by at most max(|2h|, |2h − s|) over the fewest that may be there; of either model.
    """
    wanted = whole[2]
    there = whole[1] - np.maximum(ahead[:, 1], 0).sum(axis=0) + wanted  # at the least
    if seen <= 0 or bool(((there <= 0) | (wanted == 0))[(ahead != 0).any(axis=(0, 1))].any()):
        return 1.0  # a class that nobody asked for comes and goes with who names it
    hit, named = 2 * ahead[:, 0], ahead[:, 1]
    most = np.maximum(np.abs(hit), np.abs(hit - named)) / np.maximum(there, 1)
    changes = 2 * most.sum(axis=1) / int((wanted > 0).sum())
    return min(1.0, math.exp(-2 * seen**2 / float(changes @ changes)))


def _wanted(level: float) -> int:
    return max(_SWAPS, math.ceil(_TIMES / level))


def _can_tell(draws: int, level: float) -> bool:
    """Whether so many draws may show a chance well below the level."""
    return (1 + draws) * level >= _LEAST_TIMES


def _coins(draws: int, clusters: int) -> Iterator[NDArray[np.bool_]]:
    """Whether each cluster is swapped: bool [some draws, clusters], `draws` in all."""
    random = np.random.default_rng(SEED)
    for start in range(0, draws, _PART):
        part = min(_PART, draws - start)
        coins = np.unpackbits(np.frombuffer(random.bytes(-(-part * clusters // 8)), np.uint8))
        yield coins[: part * clusters].reshape(part, clusters).astype(np.bool_)
