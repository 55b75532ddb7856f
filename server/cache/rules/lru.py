"""LRU: what was asked for longest ago leaves. Pure."""

from __future__ import annotations

from server.cache.rule import Kept, Line

__all__ = ["LeastRecentlyUsed"]


class LeastRecentlyUsed:
    """As `EvictionRule`: one line, in the order in which each was asked for last."""

    def __init__(self, capacity_bytes: int) -> None:
        """The bound does not matter to it."""
        self._line = Line()

    def add(self, kept: Kept) -> None:
        """See `EvictionRule`."""
        self._line.append(kept)

    def hit(self, kept: Kept) -> None:
        """See `EvictionRule`."""
        self._line.unlink(kept)
        self._line.append(kept)

    def remove(self, kept: Kept) -> None:
        """See `EvictionRule`."""
        self._line.unlink(kept)

    def evict(self) -> Kept:
        """See `EvictionRule`."""
        kept = self._line.oldest
        assert kept is not None, "asked only while something is held"
        self._line.unlink(kept)
        return kept
