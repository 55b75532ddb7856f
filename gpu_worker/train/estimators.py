"""Estimators by the names of their architectures, and what an epoch of each is: scikit-learn's, and the
boosted trees of two other libraries.

    epoch = 10 iterations of boosting, 10 trees of a forest, 100 iterations of a regression at most

A linear model comes first and trees after it: the columns are scaled, so that both do well as they are.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import (
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.linear_model import LogisticRegression, Ridge

from gpu_worker.networks.network import Floats
from gpu_worker.train.boosted_libraries import BoostedClassifier, BoostedRegressor, LightGbm, XgBoost

__all__ = [
    "ESTIMATORS",
    "HIST_BOOSTED",
    "Estimator",
    "Fit",
    "Taught",
    "answers_of",
    "frozen",
    "has_converged",
    "made",
]

_BOOSTED = 10  # iterations an epoch
_FOREST = 10  # trees
_ITERATIONS = 100

Estimator: TypeAlias = Any  # scikit-learn ships no types
Knobs: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Taught:
    """What an estimator is fitted on. weights: float64 [n], None where all rows weigh the same."""

    numbers: Floats
    targets: NDArray[Any]
    weights: NDArray[np.float64] | None = None


# Fits an estimator for the epoch of that number (1 is the first); calls the last between its trees.
Fit: TypeAlias = "Callable[[Estimator, int, Taught, Callable[[], None]], None]"


def _hist_boost(boosted: Estimator, epoch: int, rows: Taught, check: Callable[[], None]) -> None:
    check()
    boosted.set_params(max_iter=_BOOSTED * epoch)
    boosted.fit(rows.numbers, rows.targets, sample_weight=rows.weights)


def _boost(boosted: Estimator, epoch: int, rows: Taught, check: Callable[[], None]) -> None:
    boosted.set_params(n_estimators=_BOOSTED * epoch)
    boosted.fit(rows.numbers, rows.targets, sample_weight=rows.weights, monitor=lambda *_: check())


def _grow(forest: Estimator, epoch: int, rows: Taught, check: Callable[[], None]) -> None:
    # One by one they are the same trees: scikit-learn goes on with the seeds where it stood.
    for trees in range(_FOREST * (epoch - 1) + 1, _FOREST * epoch + 1):
        check()
        forest.set_params(n_estimators=trees).fit(rows.numbers, rows.targets, sample_weight=rows.weights)


def _grow_library(boosted: Estimator, epoch: int, rows: Taught, check: Callable[[], None]) -> None:
    boosted.grow(_BOOSTED * epoch, rows.numbers, rows.targets, rows.weights, check)


def _regress(regression: Estimator, epoch: int, rows: Taught, check: Callable[[], None]) -> None:
    check()
    regression.fit(rows.numbers, rows.targets, sample_weight=rows.weights)


def _logistic(seed: int, knobs: Knobs) -> Estimator:
    own = dict(knobs)
    weight = own.pop("class_weight", "none")
    return LogisticRegression(
        random_state=seed,
        warm_start=True,
        max_iter=_ITERATIONS,
        class_weight=None if weight == "none" else weight,
        **own,
    )


def _of(kind: Callable[..., Estimator], **fixed: Any) -> Callable[[int, Knobs], Estimator]:  # noqa: ANN401
    return lambda seed, knobs: kind(random_state=seed, **fixed, **knobs)


def _library(
    kind: Callable[[Any], Estimator], library: Callable[[int, Knobs], Any]
) -> Callable[[int, Knobs], Estimator]:
    return lambda seed, knobs: kind(library(seed, knobs))


HIST_BOOSTED = (HistGradientBoostingClassifier, HistGradientBoostingRegressor)

_HIST = {"warm_start": True, "early_stopping": False}  # the study stops it, on the validation rows

# Of each architecture: the estimator of a class, that of a number, and its fit.
ESTIMATORS: Mapping[str, tuple[Any, Any, Fit]] = MappingProxyType(
    {
        "logistic_regression": (_logistic, None, _regress),
        "ridge": (None, _of(Ridge), _regress),
        "hist_gradient_boosting": (
            _of(HistGradientBoostingClassifier, **_HIST),
            _of(HistGradientBoostingRegressor, **_HIST),
            _hist_boost,
        ),
        "gradient_boosting": (
            _of(GradientBoostingClassifier, warm_start=True),
            _of(GradientBoostingRegressor, warm_start=True),
            _boost,
        ),
        "lightgbm": (
            _library(BoostedClassifier, LightGbm),
            _library(BoostedRegressor, LightGbm),
            _grow_library,
        ),
        "xgboost": (
            _library(BoostedClassifier, XgBoost),
            _library(BoostedRegressor, XgBoost),
            _grow_library,
        ),
        "random_forest": (
            _of(RandomForestClassifier, warm_start=True, n_jobs=1),
            _of(RandomForestRegressor, warm_start=True, n_jobs=1),
            _grow,
        ),
    }
)


def made(architecture: str, seed: int, knobs: Knobs, *, tells_numbers: bool) -> tuple[Estimator, Fit]:
    """The estimator, not yet fitted, and its fit. Raises `ValueError` for knobs that it does not have,
    `ModelUnusable` where its library is not installed.
    """
    of_class, of_number, fit = ESTIMATORS.get(architecture, (None, None, _regress))
    make = of_number if tells_numbers else of_class
    if make is None:
        what = "numbers" if tells_numbers else "classes"
        raise ValueError(f"there is no tabular model {architecture!r} that tells {what}")
    try:
        return make(seed, knobs), fit
    except TypeError as exc:
        raise ValueError(f"{architecture}: {exc}") from exc


def answers_of(estimator: Estimator, numbers: Floats) -> NDArray[np.float64]:
    """[n, classes] probabilities, or [n, 1] numbers."""
    if hasattr(estimator, "predict_proba"):
        return np.asarray(estimator.predict_proba(numbers), np.float64)
    return np.asarray(estimator.predict(numbers), np.float64)[:, None]


def has_converged(estimator: Estimator) -> bool:
    """Whether another epoch would leave it as it is: a regression whose last fit ended before its last
    iteration was used. Trees can always be more.
    """
    if isinstance(estimator, LogisticRegression):
        return int(max(estimator.n_iter_)) < int(estimator.max_iter)
    return isinstance(estimator, Ridge) or bool(getattr(estimator, "has_converged", False))


def frozen(estimator: Estimator) -> Estimator:
    """What it is now, whatever is fitted later: its trees are shared, the lists of them are not."""
    kept = copy.copy(estimator)
    for name in ("_predictors", "estimators_"):
        if isinstance(getattr(kept, name, None), list):
            setattr(kept, name, list(getattr(kept, name)))
    return kept
