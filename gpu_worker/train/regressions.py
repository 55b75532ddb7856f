"""Linear models by what they tell: one class of several, each label for itself, or a number.

scikit-learn learns them, some iterations a fit; what was learnt is a matrix and a bias, whatever it was
learnt of: n-grams of texts, or features of a backbone.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge

from gpu_worker.networks.network import activated
from gpu_worker.tasks.task import Activation
from gpu_worker.train.learner import Objective

__all__ = ["Matrix", "Regression", "regression_for", "told_by"]

_NEVER = -30.0  # the logit of a class that no training row has

Matrix = NDArray[np.float64]
Numbers = Any  # [n, d]: an array, or one of scipy's sparse ones


class Regression(Protocol):
    """weights: [d, k]; bias: [k]; of no numbers before the first fit."""

    activation: Activation
    weights: Matrix
    bias: Matrix
    has_converged: bool

    def fit(self, numbers: Numbers, targets: NDArray[Any], sample_weight: Matrix | None = None) -> None:
        """Some iterations more, on rows [n, d] and their targets, as metrics take them."""
        ...

    def begin(self, weights: Matrix, bias: Matrix) -> None:
        """Go on from there, where it can."""
        ...


class Folded(Protocol):
    """What was learnt."""

    activation: Activation
    weights: Matrix
    bias: Matrix


def told_by(regression: Folded, numbers: Numbers) -> Matrix:
    """[n, k]: probabilities of classes or labels, or numbers."""
    sums = np.asarray(numbers @ regression.weights + regression.bias)
    return activated(sums, regression.activation)  # type: ignore[return-value]  # of any floats


def regression_for(
    objective: Objective,
    *,
    seed: int,
    iterations: int,
    knobs: Mapping[str, Any],
    class_weight: str = "none",
) -> Regression:
    """What has learnt nothing yet. knobs: scikit-learn's own. Raises `ValueError` for those that it lacks."""
    task = objective.task
    try:
        if task.reads == "values":
            return _Number(seed, knobs)
        told = dict(knobs) | {"random_state": seed, "max_iter": iterations}
        told["class_weight"] = None if class_weight == "none" else class_weight
        kind = _OneOfSeveral if task.picks_one else _EachLabel
        return kind(len(objective.classes), told)
    except TypeError as exc:
        raise ValueError(f"a linear model of {task.name}: {exc}") from exc


class _Linear:
    activation: Activation = "none"
    has_converged = False

    def __init__(self, outputs: int) -> None:
        self._outputs = outputs
        self.weights: Matrix = np.zeros((0, outputs))
        self.bias: Matrix = np.zeros(outputs)

    def begin(self, weights: Matrix, bias: Matrix) -> None:
        """See `Regression.begin`: its fit is the whole of it."""


class _OneOfSeveral(_Linear):
    activation: Activation = "softmax"

    def __init__(self, classes: int, knobs: Mapping[str, Any]) -> None:
        super().__init__(classes)
        self._regression = LogisticRegression(warm_start=True, **knobs)

    def fit(self, numbers: Numbers, targets: NDArray[Any], sample_weight: Matrix | None = None) -> None:
        """See `Regression.fit`. targets: int [n]."""
        self.has_converged = _fitted(self._regression, numbers, targets, sample_weight)
        rows, biases = self._regression.coef_, self._regression.intercept_
        if len(rows) == 1:  # of two classes the second's over the first
            rows, biases = np.vstack([0 * rows, rows]), np.concatenate([[0.0], biases])
        weights, bias = np.zeros((rows.shape[1], self._outputs)), np.full(self._outputs, _NEVER)
        weights[:, self._regression.classes_], bias[self._regression.classes_] = rows.T, biases
        self.weights, self.bias = weights, bias

    def begin(self, weights: Matrix, bias: Matrix) -> None:
        """See `Regression.begin`."""
        rows, biases = weights.T, bias
        if self._outputs == 2:
            rows, biases = rows[1:] - rows[:1], biases[1:] - biases[:1]
        _begun(self._regression, rows, biases, self._outputs)


class _EachLabel(_Linear):
    activation: Activation = "sigmoid"

    def __init__(self, labels: int, knobs: Mapping[str, Any]) -> None:
        super().__init__(labels)
        self._regressions = [LogisticRegression(warm_start=True, **knobs) for _ in range(labels)]

    def fit(self, numbers: Numbers, targets: NDArray[Any], sample_weight: Matrix | None = None) -> None:
        """See `Regression.fit`. targets: bool [n, labels]."""
        weights, bias = np.zeros((numbers.shape[1], self._outputs)), np.zeros(self._outputs)
        self.has_converged = True
        for place, (regression, column) in enumerate(zip(self._regressions, targets.T, strict=True)):
            if column.all() or not column.any():
                # All that such rows say is how seldom the other is.
                bias[place] = (1 if column.all() else -1) * np.log(2 * len(column) + 1)
                continue
            self.has_converged &= _fitted(regression, numbers, column.astype(np.int64), sample_weight)
            weights[:, place], bias[place] = regression.coef_[0], regression.intercept_[0]
        self.weights, self.bias = weights, bias

    def begin(self, weights: Matrix, bias: Matrix) -> None:
        """See `Regression.begin`."""
        for regression, row, one in zip(self._regressions, weights.T, bias, strict=True):
            _begun(regression, row[None], np.array([one]), 2)


class _Number(_Linear):
    def __init__(self, seed: int, knobs: Mapping[str, Any]) -> None:
        super().__init__(1)
        self._ridge = Ridge(random_state=seed, **knobs)

    def fit(self, numbers: Numbers, targets: NDArray[Any], sample_weight: Matrix | None = None) -> None:
        """All there is to learn. targets: float64 [n]."""
        self._ridge.fit(numbers, targets, sample_weight=sample_weight)
        self.weights, self.bias = self._ridge.coef_[:, None], np.atleast_1d(self._ridge.intercept_)
        self.has_converged = True


def _fitted(
    regression: Any,  # noqa: ANN401  # scikit-learn ships no types
    numbers: Numbers,
    targets: NDArray[Any],
    weights: Matrix | None,
) -> bool:
    """Whether the fit ended before its last iteration was used."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # it goes on in the next epoch
        regression.fit(numbers, targets, sample_weight=weights)
    return int(max(regression.n_iter_)) < int(regression.max_iter)


def _begun(regression: Any, rows: Matrix, biases: Matrix, classes: int) -> None:  # noqa: ANN401
    regression.coef_, regression.intercept_ = rows.astype(np.float64), biases.astype(np.float64)
    regression.classes_ = np.arange(classes)
