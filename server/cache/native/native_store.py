"""Kept answers in C: one call for all rows of a request, and no Python object for what is kept."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from secrets import token_bytes
from typing import cast

from gpu_worker.wire.protocol import Column
from server.cache.entry import PackedAnswers, Source, Sources, cells_of
from server.cache.keying import KEY_BYTES, Key, Keying
from server.cache.native._answers import Answers, keys_of

__all__ = ["KEYING", "NativeStore"]

KEYING = "siphash-2-4-128"


class NativeStore:
    """As `Store`, by S3-FIFO. secret: of its keys, 16 bytes; None for one of its own."""

    def __init__(self, capacity_bytes: int, secret: bytes | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.changes = 0
        self.sources = Sources()
        self.keying = Keying(KEYING, token_bytes(KEY_BYTES) if secret is None else secret)
        self._answers = Answers(capacity_bytes)

    @property
    def nbytes(self) -> int:
        """See `Store`."""
        return self._answers.nbytes

    def __len__(self) -> int:
        return len(self._answers)

    def packed(self) -> Iterator[PackedAnswers]:
        """See `Store`."""
        for part in range(self._answers.parts):
            keys, row_lengths, rows = self._answers.packed(part)
            key_lengths = array("I", [KEY_BYTES]) * (len(keys) // KEY_BYTES)
            yield PackedAnswers(key_lengths, array("I", row_lengths), keys, rows)

    def __contains__(self, key: Key) -> bool:
        return self._answers.has(key)

    def keys_of(self, scope: bytes, rows: Sequence[bytes]) -> list[Key]:
        """See `Store`."""
        return cast("list[Key]", keys_of(self.keying.secret, scope, rows, False))

    def keys_of_files(self, scope: bytes, stamps: Iterable[bytes]) -> list[Key | None]:
        """See `Store`."""
        return keys_of(self.keying.secret, scope, list(stamps), True)

    def find(self, keys: Sequence[Key | None]) -> list[bytes | None]:
        """See `Store`."""
        return self._answers.find(keys)

    def keep(self, source: Source, keys: Sequence[Key], rows: Sequence[bytes]) -> int:
        """See `Store`."""
        try:
            told = self._answers.keep(keys, rows)
        except MemoryError:
            self._forget()
            return 0
        return self._came(source, *told)

    def keep_columns(self, source: Source, keys: Sequence[Key], columns: Sequence[Column]) -> int:
        """See `Store`."""
        data = tuple([column.data for column in columns])
        try:
            told = self._answers.keep_columns(keys, source.number, source.widths, data)
        except UnicodeEncodeError:  # a lone surrogate, rare and slow
            return self.keep(source, keys, source.pack([cells_of(column) for column in columns]))
        except MemoryError:
            self._forget()
            return 0
        return self._came(source, *told)

    def drop(self, is_gone: Callable[[Source], bool]) -> Iterator[int]:
        """See `Store`."""
        gone = array(
            "I", sorted(source.number for source in self.sources.kept() if is_gone(source))
        ).tobytes()
        for part in range(self._answers.parts if gone else 0):
            try:
                left = self._left(self._answers.sweep(part, gone))
            except MemoryError:
                self._forget()
                return
            yield sum(answers for _, answers in left)

    def _forget(self) -> None:
        """Memory ran out, and who left is not known: nothing is kept any more, which a cache may say."""
        self._answers.clear()
        self.sources.clear()
        self.changes += 1

    def _came(self, source: Source, answers: int, nbytes: int, left: Sequence[tuple[int, int, int]]) -> int:
        if answers:
            self.changes += 1
            self.sources.changed(source, answers, nbytes)
        for whose, evicted in self._left(left):
            whose.counts.evictions += evicted
        return answers

    def _left(self, left: Sequence[tuple[int, int, int]]) -> list[tuple[Source, int]]:
        """So many answers of a source left, and take no more room: whose, and how many."""
        found = []
        for number, answers, nbytes in left:
            source = self.sources.numbered(number)
            self.changes += 1
            self.sources.changed(source, -answers, -nbytes)
            found.append((source, answers))
        return found
