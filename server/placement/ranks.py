"""The foremost few of many, without looking at all of them each time.

A model's arrivals fade, but all at one rate: what orders models, ln(arrivals) + time / fade, only rises, and
only when rows come for the model. So of those that are not listed it is enough to know a bound; all are
looked at when too few are left of those listed. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from heapq import nlargest
from operator import itemgetter

__all__ = ["Foremost"]

_KEPT = 32  # listed after all were looked at
_FEWEST = 8  # left of those before all are looked at again


class Foremost:
    """Those of the highest scores, at most twice `_KEPT`.

    The scores of those that are not listed must not rise without being `put`.
    """

    def __init__(self) -> None:
        self._scores: dict[str, float] = {}
        self._bound = -math.inf  # no other's score is higher

    def __contains__(self, key: str) -> bool:
        return key in self._scores

    def put(self, key: str, score: float) -> None:
        """It is new among the many, or has another score."""
        if score < self._bound:
            self._scores.pop(key, None)
            return
        self._scores[key] = score
        if len(self._scores) > 2 * _KEPT:
            self._keep(self._scores.items())

    def drop(self, key: str) -> None:
        """It is no longer one of the many."""
        self._scores.pop(key, None)

    def keys(self) -> tuple[str, ...]:
        """In no order."""
        return tuple(self._scores)

    @property
    def is_short(self) -> bool:
        """Whether too few are left, of more: `refill` is due."""
        return len(self._scores) < _FEWEST and self._bound > -math.inf

    def refill(self, everyone: Iterable[tuple[str, float]]) -> None:
        """Look at all of the many, with their scores."""
        self._bound = -math.inf
        self._keep(everyone)

    def _keep(self, scored: Iterable[tuple[str, float]]) -> None:
        first = nlargest(_KEPT + 1, scored, key=itemgetter(1))
        if len(first) > _KEPT:
            self._bound = max(self._bound, first.pop()[1])
        self._scores = dict(first)
