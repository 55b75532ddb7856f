"""A snapshot's targets as learners take them: indices into classes, flags of labels, or numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_worker.tasks.metrics import Targets
from gpu_worker.train.learner import Objective
from gpu_worker.train.snapshot import NO_CLASS

__all__ = ["learnt_targets"]


def learnt_targets(objective: Objective, given: Sequence[Any]) -> Targets:
    """As metrics take them, in the order given.

    given: of classes texts, of labels JSON arrays of texts, else numbers. A class or label that is not the
    objective's is `NO_CLASS`, or none.
    """
    if objective.task.reads == "values":
        return np.array(given, np.float64)
    index = {label: at for at, label in enumerate(objective.classes)}
    if objective.task.picks_one:
        return np.array([index.get(label, NO_CLASS) for label in given], np.int64)
    flags: NDArray[np.bool_] = np.zeros((len(given), len(index)), np.bool_)
    for row, text in enumerate(given):
        flags[row, [index[label] for label in json.loads(text) if label in index]] = True
    return flags
