"""One row's answer as it is kept: of each column a cell, and who answered.

What many rows have in common (the columns' kinds, the members) stands in one object that they share. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpu_worker.wire.protocol import Answer, Column
from server.cache.counts import CacheCounts
from server.cache.rule import Kept

__all__ = ["Cell", "ColumnKind", "KeptAnswer", "Source", "cells_of", "column_of", "kind_of"]

Cell = str | bytes  # a text, or a row of numbers, raw as in `Column.data`

# Measured (tests/unit/test_cache_store.py): the object, its key, its cells' tuple, its place in the
# dictionary. Not what its cells hold.
_ENTRY_BYTES = 368
_CELL_BYTES = 56  # a string's or a bytes object's head, and its place
_TOLD_BYTES = 2048  # what members said, beside the numbers


@dataclass(frozen=True, slots=True)
class ColumnKind:
    """A column without its rows: as `Column` has them."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    content: str = ""


@dataclass(slots=True, eq=False)
class Source:
    """What rows that were answered alike share. counts: of the function that they are an answer of."""

    kinds: tuple[ColumnKind, ...]
    answered_by: str
    counts: CacheCounts
    row_bytes: int = field(init=False)  # that each row takes, beside what its cells hold

    def __post_init__(self) -> None:
        self.row_bytes = _ENTRY_BYTES + _CELL_BYTES * len(self.kinds)


class KeptAnswer(Kept):
    """The answer to one row. cells: in the order of `source.kinds` · told: what each member said of the row,
    where that was wanted, one row of it.
    """

    __slots__ = ("cells", "source", "told")

    def __init__(self, key: bytes, cells: tuple[Cell, ...], source: Source, told: Answer | None) -> None:
        self.key = key  # not by `super`, which takes as long as all of this
        self.nbytes = source.row_bytes + sum(map(len, cells))
        if told is not None:
            self.nbytes += _TOLD_BYTES + sum(c.nbytes for each in told.members for c in each.columns)
        self.mark = 0
        self.older = self.newer = None
        self.cells = cells
        self.source = source
        self.told = told


def kind_of(column: Column) -> ColumnKind:
    """What remains of a column without its rows."""
    return ColumnKind(column.name, column.datatype, tuple(column.shape), column.content)


def cells_of(column: Column) -> Sequence[Cell]:
    """A column's rows, one by one."""
    data = column.data
    if isinstance(data, list):
        return data
    width, whole = column.row_bytes, bytes(data)
    return [whole[at : at + width] for at in range(0, len(whole), width)]


def column_of(kind: ColumnKind, cells: Sequence[Cell]) -> Column:
    """The column of that kind with these rows."""
    # By its datatype all of them are texts, or none is.
    data = list(cells) if kind.datatype == "BYTES" else b"".join(cells)  # type: ignore[arg-type]
    return Column(kind.name, kind.datatype, kind.shape, data, kind.content)  # type: ignore[arg-type]
