"""scikit-learn's estimators, a few trees or iterations an epoch, written as ONNX: of tables, and of features.

A checkpoint holds the columns with the model (`networks.row_network`), and is run by ONNX Runtime once it is
written: what the validation rows said of the estimator, the file says too. It cannot be trained on: trials
neither pause nor begin from another's checkpoint.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np
import onnx
from skl2onnx import to_onnx
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from gpu_worker.device import Device
from gpu_worker.errors import ModelUnusable
from gpu_worker.networks.network import Floats
from gpu_worker.networks.onnx_network import open_session
from gpu_worker.networks.row_network import COLUMNS_KEY, PROBABILITIES, VALUES
from gpu_worker.networks.table import Table
from gpu_worker.train.boosted_libraries import BoostedClassifier, BoostedRegressor
from gpu_worker.train.boosted_onnx import exact_in_float32, forest_onnx, hist_forest
from gpu_worker.train.estimators import (
    HIST_BOOSTED,
    Estimator,
    Fit,
    Taught,
    answers_of,
    frozen,
    has_converged,
    made,
)
from gpu_worker.train.learner import EpochResult, Evaluation, Objective, row_time
from gpu_worker.train.linear_heads import LinearHead, linear_onnx
from gpu_worker.train.loop import TrainingStopped
from gpu_worker.train.tabular import LabelledRows, taught_of

__all__ = ["TabularLearner", "TabularSpec", "evaluated", "table_of"]

# That of the oldest ONNX Runtime that pyproject permits.
_OPSETS = {"": 17, "ai.onnx.ml": 3}
_PART_ROWS = 65_536
_LOSS_ROWS = 16_384  # of the training rows, the first: what they say of the loss is enough
_CLOSE = 1e-3  # between probabilities, or shares of a target's spread, in float64 and float32
_VARIABLE = "variable"  # what skl2onnx calls the output of a regression

_CPU = Device("cpu", "", 0, 1)


@dataclass(frozen=True, slots=True)
class TabularSpec:
    """architecture: one of `estimators.ESTIMATORS`. knobs: the estimator's own."""

    architecture: str
    epochs: int
    seed: int = 0
    knobs: Mapping[str, Any] = field(default_factory=dict)


class Rows(Protocol):
    """What is learnt of: numbers and targets by split. width: numbers of a row. properties: of its file."""

    @property
    def width(self) -> int: ...  # as said above

    @property
    def properties(self) -> Mapping[str, str]: ...

    def rows(self, *splits: str) -> LabelledRows: ...


Making: TypeAlias = Callable[..., tuple[Estimator, Fit]]


class TabularLearner:
    """See `Learner`. making: as `estimators.made`.

    Raises `ValueError` for knobs that the estimator does not have.
    """

    suffix = ".onnx"

    def __init__(
        self,
        spec: TabularSpec,
        snapshot: Rows,
        objective: Objective,
        making: Making = made,
        skipped: int = 0,
    ) -> None:
        self.epoch = 0
        self.skipped = skipped
        self._metric = objective.metric
        self._snapshot = snapshot
        knobs = dict(spec.knobs)
        if objective.class_weight != "none":
            knobs.pop("class_weight", None)  # rare classes would weigh twice as much as they are to
        self._estimator, self._fit = making(
            spec.architecture, spec.seed, knobs, tells_numbers=not objective.classes
        )
        train = taught_of(snapshot.rows(*objective.taught))
        self._taught = Taught(train.numbers, train.labels, objective.row_weights(train.labels))
        self._best: Estimator = None
        self._best_known = (-math.inf, -math.inf)  # merit, and of equal ones the negative loss

    def learn(self, should_stop: Callable[[], bool]) -> EpochResult:
        """See `Learner.learn`; trees are stopped after any of them, a regression before it begins."""

        def check() -> None:
            if should_stop():
                raise TrainingStopped(f"training stopped after epoch {self.epoch}")

        train, validation = self._taught, self._snapshot.rows("validation")
        # One thread: the others are the servers', and threads that wait for a core that they do not get
        # make trees a hundred times slower.
        with threadpool_limits(1), warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # it goes on in the next epoch
            self._fit(self._estimator, self.epoch + 1, self._taught, check)
            predictions = [
                answers_of(self._estimator, part.numbers).astype(np.float32)
                for part in _parts(validation, check)
            ]
            shown = LabelledRows(train.numbers[:_LOSS_ROWS], train.targets[:_LOSS_ROWS])
            told = answers_of(self._estimator, shown.numbers)
        score = self._metric.score(np.concatenate(predictions), validation.labels)
        self.epoch += 1
        known = (score.merit, -(score.loss or 0.0))
        if known > self._best_known:
            self._best, self._best_known = frozen(self._estimator), known
        loss = self._metric.loss(told, shown.labels)
        return EpochResult(loss, score, has_converged(self._estimator))

    def write(self, path: str, *, best: bool) -> None:
        """See `Learner.write`. Raises `ModelUnusable` where ONNX would answer otherwise."""
        estimator = self._best if best else self._estimator
        model = self._as_onnx(estimator, self._snapshot.width)
        onnx.helper.set_model_props(model, dict(self._snapshot.properties))
        with open(path, "wb") as file:
            file.write(model.SerializeToString())
            file.flush()
            os.fsync(file.fileno())
        self._compare(estimator, _runner(path))

    def _as_onnx(self, estimator: Estimator, width: int) -> onnx.ModelProto:
        if isinstance(estimator, LinearHead):
            return linear_onnx(estimator, _OPSETS)
        if isinstance(estimator, HIST_BOOSTED):
            exact_in_float32(estimator)
            return forest_onnx(hist_forest(estimator), width, _OPSETS)
        if isinstance(estimator, BoostedClassifier | BoostedRegressor):
            return forest_onnx(estimator.forest(), width, _OPSETS)
        options = {"zipmap": False} if hasattr(estimator, "predict_proba") else None
        zeros = np.zeros((1, width), np.float32)
        model: onnx.ModelProto = to_onnx(estimator, zeros, options=options, target_opset=_OPSETS)
        for value in (*model.graph.output, *model.graph.value_info):
            value.name = VALUES if value.name == _VARIABLE else value.name
        for node in model.graph.node:
            node.output[:] = [VALUES if name == _VARIABLE else name for name in node.output]
        return model

    def _compare(self, estimator: Estimator, run: Callable[[Floats], Floats]) -> None:
        with threadpool_limits(1):
            gaps = [
                float(np.abs(run(part.numbers) - answers_of(estimator, part.numbers)).max())
                for part in _parts(self._snapshot.rows("validation"))
            ]
        tells_classes = hasattr(estimator, "predict_proba")
        scale = 1.0 if tells_classes else float(np.abs(self._taught.targets).max()) or 1.0
        if not max(gaps) < _CLOSE * scale:
            raise ModelUnusable(f"the model written as ONNX answers otherwise, by up to {max(gaps):.3g}")

    def write_state(self, path: str) -> None:
        """See `Learner.write_state`: it cannot."""
        raise ValueError("tabular models cannot be paused; use the policy 'study'")


def table_of(path: str) -> Table:
    """The columns of a checkpoint. Raises `ModelUnusable`."""
    stored = open_session(path, _CPU).get_modelmeta().custom_metadata_map.get(COLUMNS_KEY)
    if stored is None:
        raise ModelUnusable(f"{path} holds no columns")
    return Table.from_json(stored)


def evaluated(snapshot: Rows, split: str, start: str) -> Evaluation:
    """What the checkpoint `start` answers to a split, by ONNX Runtime."""
    rows = snapshot.rows(split)
    run = _runner(start)
    found = [run(part.numbers) for part in _parts(rows)]
    row_s = row_time(lambda part: run(rows.numbers[part]), len(rows.labels))
    predictions = np.concatenate(found) if found else np.zeros((0, 0), np.float32)
    return Evaluation(predictions, rows.labels, row_s)


def _runner(path: str) -> Callable[[Floats], Floats]:
    """What the checkpoint answers to float32 [n, width]: float32 [n, classes], or [n, 1] of a regression."""
    session = open_session(path, _CPU)
    name = session.get_inputs()[0].name
    outputs = [output.name for output in session.get_outputs()]
    wanted = PROBABILITIES if PROBABILITIES in outputs else VALUES

    def run(numbers: Floats) -> Floats:
        (found,) = session.run([wanted], {name: numbers})
        return np.asarray(found, np.float32)

    return run


def _parts(rows: LabelledRows, check: Callable[[], None] = lambda: None) -> Iterator[LabelledRows]:
    """Some rows at a time: estimators take several numbers of memory for each number that they are shown."""
    for start in range(0, len(rows.labels), _PART_ROWS):
        check()
        part = slice(start, start + _PART_ROWS)
        yield LabelledRows(rows.numbers[part], rows.labels[part])
