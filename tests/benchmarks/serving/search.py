"""The search for the highest rate that a server stands: which rate to try next. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

__all__ = ["Search"]

_UP, _DOWN = 2.0, 0.6
_LOWEST = 2.0  # rows/s; below it a server stands nothing


@dataclass(frozen=True, slots=True)
class Search:
    """Rates tried so far: `stood` is the highest that passed, `fell` the lowest that did not.

    A rate has fallen after two failures: one may be the machine's, which others use too.
    """

    first: float
    tolerance: float = 0.08
    stood: float = 0.0
    fell: float = math.inf
    doubted: float = 0.0  # failed once

    def next_rate(self) -> float | None:
        """The rate to try next; None when the highest is known to `tolerance`."""
        if self.doubted:
            return self.doubted
        if self.fell == math.inf:
            return self.stood * _UP or self.first
        if not self.stood:
            lower = self.fell * _DOWN
            return lower if lower > _LOWEST else None
        if self.fell <= self.stood * (1 + self.tolerance):
            return None
        return math.sqrt(self.stood * self.fell)

    def told(self, rate: float, *, passed: bool) -> Search:
        """The search after `rate` was tried."""
        if passed:
            return replace(self, stood=max(self.stood, rate), doubted=0.0)
        if rate != self.doubted:
            return replace(self, doubted=rate)
        return replace(self, fell=min(self.fell, rate), doubted=0.0)
