"""The answers that are kept, by key, within a bound of bytes. Who leaves when it is reached is the rule's.

Pure, and used by one thread. Knows neither what a key is made of nor what an answer says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from server.cache.entry import KeptAnswer
from server.cache.rule import EvictionRule

__all__ = ["AnswerStore"]

_LARGEST = 8  # of the bound: an answer that takes more than this part of it is not kept


class AnswerStore:
    """capacity_bytes: what all kept answers take together at the most, their keys and places included."""

    def __init__(self, capacity_bytes: int, rule: EvictionRule) -> None:
        self.capacity_bytes = capacity_bytes
        self.nbytes = 0
        self._rule = rule
        self._kept: dict[bytes, KeptAnswer] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[KeptAnswer]:
        return iter(self._kept.values())

    def __contains__(self, key: bytes) -> bool:
        return key in self._kept

    def find(self, keys: Sequence[bytes | None]) -> list[KeptAnswer | None]:
        """What is kept for each key, of None nothing; finding it is a hit."""
        found = list(map(self._kept.get, keys))  # type: ignore[arg-type]  # None is nobody's key
        hit = self._rule.hit
        for kept in found:
            if kept is not None:
                hit(kept)
        return found

    def keep(self, kept: KeptAnswer) -> bool:
        """Keep an answer, and let go of others until there is room; whether it is kept.

        Of two answers for one key the first stays.
        """
        if kept.key in self._kept or kept.nbytes > self.capacity_bytes // _LARGEST:
            return False
        self._kept[kept.key] = kept
        self.nbytes += kept.nbytes
        counts = kept.source.counts
        counts.entries += 1
        counts.nbytes += kept.nbytes
        self._rule.add(kept)
        while self.nbytes > self.capacity_bytes:
            self._evict()
        return kept.key in self._kept

    def forget(self, is_gone: Callable[[KeptAnswer], bool]) -> int:
        """Let go of every answer that nobody will ask for again; how many there were."""
        gone = [kept for kept in self._kept.values() if is_gone(kept)]
        for kept in gone:
            self._rule.remove(kept)
            self._let_go(kept)
        return len(gone)

    def _evict(self) -> None:
        kept = self._rule.evict()
        assert isinstance(kept, KeptAnswer)
        self._let_go(kept)
        kept.source.counts.evictions += 1

    def _let_go(self, kept: KeptAnswer) -> None:
        del self._kept[kept.key]
        self.nbytes -= kept.nbytes
        counts = kept.source.counts
        counts.entries -= 1
        counts.nbytes -= kept.nbytes
