"""What stands in a snapshot, as a person looks at it: its classes, a few rows of each, single rows. Blocking.

Knows the file alone, which never changes; reads no more columns and rows than are asked for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

__all__ = ["Contents", "Row", "contents_of", "held_out_rows", "rows_of"]

_MOST_CLASSES = 1_000  # that are counted apart
_EXAMPLES = 6  # of each class
_CLASSES_SHOWN = 24  # that have examples
_MOST_EXAMPLES = 24  # where there are no classes


@dataclass(frozen=True, slots=True)
class Row:
    """One row. number: its place in the file, by which it is asked for again."""

    number: int
    key: str
    input: str
    target: str
    split: str


@dataclass(frozen=True, slots=True)
class Contents:
    """Of a whole snapshot.

    counts: class → split → rows, the most frequent first; of numbers and boxes empty. numbers: the upper
    bounds of ten steps and the rows in each, where the target is a number. examples: rows by class, evenly
    over all of them; "" where there are no classes.
    """

    counts: Mapping[str, Mapping[str, int]]
    numbers: tuple[tuple[float, int], ...]
    examples: Mapping[str, tuple[Row, ...]]


def contents_of(file: Path, *, has_classes: bool) -> Contents:
    """Raises OSError."""
    table = pq.read_table(file, columns=["target", "split"])
    target, split = table["target"], table["split"]
    if has_classes and pa.types.is_string(target.type):
        return _of_classes(file, target, split)
    numbers: tuple[tuple[float, int], ...] = ()
    if pa.types.is_floating(target.type):
        values = target.to_numpy()
        counts, edges = np.histogram(values[np.isfinite(values)], bins=10)
        numbers = tuple(zip(edges[1:].tolist(), counts.tolist(), strict=True))
    chosen = np.unique(np.linspace(0, max(0, table.num_rows - 1), _MOST_EXAMPLES).astype(int)).tolist()
    rows = rows_of(file, chosen) if table.num_rows else ()
    return Contents({}, numbers, {"": tuple(rows)})


def rows_of(file: Path, numbers: Collection[int]) -> list[Row]:
    """Rows by their numbers, in that order; those that there are not are left out. Raises OSError."""
    wanted = sorted({number for number in numbers if number >= 0})
    found: dict[int, Row] = {}
    with pq.ParquetFile(file) as opened:
        first = 0
        for group in range(opened.num_row_groups):
            end = first + opened.metadata.row_group(group).num_rows
            here = [number for number in wanted if first <= number < end]
            if here:
                part = opened.read_row_group(group, columns=["key", "input", "target", "split"])
                part = part.take(pa.array([number - first for number in here]))
                for number, row in zip(here, part.to_pylist(), strict=True):
                    found[number] = Row(number, row["key"], row["input"], str(row["target"]), row["split"])
            first = end
    return [found[number] for number in numbers if number in found]


def held_out_rows(file: Path, most: int) -> tuple[list[tuple[int, str, str]], int]:
    """(number, input, target) of test rows, at most so many, evenly over all; and how many there are."""
    table = pq.read_table(file, columns=["input", "target", "split"])
    places = np.flatnonzero(np.asarray(pc.equal(table["split"], "test")))
    chosen = places
    if len(places) > most:
        chosen = places[np.linspace(0, len(places) - 1, most).astype(int)]
    part = table.select(["input", "target"]).take(pa.array(chosen))
    told = zip(chosen.tolist(), part["input"].to_pylist(), map(str, part["target"].to_pylist()), strict=True)
    return list(told), len(places)


def _of_classes(file: Path, target: pa.ChunkedArray, split: pa.ChunkedArray) -> Contents:
    table = pa.table({"target": target, "split": split})
    grouped = table.group_by(["target", "split"]).aggregate([([], "count_all")]).to_pylist()
    counts: dict[str, dict[str, int]] = {}
    for each in grouped:
        counts.setdefault(each["target"], {})[each["split"]] = each["count_all"]
    ranked = sorted(counts, key=lambda name: (-sum(counts[name].values()), name))[:_MOST_CLASSES]
    chosen = {name: _numbers_of(target, name) for name in ranked[:_CLASSES_SHOWN]}
    rows = {row.number: row for row in rows_of(file, [n for places in chosen.values() for n in places])}
    examples = {name: tuple(rows[number] for number in places) for name, places in chosen.items()}
    return Contents({name: counts[name] for name in ranked}, (), examples)


def _numbers_of(target: pa.ChunkedArray, name: str) -> Sequence[int]:
    """A few rows of a class, evenly over all of them."""
    places = np.flatnonzero(np.asarray(pc.equal(target, name)))
    numbers: list[int] = places[
        np.unique(np.linspace(0, len(places) - 1, min(_EXAMPLES, len(places))).astype(int))
    ].tolist()
    return numbers
