"""l̂(b): how long a batch of b rows will take, on one variant and one kind of device.

Knows batch sizes and seconds; nothing of queues, policies or models.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

__all__ = ["LatencyModel"]


class LatencyModel:
    """Piecewise linear through the profiled points; proportional beyond them."""

    __slots__ = ("_points",)

    def __init__(self, profile_s: Mapping[int, float]) -> None:
        """`profile_s`: rows of a batch → seconds. Raises ValueError if it is empty or not positive."""
        if not profile_s or any(rows < 1 or seconds <= 0 for rows, seconds in profile_s.items()):
            raise ValueError("a latency profile needs at least one point, with rows ≥ 1 and seconds > 0")
        self._points = sorted(profile_s.items())

    def __call__(self, rows: int) -> float:
        """Predicted seconds of a batch of `rows` rows."""
        points = self._points
        at = bisect_left(points, (rows, 0.0))
        if at < len(points) and points[at][0] == rows:
            return points[at][1]
        if at == 0:
            return points[0][1]
        if len(points) == 1:
            return points[0][1] * rows / points[0][0]
        at = min(at, len(points) - 1)
        (low, low_s), (high, high_s) = points[at - 1], points[at]
        return max(low_s, low_s + (high_s - low_s) * (rows - low) / (high - low))
