"""S3-FIFO (Yang et al., SOSP 2023): three queues, of which the small one filters what is asked for once.

What is new goes to the small queue, a tenth of the bytes. Asked twice more while it is there, it goes on to
the main queue, else it leaves and its key is remembered: what comes back soon goes to the main queue at once.
There each time that it was asked, up to three, is worth another round. Pure.
"""

from __future__ import annotations

from server.cache.rule import Kept, Line
from server.cache.rules.ghosts import Ghosts

__all__ = ["S3Fifo"]

_SMALL = 0.1  # of the bytes: the paper's
_MOST = 3  # times that are counted, in the two lowest bits of a mark
_MAIN = 4  # of a mark: it is in the main queue


class S3Fifo:
    """As `EvictionRule`: the paper's Algorithm 1, with bytes for its numbers of objects."""

    def __init__(self, capacity_bytes: int) -> None:
        self._small_bytes = int(_SMALL * capacity_bytes)
        self._small = Line()
        self._main = Line()
        self._ghosts = Ghosts(capacity_bytes - self._small_bytes)

    def add(self, kept: Kept) -> None:
        """See `EvictionRule`."""
        if self._ghosts.recall(kept.key):
            kept.mark = _MAIN
            self._main.append(kept)
        else:
            kept.mark = 0
            self._small.append(kept)

    def hit(self, kept: Kept) -> None:
        """See `EvictionRule`."""
        if kept.mark & _MOST != _MOST:
            kept.mark += 1

    def remove(self, kept: Kept) -> None:
        """See `EvictionRule`."""
        (self._main if kept.mark & _MAIN else self._small).unlink(kept)

    def evict(self) -> Kept:
        """See `EvictionRule`."""
        gone = None
        while gone is None:
            oldest = self._small.oldest
            if oldest is not None and (self._small.nbytes > self._small_bytes or not self._main):
                gone = self._of_small(oldest)
            else:
                gone = self._of_main()
        return gone

    def _of_small(self, oldest: Kept) -> Kept | None:
        """The oldest of the small queue leaves; or goes on to the main one, and nothing leaves."""
        self._small.unlink(oldest)
        if oldest.mark > 1:
            oldest.mark = _MAIN
            self._main.append(oldest)
            return None
        self._ghosts.remember(oldest.key, oldest.nbytes)
        return oldest

    def _of_main(self) -> Kept | None:
        """The oldest of the main queue leaves; or has another round, and nothing leaves."""
        oldest = self._main.oldest
        assert oldest is not None, "asked only while something is held"
        self._main.unlink(oldest)
        if oldest.mark == _MAIN:
            return oldest
        oldest.mark -= 1
        self._main.append(oldest)
        return None
