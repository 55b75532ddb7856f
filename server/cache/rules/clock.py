"""CLOCK (Corbató 1969; Clipper §4.2): what was asked again since the hand came by has another round. Pure."""

from __future__ import annotations

from server.cache.rule import Kept, Line

__all__ = ["Clock"]


class Clock:
    """As `EvictionRule`. mark: 1 where it was asked again since the hand came by.

    The hand is at the oldest of a line, and what may stay becomes its newest.
    """

    def __init__(self, capacity_bytes: int) -> None:
        """The bound does not matter to it."""
        self._line = Line()

    def add(self, kept: Kept) -> None:
        """See `EvictionRule`."""
        kept.mark = 0
        self._line.append(kept)

    def hit(self, kept: Kept) -> None:
        """See `EvictionRule`."""
        kept.mark = 1

    def remove(self, kept: Kept) -> None:
        """See `EvictionRule`."""
        self._line.unlink(kept)

    def evict(self) -> Kept:
        """See `EvictionRule`."""
        line = self._line
        kept = line.oldest
        assert kept is not None, "asked only while something is held"
        while kept.mark:
            kept.mark = 0
            line.unlink(kept)
            line.append(kept)
            kept = line.oldest
            assert kept is not None, "one was just appended"
        line.unlink(kept)
        return kept
