"""The contract of stores of kept answers: what asks them knows no more of them than this.

There are two: `AnswerStore` in Python, by any eviction rule, and `NativeStore` in C, by S3-FIFO, where it is
built. The same suite tests both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from gpu_worker.wire.protocol import Column
from server.cache.entry import PackedAnswers, Source, Sources
from server.cache.keying import Key, Keying

__all__ = ["Store"]


class Store(Protocol):
    """Pure, and used by one thread, but for what makes keys, which any may.

    sources: of which answers are kept. keying: how it makes keys; without it a file of them is worth nothing.
    """

    sources: Sources
    keying: Keying

    @property
    def capacity_bytes(self) -> int:
        """What all kept answers take together at the most, their keys and places included."""

    @property
    def nbytes(self) -> int:
        """What they take now."""

    @property
    def changes(self) -> int:
        """How often something came or left since it was made."""

    def __len__(self) -> int: ...

    def __contains__(self, key: Key) -> bool: ...

    def keys_of(self, scope: bytes, rows: Sequence[bytes]) -> list[Key]:
        """The key of each row, by its bytes. scope: its digest."""

    def keys_of_files(self, scope: bytes, stamps: Iterable[bytes]) -> list[Key | None]:
        """The key of each row by its file's stamp; None for one that has none (b""). scope: its digest."""

    def find(self, keys: Sequence[Key | None]) -> list[bytes | None]:
        """The row that is kept for each key, of None nothing; finding it is a hit."""

    def keep(self, source: Source, keys: Sequence[Key], rows: Sequence[bytes]) -> int:
        """Keep a source's answers, packed, and let go of others until there is room; how many were new.

        keys: of the rows, no two alike. Of two answers for one key the first stays.
        """

    def keep_columns(self, source: Source, keys: Sequence[Key], columns: Sequence[Column]) -> int:
        """`keep` answers as a reply has them. columns: of the source's kinds, which keeps nothing else."""

    def packed(self) -> Iterator[PackedAnswers]:
        """All that is kept, in no order, some at a time; between two steps others may come and leave."""

    def drop(self, is_gone: Callable[[Source], bool]) -> Iterator[int]:
        """Let go of all answers of the sources of which this is so, some at a time: how many they were.

        Between two steps answers may be asked for and kept, though none of these sources.
        """
