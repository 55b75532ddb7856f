"""Kept answers in a file, so that a restarted server knows them.

    magic │ bytes of the head │ head: JSON │ how many │ lengths of keys, of rows │ keys │ rows │ BLAKE2b

Written beside it and then put in its place, so that there is a whole one or none. What cannot be read is no
file: a cache may forget. Of another release of the server nothing is read, since it may compute otherwise.
The secret by which keys are hashed stands in the head: without it the keys are worth nothing, and who may
read the file may know it.
"""

from __future__ import annotations

import fcntl
import json
import os
import struct
import tempfile
from array import array
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from glob import escape
from hashlib import blake2b
from pathlib import Path
from typing import Any

from gpu_worker.model_files.regular import open_regular
from server.cache.entry import ColumnKind, PackedAnswers
from server.cache.keying import Keying
from server.version import VERSION

__all__ = ["AnswerFile", "AnswerFileError", "KeptAnswers", "KeptSource"]

_MAGIC = b"ml_udf answers 2"
_OLD_MAGIC = b"ml_udf answers 1"
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
    """answers: as the store has them, in no order. keying: how their keys were made."""

    keying: Keying
    sources: Sequence[KeptSource]
    answers: Sequence[PackedAnswers]


class AnswerFile:
    """version: of the server, whose answers they are."""

    def __init__(self, path: Path, version: str = VERSION) -> None:
        self.path = path
        self._version = version

    def write(self, kept: KeptAnswers) -> int:
        """Put these in the file's place, for its owner alone; how many bytes it has. Raises OSError."""
        sources = [_told(each) for each in kept.sources]
        keying = {"name": kept.keying.name, "secret": kept.keying.secret.hex()}
        text = json.dumps({"version": self._version, "keying": keying, "sources": sources}).encode()
        parts = [_MAGIC, _HEAD.pack(len(text)), text, _HEAD.pack(sum(map(len, kept.answers)))]
        parts += [some.key_lengths.tobytes() for some in kept.answers]
        parts += [some.row_lengths.tobytes() for some in kept.answers]
        parts += [some.keys for some in kept.answers]
        parts += [some.rows for some in kept.answers]
        hashed = blake2b(digest_size=_DIGEST_BYTES)
        self._remove_left()
        draft, name = tempfile.mkstemp(prefix=f".{self.path.name}-", dir=self.path.parent)
        try:
            with open(draft, "wb") as out:
                fcntl.flock(out, fcntl.LOCK_EX)  # it is being written
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

    def _remove_left(self) -> None:
        """Take away what servers that were killed had half written: each may be as large as the file."""
        for left in self.path.parent.glob(f".{escape(self.path.name)}-????????"):
            with suppress(OSError), open_regular(left) as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                left.unlink()

    def keying(self) -> Keying | None:
        """How its keys were made, without a look at the rest; None where there is no such file."""
        try:
            with open(self.path, "rb") as file:
                begin = file.read(len(_MAGIC) + _HEAD.size)
                if len(begin) < len(_MAGIC) + _HEAD.size or not begin.startswith(_MAGIC):
                    return None
                (head_bytes,) = _HEAD.unpack_from(begin, len(_MAGIC))
                return _keying(json.loads(file.read(head_bytes)))
        except (OSError, ValueError, KeyError, TypeError):
            return None  # `read` says what is wrong

    def read(self) -> KeptAnswers | None:
        """What was written; None where there is no file. Raises `AnswerFileError`, OSError."""
        try:
            whole = self.path.read_bytes()
        except FileNotFoundError:
            return None
        if whole.startswith(_OLD_MAGIC):
            raise AnswerFileError("it is of an older release, which found answers by other keys")
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
        rows_at = rows_end + sum(key_lengths)
        answers = PackedAnswers(key_lengths, row_lengths, body[rows_end:rows_at], body[rows_at:])
        return KeptAnswers(_keying(head), [_source(each) for each in head["sources"]], [answers])


def _keying(head: dict[str, Any]) -> Keying:
    told = head["keying"]
    return Keying(told["name"], bytes.fromhex(told["secret"]))


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
