"""Whether a challenger is better than the champion on the same test rows, by any metric. Pure.

As in `champion`, rows of one cluster are one observation. The test is approximate randomisation (Noreen
1989; Yeh 2000): were neither better, it would make no difference to swap what the two say to a cluster; so
how often does a swap of some clusters, each by a fair coin, bring as large a difference as was seen?
Accuracies have an exact test, there.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from gpu_worker.tasks.metrics import Metric, Predictions, Targets
from server.training.promotion.champion import Match
from server.training.promotion.resampling import SEED, Clusters, draws_of, places_of

__all__ = ["swapped_match"]

_SWAPS = 9_999
_PART = 64


def swapped_match(
    metric: Metric,
    challenger: Predictions,
    champion: Predictions,
    targets: Targets,
    clusters: Clusters | None = None,
) -> Match:
    """The one-sided test that the challenger is no better, by swaps of what both say; 1 of no rows."""
    if not len(targets):
        return Match(1.0)
    if metric.row_losses is not None:
        ahead = metric.row_losses(champion, targets) - metric.row_losses(challenger, targets)
        return Match(_chance_of_sums(_by_cluster(ahead, clusters), len(targets)))

    def difference(swapped: NDArray[np.bool_]) -> float:
        each = swapped[:, None]
        ours, theirs = np.where(each, champion, challenger), np.where(each, challenger, champion)
        return metric.merit(metric.of(ours, targets)) - metric.merit(metric.of(theirs, targets))

    seen = difference(np.zeros(len(targets), np.bool_))
    places = places_of(len(targets), clusters)
    random = np.random.default_rng(SEED)
    draws = draws_of(_SWAPS, 2 * len(targets))
    coins = (random.integers(2, size=int(places.max()) + 1).astype(np.bool_) for _ in range(draws))
    reached = sum(difference(coin[places]) >= seen - 1e-12 for coin in coins)
    return Match((1 + reached) / (1 + draws))


def _by_cluster(ahead: NDArray[np.float64], clusters: Clusters | None) -> NDArray[np.float64]:
    summed: NDArray[np.float64] = np.bincount(places_of(len(ahead), clusters), weights=ahead).astype(
        np.float64
    )
    return summed


def _chance_of_sums(ahead: NDArray[np.float64], rows: int) -> float:
    """The chance that sums of ±ahead, each sign a fair coin, are at least the sum that was seen.

    Draws tell no chance below one in their number, which late looks ask for: Hoeffding's bound does (1963,
    §2).
    """
    ahead = ahead[ahead != 0]
    if not len(ahead):
        return 1.0
    seen = float(ahead.sum())
    slack = 1e-12 * float(np.abs(ahead).sum())  # sums in another order differ in their last digits
    random = np.random.default_rng(SEED)
    draws, reached = draws_of(_SWAPS, rows), 0
    for start in range(0, draws, _PART):
        signs = random.integers(2, size=(min(_PART, draws - start), len(ahead))) * 2 - 1
        reached += int((signs @ ahead >= seen - slack).sum())
    bound = math.exp(-(max(seen, 0.0) ** 2) / (2 * float(ahead @ ahead)))
    return min((1 + reached) / (1 + draws), bound)
