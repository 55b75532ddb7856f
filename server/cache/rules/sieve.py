"""SIEVE (Zhang et al., NSDI 2024): a line in the order of coming, and a hand that passes over it.

What was asked again since the hand came by stays where it is; the first that was not leaves. What is new
stands behind the hand, so a scan of things that are asked for once goes through without driving out what is
asked often. Pure.
"""

from __future__ import annotations

from server.cache.rule import Kept, Line

__all__ = ["Sieve"]


class Sieve:
    """As `EvictionRule`. mark: 1 where it was asked again since the hand came by."""

    def __init__(self, capacity_bytes: int) -> None:
        """The bound does not matter to it."""
        self._line = Line()
        self._hand: Kept | None = None  # whom it looks at next; None: the oldest

    def add(self, kept: Kept) -> None:
        """See `EvictionRule`."""
        kept.mark = 0
        self._line.append(kept)

    def hit(self, kept: Kept) -> None:
        """See `EvictionRule`."""
        kept.mark = 1

    def remove(self, kept: Kept) -> None:
        """See `EvictionRule`."""
        if kept is self._hand:
            self._hand = self._line.newer(kept)
        self._line.unlink(kept)

    def evict(self) -> Kept:
        """See `EvictionRule`."""
        kept = self._hand or self._line.oldest
        while kept is not None and kept.mark:
            kept.mark = 0
            kept = self._line.newer(kept) or self._line.oldest
        assert kept is not None, "asked only while something is held"
        self._hand = self._line.newer(kept)
        self._line.unlink(kept)
        return kept
