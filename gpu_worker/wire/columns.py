"""A column of answers as it travels: a name, a datatype, the shape of a row, the rows. Standard library only.

Knows no task: what a column means stands in `gpu_worker.tasks`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["BOXES", "JSON", "LABELS", "TEXT", "Column", "number_bytes"]

TEXT = "BYTES"  # the one datatype that is not numbers; the names are those of the Open Inference Protocol

# What each text of a column holds; "" = itself.
LABELS = "labels"  # a JSON array of texts
BOXES = "boxes"  # a JSON array of {"label": text, "score": number, "box": [x0, y0, x1, y1]}
JSON = "json"
_TYPECODES = {"FP32": "f", "FP64": "d", "INT64": "q"}
_NUMBER_BYTES = {"FP32": 4, "FP64": 8, "INT64": 8}


def number_bytes(datatype: str) -> int:
    """Bytes of one number of a datatype. Raises ValueError for a datatype that no answer has."""
    if datatype not in _NUMBER_BYTES:
        raise ValueError(f"{datatype!r} is no datatype of numbers that an answer has")
    return _NUMBER_BYTES[datatype]


@dataclass(slots=True)
class Column:
    """n rows of one output.

    shape: of one row, () where it is one value. data: n texts where the datatype is `TEXT`; else the numbers,
    row after row, raw and little-endian. content: what a text holds: `LABELS`, `BOXES`, `JSON` or itself, "".
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: list[str] | bytes | bytearray
    content: str = ""

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of numbers; 0 of texts."""
        if self.datatype == TEXT:
            return 0
        width = number_bytes(self.datatype)
        return width * math.prod(self.shape) if self.shape else width

    @property
    def rows(self) -> int:
        """How many there are."""
        width = self.row_bytes
        return len(self.data) // width if width else len(self.data)

    @property
    def nbytes(self) -> int:
        """About what it takes on the wire: numbers exactly, texts by their characters."""
        return sum(map(len, self.data)) if isinstance(self.data, list) else len(self.data)

    @property
    def values(self) -> Sequence[Any]:
        """The texts, or the numbers of all rows one after the other; nothing is copied."""
        if isinstance(self.data, list):
            return self.data
        # Codes are literals to mypy, and a datatype is known when it runs.
        return memoryview(self.data).cast(_TYPECODES[self.datatype])  # type: ignore[call-overload, no-any-return]

    def part(self, first: int, rows: int) -> Column:
        """So many rows from number `first`; the column itself where those are all."""
        width = self.row_bytes or 1
        if first == 0 and rows * width == len(self.data):
            return self
        data = self.data[first * width : (first + rows) * width]
        return Column(self.name, self.datatype, self.shape, data, self.content)

    def pick(self, rows: Sequence[int]) -> Column:
        """The rows of these numbers, in their order."""
        data: list[str] | bytes
        if isinstance(self.data, list):
            data = [self.data[row] for row in rows]
        else:
            view, width = memoryview(self.data), self.row_bytes
            data = b"".join([view[row * width : (row + 1) * width] for row in rows])
        return Column(self.name, self.datatype, self.shape, data, self.content)

    def empty(self, rows: int) -> Column:
        """A column of the same kind: empty texts, or zeros, which `put` fills."""
        data: list[str] | bytearray = (
            [""] * rows if self.datatype == TEXT else bytearray(rows * self.row_bytes)
        )
        return Column(self.name, self.datatype, self.shape, data, self.content)

    def put(self, at: int, part: Column, first: int, rows: int) -> None:
        """Rows from `at` become so many rows of `part` from `first`. For columns made by `empty`."""
        if isinstance(self.data, list):
            self.data[at : at + rows] = part.data[first : first + rows]  # type: ignore[assignment]  # texts
            return
        width = self.row_bytes
        view = memoryview(part.data)[first * width : (first + rows) * width]  # type: ignore[arg-type]  # numbers
        self.data[at * width : (at + rows) * width] = view  # type: ignore[index]  # a bytearray, by `empty`
