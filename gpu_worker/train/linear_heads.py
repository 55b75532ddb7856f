"""Linear heads on a backbone's features: logistic regressions and ridge regression of scaled features.

What is learnt is folded into one matrix over the features as they are, so that the file that is served is one
multiplication. Scaling matters: features of a network differ by orders of magnitude, and a penalty would hold
down the small ones.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge

from gpu_worker.networks.network import Floats, activated
from gpu_worker.networks.row_network import PROBABILITIES, VALUES
from gpu_worker.train.estimators import Estimator, Fit, Taught, made
from gpu_worker.train.learner import Objective

__all__ = ["LinearHead", "head_made", "linear_onnx"]

_ITERATIONS = 100  # an epoch, of each regression
_NEVER = -30.0  # the logit of a class that no training row has

Matrix = NDArray[np.float64]


class LinearHead:
    """weights: [d, k]; bias: [k], over features as a backbone gives them; none before `fit`."""

    activation: Literal["softmax", "sigmoid", "none"]

    def __init__(self) -> None:
        self.weights: Matrix = np.zeros((0, 0))
        self.bias: Matrix = np.zeros(0)
        self.has_converged = False

    def _kept(self, mean: Matrix, scale: Matrix, weights: Matrix, bias: Matrix) -> None:
        self.weights = weights / scale[:, None]
        self.bias = bias - mean @ self.weights

    def _sums(self, numbers: Floats) -> Matrix:
        return np.asarray(numbers, np.float64) @ self.weights + self.bias


class LinearClasses(LinearHead):
    """Logistic regression: of one class of several, or of each label for itself."""

    def __init__(self, classes: int, *, has_labels: bool, seed: int, knobs: Mapping[str, Any]) -> None:
        super().__init__()
        own = dict(knobs)
        weight = own.pop("class_weight", "none")
        self.activation = "sigmoid" if has_labels else "softmax"
        self._classes = classes

        def regression() -> Estimator:
            return LogisticRegression(
                random_state=seed,
                warm_start=True,
                max_iter=_ITERATIONS,
                class_weight=None if weight == "none" else weight,
                **own,
            )

        self._regressions = [regression() for _ in range(classes if has_labels else 1)]

    def fit(self, numbers: Floats, targets: NDArray[Any], sample_weight: Matrix | None = None) -> None:
        """Some iterations more. targets: int [n], or bool [n, classes]."""
        mean, scale = _scaling(numbers)
        scaled = (numbers - mean) / scale
        weights, bias = np.zeros((numbers.shape[1], self._classes)), np.full(self._classes, _NEVER)
        self.has_converged = True
        columns = [targets] if targets.ndim == 1 else list(targets.T.astype(np.int64))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # it goes on in the next epoch
            for place, (regression, column) in enumerate(zip(self._regressions, columns, strict=True)):
                if targets.ndim == 2 and column.min() == column.max():
                    # A label of all training rows, or of none: nothing but how seldom the other is is known.
                    bias[place] = (1 if column[0] else -1) * np.log(2 * len(column) + 1)
                    continue
                regression.fit(scaled, column, sample_weight=sample_weight)
                self.has_converged &= int(max(regression.n_iter_)) < _ITERATIONS
                rows, biases = regression.coef_, regression.intercept_
                if targets.ndim == 2:
                    weights[:, place], bias[place] = rows[0], biases[0]
                    continue
                if len(rows) == 1:  # of two classes the second's over the first
                    rows, biases = np.vstack([0 * rows, rows]), np.concatenate([[0.0], biases])
                weights[:, regression.classes_], bias[regression.classes_] = rows.T, biases
        self._kept(mean, scale, weights, bias)

    def predict_proba(self, numbers: Floats) -> Matrix:
        """[n, classes] probabilities."""
        return activated(self._sums(numbers), self.activation)  # type: ignore[arg-type, return-value]  # of any floats


class LinearNumbers(LinearHead):
    """Ridge regression."""

    activation = "none"

    def __init__(self, *, seed: int, knobs: Mapping[str, Any]) -> None:
        super().__init__()
        self._ridge = Ridge(random_state=seed, **knobs)
        self.has_converged = True

    def fit(self, numbers: Floats, targets: NDArray[Any], sample_weight: Matrix | None = None) -> None:
        """All there is to learn. targets: float64 [n]."""
        mean, scale = _scaling(numbers)
        self._ridge.fit((numbers - mean) / scale, targets, sample_weight=sample_weight)
        self._kept(mean, scale, self._ridge.coef_[:, None], np.atleast_1d(self._ridge.intercept_))

    def predict(self, numbers: Floats) -> Matrix:
        """[n] numbers."""
        told: Matrix = self._sums(numbers)[:, 0]
        return told


def head_made(
    architecture: str, seed: int, knobs: Mapping[str, Any], *, tells_numbers: bool, objective: Objective
) -> tuple[Estimator, Fit]:
    """A head that has learnt nothing, and its fit. Raises `ValueError` for knobs that it does not have."""

    def fit(head: Estimator, epoch: int, rows: Taught, check: Any) -> None:  # noqa: ANN401  # a Callable
        check()
        head.fit(rows.numbers, rows.targets, sample_weight=rows.weights)

    task = objective.task
    try:
        if architecture == "logistic_regression" and not tells_numbers:
            classes = len(objective.classes)
            return LinearClasses(classes, has_labels=not task.picks_one, seed=seed, knobs=knobs), fit
        if architecture == "ridge" and tells_numbers:
            return LinearNumbers(seed=seed, knobs=knobs), fit
    except TypeError as exc:
        raise ValueError(f"{architecture}: {exc}") from exc
    if not tells_numbers and not task.picks_one:
        raise ValueError(f"there is no head {architecture!r} that tells labels")
    return made(architecture, seed, knobs, tells_numbers=tells_numbers)


def linear_onnx(head: LinearHead, opsets: Mapping[str, int]) -> onnx.ModelProto:
    """The model of a fitted head; it takes float32 [n, d]."""
    name = VALUES if head.activation == "none" else PROBABILITIES
    width, outputs = head.weights.shape
    last = {"softmax": "Softmax", "sigmoid": "Sigmoid", "none": "Identity"}[head.activation]  # of axis -1
    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["X", "weights", "bias"], ["sums"]),
            helper.make_node(last, ["sums"], [name]),
        ],
        "head",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, [None, width])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, outputs])],
        [
            numpy_helper.from_array(head.weights.astype(np.float32), "weights"),
            numpy_helper.from_array(head.bias.astype(np.float32), "bias"),
        ],
    )
    versions = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    return helper.make_model(graph, opset_imports=versions, ir_version=8)


def _scaling(numbers: Floats) -> tuple[Matrix, Matrix]:
    """Mean and spread of each feature."""
    mean: Matrix = np.asarray(numbers.mean(axis=0, dtype=np.float64))
    spread: Matrix = np.asarray(numbers.std(axis=0, dtype=np.float64))
    return mean, np.where(spread > 1e-12, spread, 1.0)
