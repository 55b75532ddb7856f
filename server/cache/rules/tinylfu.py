"""W-TinyLFU (Einziger, Friedman, Manes 2017): what is new stays if it is asked for more than what leaves.

A window of LRU, a hundredth of the bytes, takes what is new. What leaves the window is a candidate for the
main part: for its room others would leave, the ones asked for longest ago, and it is worth it only if it was
asked for more often than all of them together (Einziger et al. 2021, for entries of mixed size). The main
part is LRU in two segments: what is asked again in the first is protected in the second. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from server.cache.rule import Kept, Line
from server.cache.rules.sketch import Sketch

__all__ = ["TinyLfu"]

_WINDOW = 0.01  # of the bytes, and
_PROTECTED = 0.8  # of the main part's: the paper's
_IN_WINDOW, _IN_PROBATION, _IN_PROTECTED = range(3)


class TinyLfu:
    """As `EvictionRule`. mark: the segment that it is in."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._window_bytes = int(_WINDOW * capacity_bytes)
        self._protected_bytes = int(_PROTECTED * (capacity_bytes - self._window_bytes))
        self._segments = Line(), Line(), Line()
        self._asked = Sketch()
        self._held = 0
        self._candidates: deque[Kept] = deque()  # left the window for what came last

    def add(self, kept: Kept) -> None:
        """See `EvictionRule`."""
        window = self._segments[_IN_WINDOW]
        self._held += 1
        self._asked.count(kept.key, self._held)
        kept.mark = _IN_WINDOW
        window.append(kept)
        self._candidates.clear()
        while window.nbytes > self._window_bytes:
            oldest = window.oldest
            assert oldest is not None, "the window has bytes"
            self._move(oldest, _IN_PROBATION)
            self._candidates.append(oldest)

    def hit(self, kept: Kept) -> None:
        """See `EvictionRule`."""
        self._asked.count(kept.key, self._held)
        if kept.mark != _IN_PROBATION:
            segment = self._segments[kept.mark]
            segment.unlink(kept)
            segment.append(kept)
            return
        self._move(kept, _IN_PROTECTED)
        protected = self._segments[_IN_PROTECTED]
        while protected.nbytes > self._protected_bytes:
            oldest = protected.oldest
            assert oldest is not None, "the segment has bytes"
            self._move(oldest, _IN_PROBATION)

    def remove(self, kept: Kept) -> None:
        """See `EvictionRule`."""
        self._held -= 1
        self._segments[kept.mark].unlink(kept)
        self._candidates.clear()

    def evict(self) -> Kept:
        """See `EvictionRule`."""
        gone = self._loser()
        self._held -= 1
        self._segments[gone.mark].unlink(gone)
        return gone

    def _loser(self) -> Kept:
        while self._candidates:
            candidate = self._candidates.popleft()
            if not self._is_worth(candidate):
                return candidate
        return next(self._victims())

    def _is_worth(self, candidate: Kept) -> bool:
        """Whether it was asked for more often than all those that would leave for it."""
        worth = self._asked.of(candidate.key)
        lacking = sum(segment.nbytes for segment in self._segments) - self._capacity_bytes
        for victim in self._victims():
            if lacking <= 0 or worth <= 0:
                break
            if victim is not candidate:
                worth -= self._asked.of(victim.key)
                lacking -= victim.nbytes
        return worth > 0

    def _victims(self) -> Iterator[Kept]:
        """Who would leave first, and next."""
        window, probation, protected = self._segments
        for segment in (probation, protected, window):
            victim = segment.oldest
            while victim is not None:
                yield victim
                victim = segment.newer(victim)

    def _move(self, kept: Kept, segment: int) -> None:
        self._segments[kept.mark].unlink(kept)
        kept.mark = segment
        self._segments[segment].append(kept)
