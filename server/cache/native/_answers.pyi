"""What module.c offers; README.md says how it is used."""

from collections.abc import Sequence
from typing import final

ENTRY_BYTES: int  # of an answer beside its row, at the most
MOST_ROUNDS: int  # see answers.h
COME_TOGETHER: int

_Left = list[tuple[int, int, int]]  # number of the source, answers, bytes; a source may be told twice

def keys_of(secret: bytes, scope: bytes, rows: Sequence[bytes], skips_empty: bool, /) -> list[bytes | None]:
    """SipHash-2-4-128 of the scope and each row; None of b"", where those are skipped.

    A secret, a scope and a key have 16 bytes each. Long rows are hashed without the GIL.
    """

@final
class Answers:
    """Answers by key within a bound, of which S3-FIFO says which leave. Under the GIL.

    Where `keep`, `keep_columns` or `sweep` raises MemoryError, it is not known who left: `clear` it then.
    """

    def __new__(cls, capacity_bytes: int, /) -> Answers: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def parts(self) -> int: ...
    def __len__(self) -> int: ...
    def has(self, key: bytes, /) -> bool: ...
    def find(self, keys: Sequence[bytes | None], /) -> list[bytes | None]: ...
    def keep(self, keys: Sequence[bytes], rows: Sequence[bytes], /) -> tuple[int, int, _Left]:
        """Answers and bytes that came, and what left for them. rows: each begins with its source's number."""

    def keep_columns(
        self,
        keys: Sequence[bytes],
        source: int,
        widths: tuple[int, ...],
        columns: tuple[list[str] | bytes | bytearray | memoryview, ...],
        /,
    ) -> tuple[int, int, _Left]:
        """The same of rows that are packed here. widths: bytes of a row of each column; 0 of texts.

        Raises UnicodeEncodeError, and nothing is done, where a text has no UTF-8.
        """

    def packed(self, part: int, /) -> tuple[bytes, bytes, bytes]:
        """Of all in a part the keys, the lengths of the rows (4 bytes each), the rows: each in one piece."""

    def sweep(self, part: int, sources: bytes, /) -> _Left:
        """Lets go of all of these sources in a part. sources: their numbers, ascending, 4 bytes each."""

    def clear(self) -> None:
        """Lets go of everything. Takes no memory."""
