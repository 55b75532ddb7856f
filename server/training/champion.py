"""Whether a challenger takes a champion's place: what each answers, and an exact paired test. Pure.

Only rows that one of them answers rightly and the other wrongly tell anything (McNemar 1947). If both were
equally good, each such row would be a fair coin; p is the chance of at least as many for the challenger.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from server.training.selection import Combine, accuracy_of, answers_of

__all__ = ["Match", "Tested", "match"]

_LEVEL = 0.05


class Tested:
    """What members answered to the test rows, whose labels are known: float32 [n, classes] of each."""

    def __init__(self, scores: Mapping[str, NDArray[Any]], labels: NDArray[np.int64]) -> None:
        self.scores = scores
        self.labels = labels

    def right(self, combine: Combine = "mean") -> NDArray[np.bool_]:
        """For each row, whether the members together answer it rightly."""
        right: NDArray[np.bool_] = (
            answers_of(list(self.scores), self.scores, self.labels, combine) == self.labels
        )
        return right

    def share_of(self, member: str) -> float:
        """The share that one member alone answers rightly."""
        return accuracy_of([member], self.scores, self.labels, "mean")


@dataclass(frozen=True, slots=True)
class Match:
    """Rows that only one of them answers rightly, and the one-sided p."""

    challenger_only: int
    champion_only: int
    p_value: float

    @property
    def is_won(self) -> bool:
        """Whether the challenger is better, at the level of 5 %."""
        return self.p_value < _LEVEL


def match(challenger: NDArray[np.bool_], champion: NDArray[np.bool_]) -> Match:
    """challenger, champion: for each row, whether it was answered rightly."""
    wins = int((challenger & ~champion).sum())
    losses = int((champion & ~challenger).sum())
    rows = wins + losses
    reached = sum(math.comb(rows, count) for count in range(wins, rows + 1))
    return Match(wins, losses, reached / 2**rows)
