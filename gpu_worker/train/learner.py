"""What a training process asks of whatever learns: an epoch at a time, then what was learnt as a file.

`network_learner` is torch's modules, `tabular_learner` scikit-learn's estimators; `learners` chooses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Evaluation", "Learner", "Lesson"]


@dataclass(frozen=True, slots=True)
class Lesson:
    """What one epoch brought: the loss on the training rows, the accuracy on the validation rows."""

    loss: float
    score: float


@dataclass(frozen=True, slots=True)
class Evaluation:
    """probabilities: float32 [n, classes]; labels: n indices; row_s: time of a pass, per row."""

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

    def learn(self, should_stop: Callable[[], bool]) -> Lesson:
        """One epoch. Raises `loop.Stopped` where `should_stop` says so."""
        ...

    def write(self, path: str, *, best: bool) -> None:
        """What it has learnt; with `best`, after the epoch with the best score since it began."""
        ...

    def write_state(self, path: str) -> None:
        """What else is needed to go on from there. Raises `ValueError` where it cannot."""
        ...


Spec = dict[str, Any]
