"""What a training process asks of whatever learns: an epoch at a time, then what was learnt as a file.

`network_learner` is torch's modules, `tabular_learner` scikit-learn's estimators; `learners` chooses.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["EpochResult", "Evaluation", "Learner", "Spec", "row_time"]

_TIMED_ROWS = 64
_TIMED_PASSES = 7


@dataclass(frozen=True, slots=True)
class EpochResult:
    """What one epoch brought: the loss on the training rows, the accuracy on the validation rows."""

    loss: float
    score: float


@dataclass(frozen=True, slots=True)
class Evaluation:
    """probabilities: float32 [n, classes]; labels: n indices; row_s: see `row_time`."""

    probabilities: NDArray[np.float32]
    labels: list[int]
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
