"""From values to places on a chart, and which values are named on its axis. Plain arithmetic."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeGuard

__all__ = [
    "CategoryScale",
    "LinearScale",
    "LogScale",
    "Scale",
    "finite",
    "is_drawn",
    "linear",
    "spread",
    "time_ticks",
]

_GREATEST = 1e300  # sums of two are numbers still
_LEAST = 1e-300  # parts of it have logarithms still
_NICE = (1.0, 2.0, 2.5, 5.0, 10.0)
_TIME_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)


class Scale(Protocol):
    """Where a value lies between two places, and which are named."""

    def __call__(self, value: float) -> float:
        """The place."""
        ...

    def ticks(self) -> Sequence[float]:
        """The values to name, rising."""
        ...


@dataclass(frozen=True, slots=True)
class LinearScale:
    """low and high lie at start and end; `high > low`."""

    low: float
    high: float
    start: float
    end: float
    steps: Sequence[float] = ()

    def __call__(self, value: float) -> float:
        """The place."""
        share = (value - self.low) / (self.high - self.low)
        return self.start + min(1.0, max(0.0, share)) * (self.end - self.start)

    def ticks(self) -> Sequence[float]:
        """The values to name, rising."""
        return self.steps


@dataclass(frozen=True, slots=True)
class LogScale:
    """Powers of ten lie equally far apart; `high > low > 0`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The place."""
        share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        return self.start + min(1.0, share) * (self.end - self.start)

    def ticks(self) -> Sequence[float]:
        """The values to name, rising."""
        first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
        powers = [10.0**power for power in range(first, last + 1)]
        return powers if len(powers) > 1 else (self.low, self.high)


@dataclass(frozen=True, slots=True)
class CategoryScale:
    """0, 1, … up to `count` - 1, equally far apart; a single one in the middle."""

    count: int
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The place."""
        share = value / (self.count - 1) if self.count > 1 else 0.5
        return self.start + share * (self.end - self.start)

    def ticks(self) -> Sequence[float]:
        """The values to name, rising."""
        return range(self.count)


def finite(values: Iterable[float | None]) -> list[float]:
    """Those that can be drawn."""
    return [value for value in values if is_drawn(value)]


def is_drawn(value: float | None) -> TypeGuard[float]:
    """Whether it is a number with a place on a chart."""
    return value is not None and abs(value) <= _GREATEST


def spread(values: Sequence[float]) -> tuple[float, float]:
    """The least and the greatest, apart even where all are equal; 0 and 1 of none, or of nothing but 0."""
    low, high = (min(values), max(values)) if any(abs(value) > _LEAST for value in values) else (0.0, 1.0)
    if high - low > 1e-12 * max(abs(low), abs(high)):
        return low, high
    room = abs(low) * 0.1 or 1.0
    return low - room, high + room


def linear(low: float, high: float, start: float, end: float, *, steps: int = 4) -> LinearScale:
    """A scale that ends at named values around `low` and `high`, about `steps` apart."""
    step = _step((high - low) / steps)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    last = max(last, first + 1)
    named = [round(number * step, 12) for number in range(first, last + 1)]
    return LinearScale(first * step, last * step, start, end, named)


def time_ticks(low: float, high: float, most: int) -> list[float]:
    """Round moments between two, in Unix seconds, at most so many."""
    span = high - low
    step = next((step for step in _TIME_STEPS_S if span / step <= most), 0)
    if not step:
        step = 86_400 * math.ceil(span / most / 86_400)
    first = math.ceil(low / step)
    return [float(number * step) for number in range(first, math.floor(high / step) + 1)]


def _step(least: float) -> float:
    base = 10.0 ** math.floor(math.log10(max(least, _LEAST)))
    return next(base * nice for nice in _NICE if base * nice >= least * 0.999)
