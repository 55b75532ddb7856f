"""Rows drawn again from rows: the interval of any metric's value, and whether a gain is surer than it. Pure.

Efron's percentile bootstrap (1979) over clusters: rows of one cluster are one observation.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_worker.tasks.metrics import Metric, Predictions, Targets

__all__ = ["SEED", "Clusters", "draws_of", "gains", "places_of", "resampled_interval"]

Clusters = NDArray[np.integer[Any]]  # for each row, what it is one observation with

_SAMPLES = 2_000
_MOST_SAMPLES = 20_000
_LEAST_DRAWS = 199
_MOST_STEPS = 50_000_000  # rows that are looked at in all
SEED = 20_261_122  # the same rows give the same answer


def resampled_interval(
    metric: Metric,
    predictions: Predictions,
    targets: Targets,
    clusters: Clusters | None = None,
    level: float = 0.05,
) -> tuple[float, float]:
    """The interval in which the metric's value lies but for a chance of `level`, of at least one row.

    Quantiles that would take too many draws are those of a normal distribution around the value.
    """
    wanted = max(_SAMPLES, round(40 / level))
    draws = draws_of(min(wanted, _MOST_SAMPLES), len(targets))
    of = metric.of_rows(predictions, targets)
    values = [of(rows) for rows in _samples(len(targets), clusters, draws)]
    if draws < wanted / 10:
        reach = NormalDist().inv_cdf(1 - level / 2) * float(np.std(values))
        value = metric.of(predictions, targets)
        return value - reach, value + reach
    low, high = np.quantile(values, [level / 2, 1 - level / 2])
    return float(low), float(high)


def gains(
    metric: Metric,
    better: Predictions,
    than: Predictions,
    targets: Targets,
    clusters: Clusters | None = None,
    level: float = 0.05,
) -> bool:
    """Whether some predictions are better beyond the interval of the difference (one-sided and paired)."""
    of_better, of_other = metric.of_rows(better, targets), metric.of_rows(than, targets)
    merits = [
        metric.merit(of_better(rows)) - metric.merit(of_other(rows))
        for rows in _samples(len(targets), clusters, draws_of(_SAMPLES // 4, 2 * len(targets)))
    ]
    return float(np.quantile(merits, level)) > 0


def draws_of(wanted: int, rows: int) -> int:
    """How many draws of so many rows are made, of those that are wanted."""
    return max(_LEAST_DRAWS, min(wanted, _MOST_STEPS // max(1, rows)))


def places_of(rows: int, clusters: Clusters | None) -> NDArray[np.intp]:
    """The cluster of each row, counted from 0."""
    if clusters is None:
        return np.arange(rows)
    return np.unique(clusters, return_inverse=True)[1]


def _samples(rows: int, clusters: Clusters | None, draws: int) -> Iterator[NDArray[np.intp]]:
    """Rows of as many clusters as there are, drawn with replacement, `draws` times."""
    random = np.random.default_rng(SEED)
    if clusters is None:
        for _ in range(draws):
            yield random.integers(rows, size=rows)
        return
    places = places_of(rows, clusters)
    ordered = np.argsort(places, kind="stable")
    sizes = np.bincount(places)
    starts = np.cumsum(sizes) - sizes
    for _ in range(draws):
        drawn = random.integers(len(sizes), size=len(sizes))
        taken = sizes[drawn]
        offsets = np.arange(int(taken.sum())) - np.repeat(np.cumsum(taken) - taken, taken)
        yield ordered[np.repeat(starts[drawn], taken) + offsets]
