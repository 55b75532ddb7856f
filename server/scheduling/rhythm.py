"""How often a lane's interactive rows come, and so whether more are to be expected.

Rows keep coming as long as the pause since the last ones is nothing unusual: at most twice the longest gap of
the last 32, and a second at most. (Of Poisson arrivals, 1 gap in 560 is longer; rows that come in bursts are
expected through the pauses between their bursts.) So a stream that ends is seen to have ended within a few of
its gaps. Knows times; nothing of queues or fillers.
"""

from __future__ import annotations

import math
from collections import deque

__all__ = ["Rhythm"]

_GAPS = 32
_LONGEST_PAUSE = 2.0  # of the longest gap
_LONGEST_GAP_S = 1.0  # rows that come more rarely are no stream, each is a first one


class Rhythm:
    """Tell it of arrivals; `came_s` is the last one's time, -inf before the first."""

    __slots__ = ("_gaps_s", "_until_s", "came_s")

    def __init__(self) -> None:
        self.came_s = -math.inf
        self._gaps_s: deque[float] = deque(maxlen=_GAPS)
        self._until_s = -math.inf

    def came(self, now_s: float) -> None:
        """Rows came."""
        gap_s = now_s - self.came_s
        self.came_s = now_s
        if gap_s > _LONGEST_GAP_S:
            self._gaps_s.clear()
            return
        self._gaps_s.append(gap_s)
        self._until_s = now_s + min(_LONGEST_GAP_S, _LONGEST_PAUSE * max(self._gaps_s))

    def follow(self, other: Rhythm) -> None:
        """Go on as another one was."""
        self.came_s, self._until_s = other.came_s, other._until_s
        self._gaps_s.extend(other._gaps_s)

    def keeps_on(self, now_s: float) -> bool:
        """Whether more rows are to be expected soon. A first one alone says nothing."""
        return now_s <= self._until_s
