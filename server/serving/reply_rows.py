"""A call's answers row by row: taken out of replies, put together from replies and from what is kept.

Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace

from gpu_worker.wire.protocol import Answer, Column
from server.cache.entry import Cell, ColumnKind, Source, cells_of, column_of, kind_of
from server.catalog.functions import Function
from server.serving.answers import part_of
from server.serving.calls import Reply

__all__ = ["GatheredRows", "ReplyRows", "kept_reply"]


def kept_reply(function: Function, source: Source, rows: Sequence[bytes]) -> Reply:
    """The reply to rows all of which were kept, and answered alike. As `GatheredRows` puts it together row by
    row, at a part of the time.
    """
    found = source.unpack(rows)
    columns = {
        kind.name: column_of(kind, cells) for kind, cells in zip(source.kinds, found.columns, strict=True)
    }
    by = [(0, len(rows), source.answered_by)]
    return Reply(function, len(rows), columns, {}, by, set(), list(enumerate(found.told)), cached=len(rows))


class ReplyRows:
    """The rows of a reply, of which these columns are wanted.

    is_whole: whether it has all of them, of all rows · answered_by: by row, the members; "" where nobody
    answered
    """

    # No `cached_property`: in Python 3.11 the first look at one takes a lock, longer than what a row needs.
    __slots__ = ("_cells", "_kinds", "_names", "_told_places", "answered_by", "is_whole", "reply")

    def __init__(self, reply: Reply, names: Sequence[str]) -> None:
        self.reply = reply
        columns, rows = reply.columns, reply.rows
        self.is_whole = all(name in columns and columns[name].rows == rows for name in names)
        self.answered_by = [""] * rows
        for first, end, members in reply.answered_by:
            self.answered_by[first:end] = [members] * (end - first)
        self._names = names
        self._kinds: tuple[ColumnKind, ...] | None = None
        self._cells: list[Sequence[Cell]] | None = None
        self._told_places: tuple[list[int], list[int]] | None = None

    @property
    def columns(self) -> list[Column]:
        """Those that it has."""
        columns = self.reply.columns
        return [columns[name] for name in self._names if name in columns]

    @property
    def kinds(self) -> tuple[ColumnKind, ...]:
        """Those of the columns that it has."""
        if self._kinds is None:
            self._kinds = tuple([kind_of(column) for column in self.columns])
        return self._kinds

    @property
    def cells(self) -> list[Sequence[Cell]]:
        """Of each column that it has, its rows."""
        if self._cells is None:
            self._cells = [cells_of(column) for column in self.columns]
        return self._cells

    def told(self, row: int) -> Answer | None:
        """What each member said of a row; None where not all said it, or nobody wanted to know."""
        told = self.reply.told
        if not told:
            return None
        if self._told_places is None:
            order = sorted(range(len(told)), key=lambda place: told[place][0])
            self._told_places = order, [told[place][0] for place in order]
        order, begins = self._told_places
        at = bisect_right(begins, row) - 1
        if at < 0:
            return None
        first, answer = told[order[at]]
        rows = answer.members[0].columns[0].rows
        return part_of(answer, row - first, 1) if row < first + rows else None


class GatheredRows:
    """The answers to so many rows of a function as they come, one by one or many together."""

    def __init__(self, function: Function, rows: int) -> None:
        self.missing = rows
        self._function = function
        self._rows = rows
        self._cells: dict[ColumnKind, list[Cell | None]] = {}
        self._answered_by = [""] * rows
        self._reply = Reply(function, rows, {}, {}, [], set())
        self._told: list[tuple[int, Answer]] = []

    def take_kept(self, rows: Sequence[int], source: Source, kept: Sequence[bytes]) -> None:
        """What was kept for these rows, of one source."""
        self.missing -= len(rows)
        self._reply.cached += len(rows)
        found = source.unpack(kept)
        for mine, theirs in zip(self._lists(source.kinds), found.columns, strict=True):
            for row, cell in zip(rows, theirs, strict=True):
                mine[row] = cell
        for row in rows:
            self._answered_by[row] = source.answered_by
        if source.has_told:
            self._told += zip(rows, found.told, strict=True)

    def take(self, rows: Iterable[tuple[int, int]], of: ReplyRows) -> None:
        """What a reply says: (row, row of the reply). Members are those of the row's own error too."""
        reply, answered_by, their = of.reply, self._answered_by, of.answered_by
        lists = list(zip(self._lists(of.kinds), of.cells, strict=True))
        for row, at in rows:
            self.missing -= 1
            for cells, theirs in lists:
                cells[row] = theirs[at]
            answered_by[row] = their[at]
            error = reply.errors.get(at)
            if error is not None:
                self._reply.errors[row] = replace(error, index=row)
            elif at in reply.defaulted:
                self._reply.defaulted.add(row)
            if (told := of.told(at)) is not None:
                self._told.append((row, told))

    def reply(self) -> Reply:
        """All of it, once nothing is missing."""
        reply = self._reply
        for kind, cells in self._cells.items():
            reply.columns[kind.name] = _column(kind, cells)
        first = 0
        for row in range(1, self._rows + 1):
            if row == self._rows or self._answered_by[row] != self._answered_by[first]:
                if self._answered_by[first]:
                    reply.answered_by.append((first, row, self._answered_by[first]))
                first = row
        self._told.sort(key=lambda each: each[0])
        reply.told = self._told
        return reply

    def _lists(self, kinds: Sequence[ColumnKind]) -> list[list[Cell | None]]:
        for kind in kinds:
            if kind not in self._cells:
                self._cells[kind] = [None] * self._rows
        return [self._cells[kind] for kind in kinds]


def _column(kind: ColumnKind, cells: list[Cell | None]) -> Column:
    """A row without a cell has an error, and its cell means nothing."""
    if None in cells:
        width = Column(kind.name, kind.datatype, kind.shape, b"").row_bytes
        nothing: Cell = bytes(width) if width else ""
        return column_of(kind, [nothing if cell is None else cell for cell in cells])
    return column_of(kind, cells)  # type: ignore[arg-type]  # none is None
