"""Waiting times in a fixed small space: a histogram of logarithmic buckets, for quantiles within 10 %."""

from __future__ import annotations

import math
from collections import Counter

__all__ = ["LatencyHistogram"]

_BUCKETS_PER_OCTAVE = 4  # neighbours differ by 19 %: a bucket's middle is within 9 % of all in it
_LEAST_S = 1e-6


class LatencyHistogram:
    """Durations, counted."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def add(self, seconds: float) -> None:
        """Count one."""
        self._counts[round(math.log2(max(seconds, _LEAST_S)) * _BUCKETS_PER_OCTAVE)] += 1

    def quantile_s(self, share: float) -> float | None:
        """The duration that `share` (0 to 1) of all did not exceed; None where there are none."""
        wanted = share * self._counts.total()
        for bucket in sorted(self._counts):
            wanted -= self._counts[bucket]
            if wanted <= 0:
                return float(2 ** (bucket / _BUCKETS_PER_OCTAVE))
        return None
