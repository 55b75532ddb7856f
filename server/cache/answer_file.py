"""Kept answers in a file, so that a restarted server knows them.

    magic │ bytes of the head │ head: JSON │ how many │ lengths of keys, of rows │ keys │ rows │ BLAKE2b

Written beside it and then put in its place, so that there is a whole one or none. What cannot be read is no
file: a cache may forget. Of another release of the server nothing is read, since it may compute otherwise.
"""

from __future__ import annotations

import json
import os
import struct
import tempfile
from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from server.cache.entry import ColumnKind
from server.version import VERSION

__all__ = ["AnswerFile", "AnswerFileError", "KeptAnswers", "KeptSource"]

_MAGIC = b"ml_udf answers 1"
_HEAD = struct.Struct("<I")
_DIGEST_BYTES = 16


class AnswerFileError(Exception):
    """The file is not one of kept answers, not whole, or of another release; the text says which."""


@dataclass(frozen=True, slots=True)
class KeptSource:
    """What a `Source` is, without its counts. function: with its version."""

    prefix: bytes
    function: str
    kinds: tuple[ColumnKind, ...]
    answered_by: str
    has_told: bool


@dataclass(frozen=True, slots=True)
class KeptAnswers:
    """keys and rows: as the store has them, in the order of coming."""

    sources: Sequence[KeptSource]
    keys: Sequence[bytes]
    rows: Sequence[bytes]


class AnswerFile:
    """version: of the server, whose answers they are."""

    def __init__(self, path: Path, version: str = VERSION) -> None:
        self.path = path
        self._version = version

    def write(self, kept: KeptAnswers) -> int:
        """Put these in the file's place, for its owner alone; how many bytes it has. Raises OSError."""
        sources = [_told(each) for each in kept.sources]
        text = json.dumps({"version": self._version, "sources": sources}).encode()
        parts = [_MAGIC, _HEAD.pack(len(text)), text, _HEAD.pack(len(kept.keys))]
        parts += [array("I", map(len, cells)).tobytes() for cells in (kept.keys, kept.rows)]
        parts += [b"".join(kept.keys), b"".join(kept.rows)]
        hashed = blake2b(digest_size=_DIGEST_BYTES)
        draft, name = tempfile.mkstemp(prefix=f".{self.path.name}-", dir=self.path.parent)
        try:
            with open(draft, "wb") as out:
                for part in parts:
                    hashed.update(part)
                    out.write(part)
                out.write(hashed.digest())
                out.flush()
                os.fsync(out.fileno())
            os.replace(name, self.path)
        except BaseException:
            with suppress(OSError):
                os.unlink(name)
            raise
        return sum(map(len, parts)) + _DIGEST_BYTES

    def read(self) -> KeptAnswers | None:
        """What was written; None where there is no file. Raises `AnswerFileError`, OSError."""
        try:
            whole = self.path.read_bytes()
        except FileNotFoundError:
            return None
        body, digest = whole[:-_DIGEST_BYTES], whole[-_DIGEST_BYTES:]
        if not body.startswith(_MAGIC) or blake2b(body, digest_size=_DIGEST_BYTES).digest() != digest:
            raise AnswerFileError("it is not a whole file of kept answers")
        at = len(_MAGIC)
        (head_bytes,) = _HEAD.unpack_from(body, at)
        at += _HEAD.size
        head = json.loads(body[at : at + head_bytes])
        if head["version"] != self._version:
            raise AnswerFileError(f"its answers are those of ml_udf {head['version']}")
        at += head_bytes
        (count,) = _HEAD.unpack_from(body, at)
        at += _HEAD.size
        keys_end, rows_end = at + 4 * count, at + 8 * count
        key_lengths, row_lengths = array("I", body[at:keys_end]), array("I", body[keys_end:rows_end])
        return KeptAnswers(
            [_source(each) for each in head["sources"]],
            list(_cells(body, rows_end, key_lengths)),
            list(_cells(body, rows_end + sum(key_lengths), row_lengths)),
        )


def _cells(body: bytes, first: int, lengths: array[int]) -> Iterator[bytes]:
    for begin, end in pairwise(accumulate(lengths, initial=first)):
        yield body[begin:end]


def _told(source: KeptSource) -> dict[str, Any]:
    return {
        "prefix": source.prefix.hex(),
        "function": source.function,
        "kinds": [[kind.name, kind.datatype, kind.shape, kind.content] for kind in source.kinds],
        "answered_by": source.answered_by,
        "has_told": source.has_told,
    }


def _source(told: dict[str, Any]) -> KeptSource:
    kinds = tuple(
        ColumnKind(name, datatype, tuple(shape), content) for name, datatype, shape, content in told["kinds"]
    )
    return KeptSource(
        bytes.fromhex(told["prefix"]), told["function"], kinds, told["answered_by"], told["has_told"]
    )
