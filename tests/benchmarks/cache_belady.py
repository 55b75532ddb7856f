"""Belady's rule (1966): what is asked for again last leaves. It has to know what comes, so no cache runs it.

With entries of one size no rule has more hits. With mixed sizes it is only near to that: the best is hard to
find then (NP-hard: Chrobak et al. 2012).
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from server.cache.rule import Kept

__all__ = ["Belady"]


class Belady:
    """As `EvictionRule`. keys: every request to come; `add` and `hit` are called for each of them in turn.

    mark: when it is asked for next.
    """

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._next = _next_uses(keys)
        self._now = 0
        self._held: dict[bytes, Kept] = {}
        self._last: list[tuple[int, bytes]] = []  # a heap of (−next use, key), old ones too

    def add(self, kept: Kept) -> None:
        self._held[kept.key] = kept
        self.hit(kept)

    def hit(self, kept: Kept) -> None:
        kept.mark = self._next[self._now]
        self._now += 1
        heappush(self._last, (-kept.mark, kept.key))

    def remove(self, kept: Kept) -> None:
        del self._held[kept.key]

    def evict(self) -> Kept:
        while True:
            time, key = heappop(self._last)
            last = self._held.get(key)
            if last is not None and last.mark == -time:
                return self._held.pop(key)


def _next_uses(keys: Sequence[bytes]) -> list[int]:
    """By request, when its key is asked for again; after all of them for never."""
    found = [0] * len(keys)
    seen: dict[bytes, int] = {}
    for at in range(len(keys) - 1, -1, -1):
        found[at] = seen.get(keys[at], 2 * len(keys))
        seen[keys[at]] = at
    return found
