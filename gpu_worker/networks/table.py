"""Rows of a table as numbers: what a tabular model sees of a row, the same in training and in serving.

A row is a JSON array with a value for each column, in their order, or a JSON object with a value by each
column's name, and perhaps others; null is a missing value. What was learnt of the training rows (means, known
texts) is part of the columns, and travels inside the model's file.

    number   (value − mean) / scale, and a flag for missing    boolean  true, and a flag for missing
    text     a flag for each known text, and one for missing   (an unknown text raises no flag)
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np

from gpu_worker.networks.network import Floats

__all__ = ["NamedColumn", "RowInvalid", "Table", "TableColumn", "values_of"]

_MOST_TEXTS = 32  # of one column; the rarer ones count as unknown
_MOST_WIDTH = 4096
_SHOWN_CHARS = 80


class RowInvalid(ValueError):
    """A row is not what the columns say."""


class NamedColumn(Protocol):
    """What is known of any column: its name, and its kind: number, text or boolean."""

    @property
    def name(self) -> str:
        """As the rows call it."""
        ...

    @property
    def kind(self) -> str:
        """Of its values."""
        ...


@dataclass(frozen=True, slots=True)
class TableColumn:
    """One column. mean, scale: of a number, among the training rows. texts: those that are known."""

    name: str
    kind: str
    mean: float = 0.0
    scale: float = 1.0
    texts: tuple[str, ...] = ()

    @property
    def width(self) -> int:
        """How many numbers stand for one value."""
        return len(self.texts) + 1 if self.kind == "text" else 2


class Table:
    """Columns, and how their rows become numbers. Raises `ValueError` for too many of them."""

    def __init__(self, columns: Sequence[TableColumn]) -> None:
        self.columns = tuple(columns)
        starts = np.cumsum([0, *(column.width for column in self.columns)]).tolist()
        self._starts: list[int] = starts[:-1]
        self.width: int = starts[-1]
        if not 1 <= self.width <= _MOST_WIDTH:
            raise ValueError(f"the columns become {self.width} numbers a row; from 1 to {_MOST_WIDTH} can be")
        self._places = [{text: at for at, text in enumerate(column.texts)} for column in self.columns]

    @classmethod
    def fitted(cls, kinds: Sequence[Mapping[str, str]], rows: Iterable[Sequence[Any]]) -> Table:
        """The columns as training rows show them. kinds: name and kind of each; rows: of `values_of`."""
        count = [0] * len(kinds)
        mean = [0.0] * len(kinds)
        spread = [0.0] * len(kinds)
        texts: list[Counter[str]] = [Counter() for _ in kinds]
        for row in rows:
            for at, value in enumerate(row):
                if isinstance(value, str):
                    texts[at][value] += 1
                elif isinstance(value, float):
                    # Welford 1962: sums of squares would lose small spreads around large means.
                    count[at] += 1
                    gap = value - mean[at]
                    mean[at] += gap / count[at]
                    spread[at] += gap * (value - mean[at])
        return cls(
            [
                TableColumn(
                    kind["name"],
                    kind["kind"],
                    mean[at],
                    math.sqrt(spread[at] / count[at]) or 1.0 if count[at] else 1.0,
                    _known(texts[at]),
                )
                for at, kind in enumerate(kinds)
            ]
        )

    def numbers(self, rows: Sequence[bytes]) -> tuple[Floats, dict[int, str]]:
        """float32 [n, width], and why some rows could not be read, by their index: those are all 0."""
        matrix = np.zeros((len(rows), self.width), np.float32)
        faults: dict[int, str] = {}
        for index, row in enumerate(rows):
            try:
                self.fill(matrix[index], values_of(row, self.columns))
            except RowInvalid as fault:
                faults[index] = str(fault)
        return matrix, faults

    def fill(self, line: Floats, values: Sequence[Any]) -> None:
        """Write one row's numbers into `line`, which is all 0."""
        for column, start, places, value in zip(
            self.columns, self._starts, self._places, values, strict=True
        ):
            if value is None:
                line[start + column.width - 1] = 1.0
            elif isinstance(value, str):
                place = places.get(value)
                if place is not None:
                    line[start + place] = 1.0
            elif isinstance(value, bool):
                line[start] = value
            else:
                line[start] = min(max((value - column.mean) / column.scale, -1e30), 1e30)

    def as_json(self) -> str:
        """The columns as text."""
        return json.dumps([asdict(column) for column in self.columns], ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Table:
        """The inverse of `as_json`. Raises `ValueError`, `TypeError`."""
        return cls(
            [TableColumn(**{**column, "texts": tuple(column["texts"])}) for column in json.loads(text)]
        )


def values_of(row: bytes | str, columns: Sequence[NamedColumn], *, booleans_count: bool = False) -> list[Any]:
    """A row's values: float, str, bool, or None where one is missing. Raises `RowInvalid`.

    Numbers that are not finite are missing ones. booleans_count: as 1 and 0, where a number is asked for.
    """
    try:
        values = json.loads(row)
    except (ValueError, RecursionError) as exc:
        raise RowInvalid(f"the row {_shown(row)} is not JSON") from exc
    if isinstance(values, dict):
        missing = [column.name for column in columns if column.name not in values]
        if missing:
            raise RowInvalid(f"the row {_shown(row)} has no {', '.join(map(repr, missing))}")
        values = [values[column.name] for column in columns]
    if not isinstance(values, list) or len(values) != len(columns):
        names = ", ".join(column.name for column in columns)
        raise RowInvalid(f"the row {_shown(row)} is not a JSON array of {len(columns)} values: {names}")
    if booleans_count:
        values = [
            int(value) if isinstance(value, bool) and column.kind == "number" else value
            for value, column in zip(values, columns, strict=True)
        ]
    return [_value(value, column) for value, column in zip(values, columns, strict=True)]


def _value(value: Any, column: NamedColumn) -> Any:  # noqa: ANN401  # of JSON, to the column's kind
    if value is None:
        return None
    if column.kind == "number":
        # PostgreSQL writes NaN and Infinity as texts, since JSON has none.
        if isinstance(value, int | float | str) and not isinstance(value, bool):
            try:
                number = float(value)
            except (ValueError, OverflowError):
                number = None
            if number is not None:
                return number if math.isfinite(number) else None
    elif isinstance(value, str if column.kind == "text" else bool):
        return value
    raise RowInvalid(f"{str(value)[:_SHOWN_CHARS]!r} in column {column.name!r} is not a {column.kind}")


def _known(texts: Counter[str]) -> tuple[str, ...]:
    # Of equally frequent ones the first by name: the order of the rows must not matter.
    ranked = sorted(texts, key=lambda text: (-texts[text], text))
    return tuple(sorted(ranked[:_MOST_TEXTS]))


def _shown(row: bytes | str) -> str:
    text = row.decode("utf-8", "replace") if isinstance(row, bytes) else row
    return repr(text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…")
