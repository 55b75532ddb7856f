"""Whether a challenger takes a champion's place: an exact paired test on the same rows. Pure.

Only rows that one of them answers rightly and the other wrongly tell anything (McNemar 1947). If both were
equally good, each such row would be a fair coin; p is the chance of at least as many for the challenger.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Match", "match"]

_LEVEL = 0.05


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
