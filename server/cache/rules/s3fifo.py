"""S3-FIFO (Yang et al., SOSP 2023): three queues, of which the small one filters what is asked for once.

What is new goes to the small queue, a tenth of the bytes. Asked twice more while it is there, it goes on to
the main queue, else it leaves and its key is remembered: what comes back soon goes to the main queue at once.
There each time that it was asked, up to three, is worth another round. Pure.

Beyond the paper: for what comes at once (`add`), no more than so many have another round, or go on; then what
is oldest leaves all the same. Without that bound a main queue all of which was asked again would be walked
through up to three times before anything left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from server.cache.key_table import KeyTable
from server.cache.rule import SizeOf
from server.cache.rules.ghosts import Ghosts
from server.cache.rules.key_queue import KeyQueue

__all__ = ["S3Fifo"]

_SMALL_OF = 10  # of the bytes, one part is the small queue's: the paper's
_MOST = 3  # times that are counted
_TO_MAIN = 2
_MOST_ROUNDS = 4096  # as native/answers.h


class S3Fifo:
    """As `EvictionRule`: the paper's Algorithm 1, with bytes for its numbers of objects."""

    def __init__(self, capacity_bytes: int, size_of: SizeOf) -> None:
        self._size_of = size_of
        self._most_small_bytes = capacity_bytes // _SMALL_OF
        self._small_bytes = 0
        self._small, self._main = KeyQueue(), KeyQueue()
        self._asked = KeyTable[int]()  # of those that were asked again
        self._ghosts = Ghosts(capacity_bytes - self._most_small_bytes)
        self._rounds = 0  # that are left

    def add(self, keys: Sequence[bytes], nbytes: int) -> None:
        """See `EvictionRule`."""
        self._rounds = _MOST_ROUNDS
        back = self._ghosts.recall(keys)
        if back:
            self._main.extend(back)
            nbytes -= sum(map(self._size_of, back))
            keys = [key for key in keys if key not in set(back)]
        self._small.extend(keys)
        self._small_bytes += nbytes

    def hit(self, keys: Sequence[bytes]) -> None:
        """See `EvictionRule`."""
        times = self._asked.find(keys)
        if times.count(_MOST) < len(times):
            self._asked.update(
                (key, min(_MOST, (before or 0) + 1)) for key, before in zip(keys, times, strict=True)
            )

    def evict(self) -> bytes:
        """See `EvictionRule`."""
        gone = None
        while gone is None:
            if self._small and (self._small_bytes > self._most_small_bytes or not self._main):
                gone = self._of_small()
            else:
                gone = self._of_main()
        return gone

    def sweep(self, is_gone: Callable[[bytes], bool]) -> Iterator[list[bytes]]:
        """See `EvictionRule`."""
        for gone in self._small.sweep(is_gone):
            self._small_bytes -= sum(map(self._size_of, gone))
            yield self._asked_no_more(gone)
        for gone in self._main.sweep(is_gone):
            yield self._asked_no_more(gone)

    def _asked_no_more(self, gone: list[bytes]) -> list[bytes]:
        for key in gone:
            self._asked.pop(key, 0)
        return gone

    def _of_small(self) -> bytes | None:
        """The oldest of the small queue leaves; or goes on to the main one, and nothing leaves."""
        oldest = self._small.popleft()
        nbytes = self._size_of(oldest)
        self._small_bytes -= nbytes
        if self._asked.pop(oldest, 0) >= _TO_MAIN and self._rounds:
            self._rounds -= 1
            self._main.append(oldest)
            return None
        self._ghosts.remember(oldest, nbytes)
        return oldest

    def _of_main(self) -> bytes | None:
        """The oldest of the main queue leaves; or has another round, and nothing leaves."""
        oldest = self._main.popleft()
        times = self._asked.pop(oldest, 0)
        if not times or not self._rounds:
            return oldest
        self._rounds -= 1
        if times > 1:
            self._asked.update([(oldest, times - 1)])
        self._main.append(oldest)
        return None
