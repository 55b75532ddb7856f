"""How many rows a second each model had of late, over restarts: what a server starts from.

Pure. Slower than what placement policies see (minutes and not seconds), since it is to say what tomorrow will
be like. All times are Unix times.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

__all__ = ["RatesOfLate"]

_FADE_S = 600.0  # rows of so long ago count for 1/e


class RatesOfLate:
    """Counts rows by model, fading.

    Rates are as of the last row that came for any model: while a server is down no rows come, and what was
    popular before is not less so.
    """

    def __init__(self) -> None:
        self._counts: dict[str, tuple[float, float]] = {}  # rows that count, and as of when
        self._newest_s = -math.inf

    def remember(self, key: str, rows_per_s: float, at_s: float) -> None:
        """So it was at the model's last use; what was counted since counts for more."""
        if rows_per_s > 0 and key not in self._counts:
            self._counts[key] = (rows_per_s * _FADE_S, at_s)
            self._newest_s = max(self._newest_s, at_s)

    def count(self, keys: Iterable[str], rows: int, at_s: float) -> None:
        """Rows are sent to the models."""
        self._newest_s = max(self._newest_s, at_s)
        for key in keys:
            counted, then_s = self._counts.get(key, (0.0, at_s))
            self._counts[key] = (counted * math.exp((min(then_s, at_s) - at_s) / _FADE_S) + rows, at_s)

    def forget(self, key: str) -> None:
        """The model is no more."""
        self._counts.pop(key, None)

    def rows_per_s(self, key: str) -> float:
        """Of a model; 0 where none came."""
        counted, then_s = self._counts.get(key, (0.0, 0.0))
        return counted * math.exp((then_s - self._newest_s) / _FADE_S) / _FADE_S if counted else 0.0
