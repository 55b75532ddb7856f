"""An ONNX file, walked before anything runs it: it may hold its tensors, and never name another file.

A tensor may say that its values lie in another file (`data_location` EXTERNAL), by a path. A runtime that
follows it reads whatever its process may read, and the model answers with it. Such a tensor may lie in the
graph, in a subgraph of a node's attribute, in a function or in the training part, as values or as indices.

An ONNX file is one protobuf message (onnx/onnx.proto). Only lengths and the few fields above are looked at,
so the size of the weights does not matter. Whatever cannot be read for certain is refused: what protobuf
makes of it might be another file than the one that was looked over. Standard library only: the server
imports this module.
"""

from __future__ import annotations

import contextlib
import mmap
import re
from collections.abc import Iterable
from typing import IO

__all__ = ["OnnxRefused", "check_onnx", "check_onnx_content"]

_MOST_BYTES = (1 << 31) - 1  # of a protobuf message
_MOST_FIELDS = 20_000_000  # of those that are looked at one by one: some ten seconds

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5

# Message → its fields that hold messages in which a tensor may lie.
_HELD: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {},
}
_EXTERNAL_DATA, _DATA_LOCATION = 13, 14  # of a tensor
_OP_TYPE = 4  # of a node
_OPS_WITH_FILES = frozenset((b"EPContext",))  # ONNX Runtime's: a compiled part of a graph in a file beside it


class OnnxRefused(ValueError):
    """The file is not an ONNX model, or names other files; the text says which."""


def check_onnx(file: IO[bytes]) -> None:
    """Looks over the model in `file`, an open file of the disk. Raises `OnnxRefused`, `OSError`."""
    _check_size(file.seek(0, 2))
    with contextlib.closing(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)) as content:
        _Walk(content).run()


def check_onnx_content(content: bytes) -> None:
    """Looks over a model that is in memory. Raises `OnnxRefused`."""
    _check_size(len(content))
    _Walk(content).run()


def _check_size(size: int) -> None:
    if size > _MOST_BYTES:
        raise OnnxRefused(f"it has {size} bytes, and a protobuf message has {_MOST_BYTES} at most")
    if size == 0:
        raise OnnxRefused("it is empty")


def _run_of_numbers(but_fields: Iterable[int]) -> re.Pattern[bytes]:
    """Fields 1 to 15 that are numbers, as many as follow each other.

    A forest of trees holds millions of them, a field each.
    """
    fields = [field for field in range(1, 16) if field not in set(but_fields)]

    def tags(wire_type: int) -> bytes:
        return b"[" + b"".join(re.escape(bytes([field << 3 | wire_type])) for field in fields) + b"]"

    varint = tags(_VARINT) + rb"[\x80-\xff]{0,9}+[\x00-\x7f]"
    return re.compile(
        b"(?:" + b"|".join((varint, tags(_FIXED32) + b".{4}", tags(_FIXED64) + b".{8}")) + b")++", re.DOTALL
    )


_NUMBERS = _run_of_numbers(())
_NUMBERS_OF_TENSOR = _run_of_numbers((_EXTERNAL_DATA, _DATA_LOCATION))


class _Walk:
    """One pass over a file. Messages wait on a list, so that no depth of nesting ends the interpreter."""

    def __init__(self, content: mmap.mmap | bytes) -> None:
        self._content = content
        self._fields = 0
        self._waiting = [("model", 0, len(content))]

    def run(self) -> None:
        while self._waiting:
            message, start, end = self._waiting.pop()
            try:
                self._look_over(message, start, end)
            except IndexError:
                raise _not_onnx(start) from None

    def _look_over(self, message: str, at: int, end: int) -> None:
        held = _HELD[message]
        numbers = _NUMBERS_OF_TENSOR if message == "tensor" else _NUMBERS
        while at < end:
            skipped = numbers.match(self._content, at, end)
            if skipped is not None:
                at = skipped.end()
                del skipped  # it keeps the file mapped
                continue
            self._fields += 1
            if self._fields > _MOST_FIELDS:
                raise OnnxRefused(f"it has more than {_MOST_FIELDS} fields")
            tag, at = self._varint(at)
            field, wire_type = tag >> 3, tag & 7
            if message == "tensor" and field in (_EXTERNAL_DATA, _DATA_LOCATION):
                if wire_type != _VARINT or field == _EXTERNAL_DATA:
                    raise _external()
                location, at = self._varint(at)
                if location != 0:
                    raise _external()
            elif wire_type == _LENGTH:
                length, at = self._varint(at)
                if length > end - at:
                    raise _not_onnx(at)
                if field in held:
                    self._waiting.append((held[field], at, at + length))
                elif message == "node" and field == _OP_TYPE:
                    self._check_op(self._content[at : at + min(length, 100)])
                at += length
            elif wire_type == _VARINT:
                _, at = self._varint(at)
            elif wire_type in (_FIXED32, _FIXED64):
                at += 4 if wire_type == _FIXED32 else 8
            else:
                raise _not_onnx(at)
            if at > end or field == 0 or tag >= 1 << 32:
                raise _not_onnx(at)

    def _check_op(self, op_type: bytes) -> None:
        if op_type in _OPS_WITH_FILES:
            raise OnnxRefused(f"it holds a node {op_type.decode()!r}, which may name another file")

    def _varint(self, at: int) -> tuple[int, int]:
        """The number at `at`, and where it ends. Raises `IndexError` at the end of the file."""
        value = 0
        for shift in range(0, 70, 7):
            byte = self._content[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, at
        raise _not_onnx(at)


def _external() -> OnnxRefused:
    return OnnxRefused(
        "it keeps values of a tensor in another file (external data); save it with all its tensors inside"
    )


def _not_onnx(at: int) -> OnnxRefused:
    return OnnxRefused(f"it is not an ONNX model (byte {at})")
