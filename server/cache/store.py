"""The answers that are kept, by key, within a bound of bytes. Who leaves when it is reached is the rule's.

Pure, and used by one thread. Knows not what an answer says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress

from gpu_worker.wire.protocol import Column
from server.cache.entry import PREFIX_BYTES, PackedAnswers, Source, Sources, cells_of
from server.cache.key_table import KeyTable
from server.cache.keying import BLAKE2, Key, keys_of, keys_of_files
from server.cache.rule import MakeRule

__all__ = ["ENTRY_BYTES", "AnswerStore"]

# Measured (tests/unit/cache/test_store.py): the heads of two bytes objects, their place in the dictionary
# just after it has grown, in the rule's queue, and among those that were asked again.
ENTRY_BYTES = 320
_LARGEST = 8  # of the bound: an answer that takes more than this part of it is not kept
_AT_A_TIME = 256  # answers by which the bound is passed at most, before room is made for them


class AnswerStore:
    """As `Store`, by any eviction rule."""

    keying = BLAKE2

    def __init__(self, capacity_bytes: int, make_rule: MakeRule) -> None:
        self.capacity_bytes = capacity_bytes
        self.nbytes = 0
        self.changes = 0
        self.sources = Sources()
        self._rule = make_rule(capacity_bytes, self._size_of)
        self._kept = KeyTable[bytes]()

    def __len__(self) -> int:
        return len(self._kept)

    def packed(self) -> Iterator[PackedAnswers]:
        """See `Store`."""
        for part in self._kept.parts:
            yield PackedAnswers.of(part.items())

    def __contains__(self, key: bytes) -> bool:
        return key in self._kept

    def keys_of(self, scope: bytes, rows: Sequence[bytes]) -> list[Key]:
        """See `Store`."""
        return keys_of(scope, rows)

    def keys_of_files(self, scope: bytes, stamps: Iterable[bytes]) -> list[Key | None]:
        """See `Store`."""
        return keys_of_files(scope, stamps)

    def find(self, keys: Sequence[bytes | None]) -> list[bytes | None]:
        """See `Store`."""
        found = self._kept.find(keys)
        missing = found.count(None)
        if not missing:
            self._rule.hit(keys)  # type: ignore[arg-type]  # None was not found
        elif missing < len(found):
            self._rule.hit([key for key, row in zip(keys, found, strict=True) if row is not None])  # type: ignore[misc]
        return found

    def keep(self, source: Source, keys: Sequence[bytes], rows: Sequence[bytes]) -> int:
        """See `Store`."""
        largest = self.capacity_bytes // _LARGEST - ENTRY_BYTES
        if max(map(len, keys), default=0) + max(map(len, rows), default=0) > largest:
            fit = [len(key) + len(row) <= largest for key, row in zip(keys, rows, strict=True)]
            keys, rows = list(compress(keys, fit)), list(compress(rows, fit))
        ends = range(0, len(keys), _AT_A_TIME)
        return sum(self._add(source, keys[at : at + _AT_A_TIME], rows[at : at + _AT_A_TIME]) for at in ends)

    def keep_columns(self, source: Source, keys: Sequence[bytes], columns: Sequence[Column]) -> int:
        """See `Store`."""
        return self.keep(source, keys, source.pack([cells_of(column) for column in columns]))

    def drop(self, is_gone: Callable[[Source], bool]) -> Iterator[int]:
        """See `Store`."""
        gone = {source.prefix for source in self.sources.kept() if is_gone(source)}
        if gone:
            for keys in self._rule.sweep(lambda key: self._kept[key][:PREFIX_BYTES] in gone):
                for key in keys:
                    self._let_go(key)
                yield len(keys)

    def _add(self, source: Source, keys: Sequence[bytes], rows: Sequence[bytes]) -> int:
        is_new = self._kept.add(keys, rows)
        if not all(is_new):
            keys, rows = list(compress(keys, is_new)), list(compress(rows, is_new))
        if not keys:
            return 0
        nbytes = ENTRY_BYTES * len(keys) + sum(map(len, keys)) + sum(map(len, rows))
        self.nbytes += nbytes
        self.changes += 1
        self.sources.changed(source, len(keys), nbytes)
        self._rule.add(keys, nbytes)
        while self.nbytes > self.capacity_bytes:
            self._let_go(self._rule.evict()).counts.evictions += 1
        return len(keys)

    def _let_go(self, key: bytes) -> Source:
        """What the rule holds no longer leaves; whose it was."""
        nbytes = self._size_of(key)
        source = self.sources.of_row(self._kept.remove(key))
        self.nbytes -= nbytes
        self.changes += 1
        self.sources.changed(source, -1, -nbytes)
        return source

    def _size_of(self, key: bytes) -> int:
        return ENTRY_BYTES + len(key) + len(self._kept[key])
