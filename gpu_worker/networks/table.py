"""Rows of a table as numbers: what a tabular model sees of a row, the same in training and in serving.

A row is a JSON array with a value for each column, in their order, or a JSON object with a value by each
column's name, and perhaps others; null is a missing value. What was learnt of the training rows (means, known
texts, …) is part of the columns, and travels inside the model's file.

    column → its encoders' numbers (`encoders`), and a flag for missing
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import orjson
from numpy.typing import NDArray

from gpu_worker.networks.encoders import MANY, Encoder, Known, Scaled, Values, encoder_from
from gpu_worker.networks.network import Floats
from gpu_worker.wire.moments import moment_s

__all__ = ["TIMES", "NamedColumn", "RowInvalid", "Table", "TableColumn", "columns_of", "values_of"]

# A date or a time comes as a text of ISO 8601; one without a zone is taken as UTC.
TIMES = ("date", "timestamp", "timestamptz")
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
    """One column. kind: number, text, boolean, or one of `TIMES`. encoders: what is made of a value."""

    name: str
    kind: str
    encoders: tuple[Encoder, ...] = ()

    @property
    def width(self) -> int:
        """How many numbers stand for one value, with the flag of a missing one."""
        return 1 + sum(encoder.width for encoder in self.encoders)


class Table:
    """Columns, and how their rows become numbers. Raises `ValueError` for too many of them."""

    def __init__(self, columns: Sequence[TableColumn]) -> None:
        self.columns = tuple(columns)
        self.width = sum(column.width for column in self.columns)
        if not 1 <= self.width <= _MOST_WIDTH:
            raise ValueError(f"the columns become {self.width} numbers a row; from 1 to {_MOST_WIDTH} can be")

    def numbers(self, rows: Sequence[bytes]) -> tuple[Floats, dict[int, str]]:
        """float32 [n, width], and why some rows could not be read, by their index: all is missing there."""
        columns, faults = columns_of(rows, self.columns)
        return self._written(columns, len(rows)), faults

    def matrix(self, rows: Sequence[Sequence[Any]]) -> Floats:
        """float32 [n, width] of rows as `values_of` gives them."""
        return self._written(list(zip(*rows, strict=True)), len(rows))

    def _written(self, columns: Sequence[Values], rows: int) -> Floats:
        matrix = np.zeros((rows, self.width), np.float32)
        if not rows:
            return matrix
        end = 0
        for column, values in zip(self.columns, columns, strict=True):
            for encoder in column.encoders:
                start, end = end, end + encoder.width
                encoder.write(matrix[:, start:end], values)
            is_array = isinstance(values, np.ndarray)
            matrix[:, end] = np.isnan(values) if is_array else [value is None for value in values]
            end += 1
        return matrix

    def as_json(self) -> str:
        """The columns as text."""
        return json.dumps(
            [
                {
                    "name": column.name,
                    "kind": column.kind,
                    "encoders": [encoder.as_json() for encoder in column.encoders],
                }
                for column in self.columns
            ],
            ensure_ascii=False,
        )

    @classmethod
    def from_json(cls, text: str) -> Table:
        """The inverse of `as_json`. Raises `ValueError`, `TypeError`, `KeyError`."""
        return cls([_column(form) for form in json.loads(text)])


def values_of(row: bytes | str, columns: Sequence[NamedColumn], *, booleans_count: bool = False) -> list[Any]:
    """A row's values: float, str, bool, or None where one is missing. Raises `RowInvalid`.

    Numbers that are not finite are missing ones; a date or time is its seconds since 1970 in UTC.
    booleans_count: as 1 and 0, where a number is asked for.
    """
    values = _listed(row, columns)
    return [_value(value, column, booleans_count) for value, column in zip(values, columns, strict=True)]


def columns_of(
    rows: Sequence[bytes | str], columns: Sequence[NamedColumn], *, booleans_count: bool = False
) -> tuple[list[list[Any] | NDArray[np.float64]], dict[int, str]]:
    """The same of many rows, column by column, and why some could not be read, by their index.

    All is missing in those. A column of numbers may be an array, with NaN where one is missing.
    """
    read: list[Sequence[Any]] = []
    faults: dict[int, str] = {}
    nothing = (None,) * len(columns)
    for index, row in enumerate(rows):
        try:
            values = orjson.loads(row)
        except orjson.JSONDecodeError:
            values = None
        if type(values) is not list or len(values) != len(columns):
            try:
                values = _listed(row, columns)
            except RowInvalid as fault:
                faults[index] = str(fault)
                values = nothing
        read.append(values)
    by_column = list(zip(*read, strict=True)) if read else [()] * len(columns)
    wrong: set[int] = set()
    found = [
        _column_values(values, column, booleans_count, wrong)
        for values, column in zip(by_column, columns, strict=True)
    ]
    for index in wrong - faults.keys():
        try:  # by itself: of a whole number of very many digits orjson has made another
            values_of(rows[index], columns, booleans_count=booleans_count)
        except RowInvalid as fault:
            faults[index] = str(fault)
    for values in found:
        for index in faults:
            values[index] = None  # NaN in an array
    return found, dict(sorted(faults.items()))


def _column_values(
    values: Sequence[Any], column: NamedColumn, booleans_count: bool, wrong: set[int]
) -> list[Any] | NDArray[np.float64]:
    """Of JSON, to the column's kind; the places of values that are none of it come into `wrong`."""
    if len(values) >= MANY:
        plain = _PLAIN.get(column.kind, ())
        types = set(map(type, values)).difference(plain, (type(None),))
        if not types and column.kind == "number":
            try:
                numbers = np.array(values, np.float64)
            except OverflowError:  # a whole number of very many digits
                pass
            else:
                numbers[~np.isfinite(numbers)] = math.nan
                return numbers
        elif not types:
            return list(values)
    made: list[Any] = []
    for index, value in enumerate(values):
        try:
            made.append(_value(value, column, booleans_count))
        except RowInvalid:
            wrong.add(index)
            made.append(None)
    return made


def _listed(row: bytes | str, columns: Sequence[NamedColumn]) -> list[Any]:
    """A row's values in the order of the columns, whatever they are. Raises `RowInvalid`."""
    try:
        values = _parsed(row)
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
    return values


_decoder = json.JSONDecoder()


def _parsed(row: bytes | str) -> Any:  # noqa: ANN401  # any JSON
    """What `json.loads` returns and raises, in a third of the time where a row is nothing but plain JSON."""
    try:
        text = row if isinstance(row, str) else row.decode()
        value, end = _decoder.raw_decode(text)
        if end == len(text):
            return value
    except ValueError:
        pass
    return json.loads(row)


# What values of a kind are as they are.
_PLAIN: Mapping[str, Sequence[type]] = {"number": (float, int), "text": (str,), "boolean": (bool,)}


def _value(value: Any, column: NamedColumn, booleans_count: bool) -> Any:  # noqa: ANN401  # of JSON, to the column's kind
    if value is None:
        return None
    if column.kind == "number":
        if booleans_count and isinstance(value, bool):
            return float(value)
        if type(value) is float and math.isfinite(value):
            return value
        # PostgreSQL writes NaN and Infinity as texts, since JSON has none.
        if isinstance(value, int | float | str) and not isinstance(value, bool):
            try:
                number = float(value)
            except OverflowError:
                return None  # as an infinite one
            except ValueError:
                number = None
            if number is not None:
                return number if math.isfinite(number) else None
    elif column.kind in TIMES:
        if isinstance(value, str):
            try:
                return moment_s(value)
            except ValueError:
                pass
    elif isinstance(value, str if column.kind == "text" else bool):
        return value
    wanted = column.kind + _EXPECTED.get(column.kind, "")
    raise RowInvalid(f"{str(value)[:_SHOWN_CHARS]!r} in column {column.name!r} is not a {wanted}")


_EXPECTED = dict.fromkeys(TIMES, " such as 2024-01-31 or 2024-01-31T12:00:00")


def _column(form: Mapping[str, Any]) -> TableColumn:
    if "encoders" in form:
        encoders = tuple(encoder_from(each) for each in form["encoders"])
    elif form["kind"] == "text":  # files of format 1 without encoders
        encoders = (Known(tuple(form["texts"])),)
    else:
        encoders = (Scaled(float(form["mean"]), float(form["scale"])),)
    return TableColumn(form["name"], form["kind"], encoders)


def _shown(row: bytes | str) -> str:
    text = row.decode("utf-8", "replace") if isinstance(row, bytes) else row
    return repr(text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…")
