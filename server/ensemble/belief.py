"""How probable it is that answers are right, by what all members together say of each row. Pure; numpy.

A label says of a row which one class was right, and of few rows that is mostly chance: some subset of the
members, or some plan, is always lucky. All members together say of each row how probable every answer is, and
so what it loses to answer otherwise than they do. The mean of what is probable has the expectation of what is
counted, and varies less (Rao–Blackwell). Labels say but how often all together are right.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

__all__ = ["believed_right"]

Floats = NDArray[np.float64]

_SURELY = 1e-6  # between what is believed and what is certain
_LOG_ODDS, _HALVINGS = 30.0, 50


def believed_right(by_all: Floats, correct: NDArray[np.bool_]) -> Floats:
    """How probable it is that answers are right, [answers, rows]; the last ones are those of all members.

    by_all: [answers, rows], how probable each is by all members. correct: [rows], whether the answers of all
    members are right. They are taken to be as sure of them as they are right over all rows, by odds that are
    so many times theirs for every row; what is left is shared by the other answers as before.
    """
    told = np.clip(np.nan_to_num(by_all), _SURELY, 1 - _SURELY)
    mean = (float(np.count_nonzero(correct)) + 0.5) / (len(correct) + 1)  # a few rows are never all that come
    sure = _with_mean(told[-1], mean)
    others = np.minimum(told * (1 - sure) / (1 - told[-1]), sure)
    found: Floats = np.where(told == told[-1], sure, others)
    return found


def _with_mean(told: Floats, mean: float) -> Floats:
    """These probabilities with their odds times one number, by which their mean is this one."""
    odds = told / (1 - told)
    low, high = -_LOG_ODDS, _LOG_ODDS
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        times = odds * math.exp(middle)
        low, high = (middle, high) if (times / (1 + times)).mean() < mean else (low, middle)
    times = odds * math.exp((low + high) / 2)
    found: Floats = times / (1 + times)
    return found
