"""Answers as they are kept: of each row a few bytes, whose first four tell who answered, and how to read on.

    number of the source │ rows of numbers │ texts, each but the last after its length

Bytes and not objects: a million of them are nothing that Python's collector of garbage would look at, and
they take half the room. What many rows have in common stands in the source that they share. Pure.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, count, pairwise, repeat

from gpu_worker.wire.protocol import Answer, Column, decode, encode
from server.cache.counts import CacheCounts

__all__ = [
    "PREFIX_BYTES",
    "Cell",
    "ColumnKind",
    "PackedAnswers",
    "Source",
    "Sources",
    "UnpackedRows",
    "cells_of",
    "column_of",
    "kind_of",
]

Cell = str | bytes  # a text, or a row of numbers, raw as in `Column.data`

_NUMBER = struct.Struct("<I")
PREFIX_BYTES = _NUMBER.size
_LENGTH = struct.Struct("<I")
_MOST_SOURCES = 1000  # that are found by who they are; of the others, as many as have answers kept
_UTF8 = "utf-8", "surrogatepass"  # whatever text a model answered


@dataclass(frozen=True, slots=True)
class ColumnKind:
    """A column without its rows: as `Column` has them."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    content: str = ""

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of numbers; 0 of texts."""
        return Column(self.name, self.datatype, self.shape, b"").row_bytes


@dataclass(frozen=True, slots=True)
class UnpackedRows:
    """columns: in the order of the source's kinds, the cells. told: by row, what each member said of it;
    empty where nobody wanted to know.
    """

    columns: list[list[Cell]]
    told: list[Answer]


@dataclass(slots=True, eq=False)
class Source:
    """What rows that were answered alike share. prefix: how they begin. function: with its version; counts:
    its own. has_told: whether what each member said is kept too. entries: how many are kept.
    """

    prefix: bytes
    function: str
    kinds: tuple[ColumnKind, ...]
    answered_by: str
    counts: CacheCounts
    has_told: bool = False
    entries: int = 0
    widths: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.widths = tuple(kind.row_bytes for kind in self.kinds)

    @property
    def number(self) -> int:
        """By which its rows name it."""
        (number,) = _NUMBER.unpack(self.prefix)
        return int(number)

    def pack(self, columns: Sequence[Sequence[Cell]], told: Sequence[Answer] = ()) -> list[bytes]:
        """Rows as they are kept. columns: in the order of `kinds`; told: by row, where the source has it."""
        numbers: list[Sequence[bytes]] = []
        texts: list[list[bytes]] = [[encode(each) for each in told]] if self.has_told else []
        for width, column in zip(self.widths, columns, strict=True):
            if width:
                numbers.append(column)  # type: ignore[arg-type]  # by its width all its cells are bytes
            else:
                texts.append(_encoded(column))  # type: ignore[arg-type]  # nor is one of them here
        prefixed = [[_LENGTH.pack(len(each)) + each for each in column] for column in texts[:-1]]
        parts = [*numbers, *prefixed, *texts[-1:]]
        return list(map(b"".join, zip(repeat(self.prefix), *parts, strict=False)))

    def unpack(self, rows: Sequence[bytes]) -> UnpackedRows:
        """What was packed. rows: of this source."""
        at = len(self.prefix)
        columns: list[list[Cell]] = []
        for width in self.widths:
            columns.append([row[at : at + width] for row in rows] if width else [])
            at += width
        texts = self._texts(rows, at)
        told = [_answer(each) for each in texts.pop(0)] if self.has_told else []
        found = iter(texts)
        for place, width in enumerate(self.widths):
            if not width:
                columns[place] = list[Cell](_decoded(next(found)))
        return UnpackedRows(columns, told)

    def _texts(self, rows: Sequence[bytes], at: int) -> list[list[bytes]]:
        """The texts of all rows, one list a column; they begin at that byte."""
        there = self.widths.count(0) + self.has_told
        if there <= 1:
            return [[row[at:] for row in rows]] * there
        found: list[list[bytes]] = [[] for _ in range(there)]
        for row in rows:
            begin = at
            for column in found[:-1]:
                (nbytes,) = _LENGTH.unpack_from(row, begin)
                begin += _LENGTH.size
                column.append(row[begin : begin + nbytes])
                begin += nbytes
            found[-1].append(row[begin:])
        return found


class Sources:
    """All sources that answers are kept of, by their prefix."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._by_prefix: dict[bytes, Source] = {}
        self._known: dict[tuple[str, tuple[ColumnKind, ...], str, bool], Source] = {}

    def of(
        self,
        function: str,
        kinds: tuple[ColumnKind, ...],
        answered_by: str,
        counts: CacheCounts,
        *,
        has_told: bool,
    ) -> Source:
        """That of rows of a function, named with its version, that were answered so."""
        key = (function, kinds, answered_by, has_told)
        source = self._known.get(key)
        if source is None or source.counts is not counts:
            if len(self._known) >= _MOST_SOURCES:
                self._known.clear()
            prefix = _NUMBER.pack(next(self._numbers))
            source = self._known[key] = Source(prefix, function, kinds, answered_by, counts, has_told)
        return source

    def kept(self) -> list[Source]:
        """Those of which answers are kept."""
        return list(self._by_prefix.values())

    def of_row(self, row: bytes) -> Source:
        """That of a row that is kept."""
        return self._by_prefix[row[:PREFIX_BYTES]]

    def numbered(self, number: int) -> Source:
        """That of that number, of which answers are kept."""
        return self._by_prefix[_NUMBER.pack(number)]

    def by_source(self, rows: Sequence[bytes]) -> list[tuple[Source, list[int]]]:
        """Of each source that these rows have, which of them are its."""
        prefixes = [row[:PREFIX_BYTES] for row in rows]
        if len(set(prefixes)) == 1:
            return [(self._by_prefix[prefixes[0]], list(range(len(rows))))]
        found: dict[bytes, list[int]] = {}
        for at, prefix in enumerate(prefixes):
            found.setdefault(prefix, []).append(at)
        return [(self._by_prefix[prefix], places) for prefix, places in found.items()]

    def clear(self) -> None:
        """Nothing is kept any more."""
        for source in self._by_prefix.values():
            source.entries = source.counts.entries = source.counts.nbytes = 0
        self._by_prefix.clear()

    def changed(self, source: Source, entries: int, nbytes: int) -> None:
        """So many more of its answers are kept, or fewer, which take so much."""
        source.entries += entries
        source.counts.entries += entries
        source.counts.nbytes += nbytes
        if source.entries:
            self._by_prefix[source.prefix] = source
        else:
            del self._by_prefix[source.prefix]


@dataclass(frozen=True, slots=True)
class PackedAnswers:
    """Answers as a file has them: lengths, and what is so long, one after the other. Few objects for many."""

    key_lengths: array[int]
    row_lengths: array[int]
    keys: bytes
    rows: bytes

    @staticmethod
    def of(pairs: Iterable[tuple[bytes, bytes]]) -> PackedAnswers:
        """Of keys and rows."""
        keys, rows = list[bytes](), list[bytes]()
        for key, row in pairs:
            keys.append(key)
            rows.append(row)
        key_lengths, row_lengths = (array("I", map(len, cells)) for cells in (keys, rows))
        return PackedAnswers(key_lengths, row_lengths, b"".join(keys), b"".join(rows))

    def __len__(self) -> int:
        return len(self.key_lengths)

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        """The keys and rows, one by one."""
        return zip(_cut(self.keys, self.key_lengths), _cut(self.rows, self.row_lengths), strict=True)


def _cut(together: bytes, lengths: array[int]) -> Iterator[bytes]:
    for begin, end in pairwise(accumulate(lengths, initial=0)):
        yield together[begin:end]


def kind_of(column: Column) -> ColumnKind:
    """What remains of a column without its rows."""
    return ColumnKind(column.name, column.datatype, tuple(column.shape), column.content)


def cells_of(column: Column) -> Sequence[Cell]:
    """A column's rows, one by one."""
    data = column.data
    if isinstance(data, list):
        return data
    width = column.row_bytes
    return struct.unpack(f"{width}s" * (len(data) // width), data)


def column_of(kind: ColumnKind, cells: Sequence[Cell]) -> Column:
    """The column of that kind with these rows."""
    # By its datatype all of them are texts, or none is.
    data = list(cells) if kind.datatype == "BYTES" else b"".join(cells)  # type: ignore[arg-type]
    return Column(kind.name, kind.datatype, kind.shape, data, kind.content)  # type: ignore[arg-type]


def _encoded(texts: Sequence[str]) -> list[bytes]:
    try:
        return list(map(str.encode, texts))
    except UnicodeEncodeError:  # a lone surrogate, rare and slow
        return [text.encode(*_UTF8) for text in texts]


def _decoded(texts: list[bytes]) -> list[str]:
    try:
        return list(map(bytes.decode, texts))
    except UnicodeDecodeError:
        return [text.decode(*_UTF8) for text in texts]


def _answer(frame: bytes) -> Answer:
    answer = decode(frame)
    assert isinstance(answer, Answer), "only such were packed"
    return answer
