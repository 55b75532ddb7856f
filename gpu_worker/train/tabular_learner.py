"""scikit-learn's estimators, a few trees or iterations an epoch, written as ONNX.

A checkpoint holds the columns with the model (`networks.row_network`), and is run by ONNX Runtime once it is
written: what the validation rows said of the estimator, the file says too. It cannot be trained on: trials
neither pause nor begin from another's checkpoint.
"""

from __future__ import annotations

import copy
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import onnx
from skl2onnx import to_onnx
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from gpu_worker.device import Device
from gpu_worker.errors import ModelUnusable
from gpu_worker.networks.network import Floats
from gpu_worker.networks.onnx_network import open_session
from gpu_worker.networks.row_network import COLUMNS_KEY, PROBABILITIES
from gpu_worker.networks.table import Table
from gpu_worker.train.learner import EpochResult, Evaluation, Objective, row_time
from gpu_worker.train.loop import TrainingStopped
from gpu_worker.train.tabular import LabelledRows, TableSnapshot

__all__ = ["TabularLearner", "TabularSpec", "evaluated", "table_of"]

# That of the oldest ONNX Runtime that pyproject permits.
_OPSETS = {"": 17, "ai.onnx.ml": 3}
_BOOSTED = 10  # trees an epoch
_FOREST = 10
_ITERATIONS = 25
_PART_ROWS = 65_536
_CLOSE = 1e-3  # between probabilities in float64 and float32

_CPU = Device("cpu", "", 0, 1)

Estimator: TypeAlias = Any  # scikit-learn ships no types


@dataclass(frozen=True, slots=True)
class TabularSpec:
    """architecture: gradient_boosting, random_forest or logistic_regression. knobs: the estimator's own."""

    architecture: str
    epochs: int
    seed: int = 0
    knobs: Mapping[str, Any] = field(default_factory=dict)


class TabularLearner:
    """See `Learner`. Raises `ValueError` for knobs that the estimator does not have."""

    suffix = ".onnx"
    skipped = 0

    def __init__(self, spec: TabularSpec, snapshot: TableSnapshot, objective: Objective) -> None:
        self.epoch = 0
        self._metric = objective.metric
        self._snapshot = snapshot
        self._estimator, self._fit = _estimator(spec)
        self._best: Estimator = None
        self._best_merit = -math.inf

    def learn(self, should_stop: Callable[[], bool]) -> EpochResult:
        """See `Learner.learn`; trees are stopped after any of them, a regression before it begins."""
        train, validation = self._snapshot.rows("train"), self._snapshot.rows("validation")

        def check() -> None:
            if should_stop():
                raise TrainingStopped(f"training stopped after epoch {self.epoch}")

        check()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # it goes on in the next epoch
            self._fit(self._estimator, self.epoch + 1, train, check)
        score = self._metric.score(_answers(self._estimator, validation, check), validation.labels)
        loss = _log_loss(self._estimator, train, check)
        self.epoch += 1
        if score.merit > self._best_merit:
            self._best, self._best_merit = copy.deepcopy(self._estimator), score.merit
        return EpochResult(loss, score)

    def write(self, path: str, *, best: bool) -> None:
        """See `Learner.write`. Raises `ModelUnusable` where ONNX would answer otherwise."""
        estimator = self._best if best else self._estimator
        table = self._snapshot.table
        model = to_onnx(
            estimator,
            np.zeros((1, table.width), np.float32),
            options={"zipmap": False},
            target_opset=_OPSETS,
        )
        onnx.helper.set_model_props(model, {COLUMNS_KEY: table.as_json()})
        with open(path, "wb") as file:
            file.write(model.SerializeToString())
            file.flush()
            os.fsync(file.fileno())
        validation = self._snapshot.rows("validation")
        run = _runner(path)
        gap = max(
            float(np.abs(run(part.numbers) - estimator.predict_proba(part.numbers)).max())
            for part in _parts(validation)
        )
        if not gap < _CLOSE:
            raise ModelUnusable(f"the model written as ONNX answers otherwise, by up to {gap:.3g}")

    def write_state(self, path: str) -> None:
        """See `Learner.write_state`: it cannot."""
        raise ValueError("tabular models cannot be paused; use the policy 'study'")


def table_of(path: str) -> Table:
    """The columns of a checkpoint. Raises `ModelUnusable`."""
    stored = open_session(path, _CPU).get_modelmeta().custom_metadata_map.get(COLUMNS_KEY)
    if stored is None:
        raise ModelUnusable(f"{path} holds no columns")
    return Table.from_json(stored)


def evaluated(snapshot: TableSnapshot, split: str, start: str) -> Evaluation:
    """What the checkpoint `start` answers to a split, by ONNX Runtime."""
    rows = snapshot.rows(split)
    run = _runner(start)
    found = [run(part.numbers) for part in _parts(rows)]
    row_s = row_time(lambda part: run(rows.numbers[part]), len(rows.labels))
    predictions = np.concatenate(found) if found else np.zeros((0, 0), np.float32)
    return Evaluation(predictions, rows.labels, row_s)


def _runner(path: str) -> Callable[[Floats], Floats]:
    """What the checkpoint answers to float32 [n, width]: float32 [n, classes]."""
    session = open_session(path, _CPU)
    name = session.get_inputs()[0].name

    def run(numbers: Floats) -> Floats:
        (found,) = session.run([PROBABILITIES], {name: numbers})
        return np.asarray(found, np.float32)

    return run


def _parts(rows: LabelledRows, check: Callable[[], None] = lambda: None) -> Iterator[LabelledRows]:
    """Some rows at a time: estimators take several numbers of memory for each number that they are shown."""
    for start in range(0, len(rows.labels), _PART_ROWS):
        check()
        part = slice(start, start + _PART_ROWS)
        yield LabelledRows(rows.numbers[part], rows.labels[part])


def _answers(estimator: Estimator, rows: LabelledRows, check: Callable[[], None]) -> Floats:
    """What it answers to all rows: float32 [n, classes]."""
    found = [np.asarray(estimator.predict_proba(part.numbers), np.float32) for part in _parts(rows, check)]
    return np.concatenate(found)


def _log_loss(estimator: Estimator, rows: LabelledRows, check: Callable[[], None]) -> float:
    """The mean of −log p of the labels, as scikit-learn's `log_loss`."""
    least = float(np.finfo(np.float64).eps)
    lost = [
        float(-np.log(np.clip(p[np.arange(len(p)), part.labels], least, 1 - least)).sum())
        for part in _parts(rows, check)
        for p in (np.asarray(estimator.predict_proba(part.numbers), np.float64),)
    ]
    return sum(lost) / max(1, len(rows.labels))


# Fits an estimator for the epoch of that number (1 is the first); calls the last between its trees.
Fit: TypeAlias = "Callable[[Estimator, int, LabelledRows, Callable[[], None]], None]"


def _boost(boosted: Estimator, epoch: int, train: LabelledRows, check: Callable[[], None]) -> None:
    boosted.set_params(n_estimators=_BOOSTED * epoch)
    boosted.fit(train.numbers, train.labels, monitor=lambda *_: check())


def _grow(forest: Estimator, epoch: int, train: LabelledRows, check: Callable[[], None]) -> None:
    # One by one they are the same trees: scikit-learn goes on with the seeds where it stood.
    for trees in range(_FOREST * (epoch - 1) + 1, _FOREST * epoch + 1):
        check()
        forest.set_params(n_estimators=trees).fit(train.numbers, train.labels)


def _regress(regression: Estimator, epoch: int, train: LabelledRows, check: Callable[[], None]) -> None:
    regression.fit(train.numbers, train.labels)


def _estimator(spec: TabularSpec) -> tuple[Estimator, Fit]:
    """The estimator, and how it is fitted."""
    knobs = dict(spec.knobs)
    try:
        if spec.architecture == "gradient_boosting":
            boosted = GradientBoostingClassifier(random_state=spec.seed, warm_start=True, **knobs)
            return boosted, _boost
        if spec.architecture == "random_forest":
            forest = RandomForestClassifier(random_state=spec.seed, warm_start=True, n_jobs=1, **knobs)
            return forest, _grow
        if spec.architecture == "logistic_regression":
            weight = knobs.pop("class_weight", "none")
            regression = LogisticRegression(
                random_state=spec.seed,
                warm_start=True,
                max_iter=_ITERATIONS,
                class_weight=None if weight == "none" else weight,
                **knobs,
            )
            return regression, _regress
    except TypeError as exc:
        raise ValueError(f"{spec.architecture}: {exc}") from exc
    raise ValueError(f"there is no tabular model {spec.architecture!r}")
