"""What a training process asks of whatever learns: an epoch at a time, then what was learnt as a file.

`network_learner` is torch's modules, `tabular_learner` scikit-learn's estimators; `learners` chooses.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast, get_args

import numpy as np
from numpy.typing import NDArray

from gpu_worker.errors import BadRequest
from gpu_worker.tasks import Task, task_named
from gpu_worker.tasks.metrics import METRICS, Metric, Score, Targets

__all__ = ["ClassWeight", "EpochResult", "Evaluation", "Learner", "Objective", "Spec", "row_time"]

ClassWeight = Literal["none", "balanced"]

_TIMED_ROWS = 64
_TIMED_PASSES = 7


@dataclass(frozen=True, slots=True)
class Objective:
    """What a trial learns to say, and by which metric it is scored.

    refits: whether the validation rows are taught as well, once they have chosen the knobs.
    classes: of a snapshot; none where the targets are numbers. class_weight: `balanced` = every class weighs
    as much as the others (rows / (classes · rows of the class), King & Zeng 2001), however rare it is.
    """

    task: Task
    classes: tuple[str, ...]
    metric: Metric
    class_weight: ClassWeight = "none"
    refits: bool = False

    @classmethod
    def of(
        cls,
        task: str,
        classes: Sequence[str],
        metric: str = "",
        class_weight: str = "none",
        *,
        refits: bool = False,
    ) -> Objective:
        """From the names of a message; metric "" = the task's first. Raises `BadRequest`."""
        found = task_named(task)
        name = metric or found.metrics[0]
        if name not in found.metrics or name not in METRICS:
            raise BadRequest(f"{found.name} has no metric {name!r}; there are {', '.join(found.metrics)}")
        if class_weight not in get_args(ClassWeight):
            raise BadRequest(f"a class weight is none or balanced, not {class_weight!r}")
        return cls(found, tuple(classes), METRICS[name], cast("ClassWeight", class_weight), refits)

    @property
    def taught(self) -> tuple[str, ...]:
        """The splits whose rows are learnt from."""
        return ("train", "validation") if self.refits else ("train",)

    def row_weights(self, labels: Targets) -> NDArray[np.float64] | None:
        """What each training row weighs, 1 on average; None = all the same. labels: int [n], of classes."""
        if self.class_weight == "none" or not self.classes:
            return None
        labels = labels.astype(np.int64)
        counts = np.bincount(labels, minlength=len(self.classes))
        weights: NDArray[np.float64] = (len(labels) / (len(counts) * np.maximum(1, counts)))[labels]
        return weights


@dataclass(frozen=True, slots=True)
class EpochResult:
    """What one epoch brought: the loss on the training rows, the score of the validation rows. converged:
    whether further epochs would bring the same.
    """

    loss: float
    score: Score
    converged: bool = False


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What a checkpoint answers to some rows; see `gpu_worker.tasks.metrics` for what targets are.

    predictions: float32 [n, width]. row_s: see `row_time`.
    """

    predictions: NDArray[np.float32]
    targets: Targets
    row_s: float


class Learner(Protocol):
    """A trial under way in this process."""

    suffix: str  # of its checkpoints' files

    @property
    def epoch(self) -> int:
        """How many of its epochs are done."""
        ...

    @property
    def skipped(self) -> int:
        """Rows of the snapshot that could no longer be read."""
        ...

    def learn(self, should_stop: Callable[[], bool]) -> EpochResult:
        """One epoch. Raises `loop.TrainingStopped` where `should_stop` says so."""
        ...

    def write(self, path: str, *, best: bool) -> None:
        """What it has learnt; with `best`, after the epoch with the best score since it began."""
        ...

    def write_state(self, path: str) -> None:
        """What else is needed to go on from there. Raises `ValueError` where it cannot."""
        ...


def row_time(
    run: Callable[[slice], object], rows: int, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Seconds that `run` takes for a row: the least of some short passes over the first rows.

    A pass that was stopped for serving, or that was the first and cold, is not the least one.
    """
    part = slice(0, min(rows, _TIMED_ROWS))
    passes = []
    for _ in range(_TIMED_PASSES if rows else 0):
        began_s = clock()
        run(part)
        passes.append(clock() - began_s)
    return min(passes, default=0.0) / max(1, part.stop)


Spec = dict[str, Any]
