"""Belady's rule (1966): what is asked for again last leaves. It has to know what comes, so no cache runs it.

With entries of one size no rule has more hits. With mixed sizes it is only near to that: the best is hard to
find then (NP-hard: Chrobak et al. 2012).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush

from server.cache.rule import MakeRule

__all__ = ["belady"]


def belady(keys: Sequence[bytes]) -> MakeRule:
    """The rule for these requests: every one to come, in turn."""
    return lambda capacity_bytes, size_of: Belady(keys)


class Belady:
    """As `EvictionRule`. `add` and `hit` are called for each request in turn."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._next = _next_uses(keys)
        self._now = 0
        self._held: dict[bytes, int] = {}  # when each is asked for next
        self._last: list[tuple[int, bytes]] = []  # a heap of (−next use, key), old ones too

    def add(self, keys: Sequence[bytes], nbytes: int) -> None:
        for key in keys:
            next_use = self._held[key] = self._next[self._now]
            self._now += 1
            heappush(self._last, (-next_use, key))

    def hit(self, keys: Sequence[bytes]) -> None:
        self.add(keys, 0)

    def evict(self) -> bytes:
        while True:
            time, key = heappop(self._last)
            if self._held.get(key) == -time:
                del self._held[key]
                return key

    def sweep(self, is_gone: Callable[[bytes], bool]) -> Iterator[list[bytes]]:
        gone = [key for key in self._held if is_gone(key)]
        for key in gone:
            del self._held[key]
        yield gone


def _next_uses(keys: Sequence[bytes]) -> list[int]:
    """By request, when its key is asked for again; after all of them for never."""
    found = [0] * len(keys)
    seen: dict[bytes, int] = {}
    for at in range(len(keys) - 1, -1, -1):
        found[at] = seen.get(keys[at], 2 * len(keys))
        seen[keys[at]] = at
    return found
