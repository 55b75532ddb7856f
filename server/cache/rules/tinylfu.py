"""W-TinyLFU (Einziger, Friedman, Manes 2017): what is new stays if it is asked for more than what leaves.

A window of LRU, a hundredth of the bytes, takes what is new. What leaves the window is a candidate for the
main part: for its room others would leave, the ones asked for longest ago, and it is worth it only if it was
asked for more often than all of them together (Einziger et al. 2021, for entries of mixed size). The main
part is LRU in two segments: what is asked again in the first is protected in the second. Pure.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence

from server.cache.rule import SizeOf
from server.cache.rules.sketch import Sketch

__all__ = ["TinyLfu"]

_WINDOW = 0.01  # of the bytes, and
_PROTECTED = 0.8  # of the main part's: the paper's


class _Segment:
    """Keys in the order in which each was asked for last, and what they take."""

    def __init__(self) -> None:
        self.keys: OrderedDict[bytes, int] = OrderedDict()
        self.nbytes = 0

    def append(self, key: bytes, nbytes: int) -> None:
        self.keys[key] = nbytes
        self.nbytes += nbytes

    def pop(self, key: bytes) -> int:
        nbytes = self.keys.pop(key)
        self.nbytes -= nbytes
        return nbytes


class TinyLfu:
    """As `EvictionRule`."""

    def __init__(self, capacity_bytes: int, size_of: SizeOf) -> None:
        self._size_of = size_of
        self._capacity_bytes = capacity_bytes
        self._window_bytes = int(_WINDOW * capacity_bytes)
        self._protected_bytes = int(_PROTECTED * (capacity_bytes - self._window_bytes))
        self._window, self._probation, self._protected = _Segment(), _Segment(), _Segment()
        self._asked = Sketch()
        self._candidates: deque[bytes] = deque()  # left the window for what came last

    def add(self, keys: Sequence[bytes], nbytes: int) -> None:
        """See `EvictionRule`."""
        window = self._window
        self._candidates.clear()
        for key in keys:
            window.append(key, self._size_of(key))
            self._asked.count(key, self._held)
        while window.nbytes > self._window_bytes:
            oldest = next(iter(window.keys))
            self._probation.append(oldest, window.pop(oldest))
            self._candidates.append(oldest)

    def hit(self, keys: Sequence[bytes]) -> None:
        """See `EvictionRule`."""
        held = self._held
        for key in keys:
            self._asked.count(key, held)
            if key in self._probation.keys:
                self._protect(key)
            else:
                (self._protected if key in self._protected.keys else self._window).keys.move_to_end(key)

    def evict(self) -> bytes:
        """See `EvictionRule`."""
        gone = self._loser()
        for segment in self._segments:
            if gone in segment.keys:
                segment.pop(gone)
        return gone

    def sweep(self, is_gone: Callable[[bytes], bool]) -> Iterator[list[bytes]]:
        """See `EvictionRule`: at once."""
        gone = [(segment, key) for segment in self._segments for key in segment.keys if is_gone(key)]
        for segment, key in gone:
            segment.pop(key)
        self._candidates.clear()
        yield [key for _, key in gone]

    @property
    def _segments(self) -> tuple[_Segment, ...]:
        """Where who leaves is looked for, in turn."""
        return self._probation, self._protected, self._window

    @property
    def _held(self) -> int:
        return sum(len(segment.keys) for segment in self._segments)

    def _protect(self, key: bytes) -> None:
        protected, probation = self._protected, self._probation
        protected.append(key, probation.pop(key))
        while protected.nbytes > self._protected_bytes:
            oldest = next(iter(protected.keys))
            probation.append(oldest, protected.pop(oldest))

    def _loser(self) -> bytes:
        while self._candidates:
            candidate = self._candidates.popleft()
            if not self._is_worth(candidate):
                return candidate
        return next(self._victims())[0]

    def _is_worth(self, candidate: bytes) -> bool:
        """Whether it was asked for more often than all those that would leave for it."""
        worth = self._asked.of(candidate)
        lacking = sum(segment.nbytes for segment in self._segments) - self._capacity_bytes
        for victim, nbytes in self._victims():
            if lacking <= 0 or worth <= 0:
                break
            if victim != candidate:
                worth -= self._asked.of(victim)
                lacking -= nbytes
        return worth > 0

    def _victims(self) -> Iterator[tuple[bytes, int]]:
        """Who would leave first, and next, with what each takes."""
        for segment in self._segments:
            yield from segment.keys.items()
