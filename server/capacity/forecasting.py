"""How many rows a second will come: Holt's damped trend over counts, which forgets quickly after a jump."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

__all__ = ["RateForecast", "is_jump"]

_LEVEL = 0.35  # weight of a new second
_LEVEL_JUMP = 0.875  # of one that the old seconds do not explain
_EVENTS = 40.0  # rows of memory, where they are few
_TREND = 0.12
_DAMPING = 0.9
_SURPRISE = 4.0  # standard deviations of a count
_JUMP_SHARE = 0.3  # of the forecast, that a jump differs by
_TREND_SHARE = math.sqrt(_TREND / (2 - _TREND))  # of a level's noise, in its trend
_TREND_NOISE = 2.0  # standard deviations of the trend that chance alone gives: within it, it does not count
_ERRORS = 0.1  # weight of a new error
_FROZEN_S = 10.0  # nothing is foreseen beyond


@dataclass(frozen=True, slots=True)
class RateForecast:
    """level: rows/s now. trend: by how much they grow a second. variance: of a second's count around its
    forecast; that of chance at first."""

    level: float
    trend: float = 0.0
    variance: float = 0.0

    def seen(self, rows_per_s: float, for_s: float = 1.0) -> RateForecast:
        """After so many rows a second came for so long."""
        expected = max(0.0, self.level + _DAMPING * self.trend)
        chance = max(expected, 1 / for_s) / for_s
        error = rows_per_s - expected
        surprised = abs(error) > _SURPRISE * math.sqrt(chance)
        if surprised and abs(error) > _JUMP_SHARE * expected:
            level = expected + _LEVEL_JUMP * error
            return RateForecast(level, 0.0, level)
        weight = _LEVEL_JUMP if surprised else _weight(expected * for_s)
        level = expected + weight * error
        trend = _DAMPING * self.trend + _TREND * (level - self.level - _DAMPING * self.trend)
        variance = self.variance + _ERRORS * (error * error * for_s - self.variance)
        return RateForecast(max(0.0, level), trend, variance)

    @property
    def known_trend(self) -> float:
        """The trend, as far as it is more than chance."""
        noise = math.sqrt(max(self.level, 1.0)) * _weight(self.level) * _TREND_SHARE
        return self.trend if abs(self.trend) > _TREND_NOISE * noise else 0.0

    def at(self, in_s: float) -> float:
        """Rows/s expected then. Beyond 10 s nothing changes."""
        return max(0.0, self.band(in_s)[0])

    def band(self, in_s: float) -> tuple[float, float]:
        """Rows/s expected then, below 0 where the trend leads there, and one standard deviation of that."""
        return self.bands((in_s,))[0]

    def bands(self, in_s: Sequence[float]) -> list[tuple[float, float]]:
        """`band` of each time; times ascend."""
        trend, weight = self.known_trend, _weight(self.level)
        of_level = max(self.level, 1.0) * weight / (2 - weight)
        of_second = weight * weight * max(0.0, self.variance - self.level)
        found: list[tuple[float, float]] = []
        for at_s in in_s:
            ahead_s = min(at_s, _FROZEN_S)
            grown = trend * _DAMPING * (1 - math.pow(_DAMPING, ahead_s)) / (1 - _DAMPING) if trend else 0.0
            found.append((self.level + grown, math.sqrt(of_level + of_second * ahead_s)))
            if at_s >= _FROZEN_S:
                break
        return found + found[-1:] * (len(in_s) - len(found))

    def moved_to(self, rows_per_s: float) -> RateForecast:
        """After a jump that a part of a second has shown."""
        return replace(self, level=rows_per_s, trend=0.0, variance=rows_per_s)


def _weight(rows: float) -> float:
    return min(_LEVEL, max(rows, 1.0) / _EVENTS)


def is_jump(rows: float, expected: float) -> bool:
    """Whether so many rows are more than chance would bring where so many are expected."""
    return rows > expected + 5 * math.sqrt(2 * max(expected, 0.5))
