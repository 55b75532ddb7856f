"""A rate that is not passed for long: rows a second, and a second's worth at once. Pure: time is told."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["TokenBucket"]

_BURST_S = 1.0  # of rows that may come at once


@dataclass(slots=True)
class TokenBucket:
    """`rate` rows a second.

    A request is whole: it goes through while nothing is owed, and what is beyond is owed for.
    """

    rate: float
    level: float
    at_s: float

    @classmethod
    def full(cls, rate: float, now_s: float) -> TokenBucket:
        """Of one that comes for the first time."""
        return cls(rate, max(1.0, rate * _BURST_S), now_s)

    def wait_s(self, now_s: float) -> float:
        """How long nothing may come; 0 if something may."""
        self._fill(now_s)
        return 0.0 if self.level > 0 else (1 - self.level) / self.rate

    def take(self, now_s: float, rows: int) -> None:
        """So many rows came."""
        self._fill(now_s)
        self.level -= rows

    def is_full(self, now_s: float) -> bool:
        """Whether it is as if nothing had ever come."""
        self._fill(now_s)
        return self.level >= max(1.0, self.rate * _BURST_S)

    def _fill(self, now_s: float) -> None:
        self.level = min(max(1.0, self.rate * _BURST_S), self.level + (now_s - self.at_s) * self.rate)
        self.at_s = now_s
