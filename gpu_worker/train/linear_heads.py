"""Linear heads on a backbone's features: logistic and ridge regressions of scaled features.

What is learnt is folded into one matrix over the features as they are, so that the file that is served is one
multiplication. All features are scaled by one number, so that a penalty means the same of every backbone:
each by its own would make those that hardly vary as loud as those by which the backbone tells things apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from gpu_worker.networks.network import Floats
from gpu_worker.networks.row_network import PROBABILITIES, VALUES
from gpu_worker.tasks.task import Activation
from gpu_worker.train.estimators import Estimator, Fit, Taught, made
from gpu_worker.train.learner import Objective
from gpu_worker.train.regressions import Matrix, Regression, regression_for, told_by

__all__ = ["LinearClasses", "LinearHead", "LinearNumbers", "head_made", "linear_onnx"]

_ITERATIONS = 100  # an epoch, of each regression
_LAST: Mapping[Activation, str] = {"softmax": "Softmax", "sigmoid": "Sigmoid", "none": "Identity"}


class LinearHead:
    """weights: [d, k]; bias: [k], over features as a backbone gives them; none before `fit`."""

    def __init__(self, regression: Regression) -> None:
        self._regression = regression
        self.activation: Activation = regression.activation
        self.weights: Matrix = regression.weights
        self.bias: Matrix = regression.bias
        self.has_converged = False

    def fit(self, numbers: Floats, targets: NDArray[Any], sample_weight: Matrix | None = None) -> None:
        """Some iterations more. targets: as metrics take them."""
        mean, scale = _scaling(numbers)
        self._regression.fit((numbers - mean) / scale, targets, sample_weight)
        self.has_converged = self._regression.has_converged
        self.weights = self._regression.weights / scale[:, None]
        self.bias = self._regression.bias - mean @ self.weights


class LinearClasses(LinearHead):
    """Of one class of several, or of each label for itself."""

    def predict_proba(self, numbers: Floats) -> Matrix:
        """[n, classes] probabilities."""
        return told_by(self, np.asarray(numbers, np.float64))


class LinearNumbers(LinearHead):
    """Of a number."""

    def predict(self, numbers: Floats) -> Matrix:
        """[n] numbers."""
        return told_by(self, np.asarray(numbers, np.float64))[:, 0]


def head_made(
    architecture: str, seed: int, knobs: Mapping[str, Any], *, tells_numbers: bool, objective: Objective
) -> tuple[Estimator, Fit]:
    """A head that has learnt nothing, and its fit. Raises `ValueError` for knobs that it does not have."""

    def fit(head: Estimator, epoch: int, rows: Taught, check: Callable[[], None]) -> None:
        check()
        head.fit(rows.numbers, rows.targets, sample_weight=rows.weights)

    if architecture == ("ridge" if tells_numbers else "logistic_regression"):
        own = dict(knobs)
        weight = own.pop("class_weight", "none")
        regression = regression_for(
            objective, seed=seed, iterations=_ITERATIONS, knobs=own, class_weight=weight
        )
        return (LinearNumbers if tells_numbers else LinearClasses)(regression), fit
    if not tells_numbers and not objective.task.picks_one:
        raise ValueError(f"there is no head {architecture!r} that tells labels")
    return made(architecture, seed, knobs, tells_numbers=tells_numbers)


def linear_onnx(head: LinearHead, opsets: Mapping[str, int]) -> onnx.ModelProto:
    """The model of a fitted head; it takes float32 [n, d]."""
    name = VALUES if head.activation == "none" else PROBABILITIES
    width, outputs = head.weights.shape
    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["X", "weights", "bias"], ["sums"]),
            helper.make_node(_LAST[head.activation], ["sums"], [name]),  # of the last axis
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
    """Mean of each feature, and the spread of all together, for each."""
    mean: Matrix = np.asarray(numbers.mean(axis=0, dtype=np.float64))
    variance = float(numbers.var(axis=0, dtype=np.float64).mean())
    return mean, np.full(len(mean), np.sqrt(variance) if variance > 1e-24 else 1.0)
