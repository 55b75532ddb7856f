"""CLOCK (Corbató 1969; Clipper §4.2): what was asked again since the hand came by has another round. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from server.cache.rule import SizeOf
from server.cache.rules.key_queue import KeyQueue

__all__ = ["Clock"]


class Clock:
    """As `EvictionRule`. The hand is at the oldest of a queue, and what may stay becomes its newest."""

    def __init__(self, capacity_bytes: int, size_of: SizeOf) -> None:
        """Neither matters to it."""
        self._queue = KeyQueue()
        self._asked: set[bytes] = set()  # again, since the hand came by

    def add(self, keys: Sequence[bytes], nbytes: int) -> None:
        """See `EvictionRule`."""
        self._queue.extend(keys)

    def hit(self, keys: Sequence[bytes]) -> None:
        """See `EvictionRule`."""
        self._asked.update(keys)

    def evict(self) -> bytes:
        """See `EvictionRule`."""
        key = self._queue.popleft()
        while key in self._asked:
            self._asked.discard(key)
            self._queue.append(key)
            key = self._queue.popleft()
        return key

    def sweep(self, is_gone: Callable[[bytes], bool]) -> Iterator[list[bytes]]:
        """See `EvictionRule`."""
        for gone in self._queue.sweep(is_gone):
            self._asked.difference_update(gone)
            yield gone
