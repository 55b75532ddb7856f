"""A column of SQL values on its way to the wire and back: NULLs aside, equal values once, order kept.

Pure. `InputColumn.of` decides what is sent; `FunctionInfo` says in which datatype.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, TypeVar

from ml_udf.client.function_info import FunctionInfo
from ml_udf.errors import InputInvalid, InputTooLarge, MlUdfError
from ml_udf.oip import Tensor, WireError

__all__ = ["MAX_VALUE_BYTES", "InputColumn", "SubBatch", "Value", "asked_by_key", "input_tensor", "values_of"]

Key = TypeVar("Key", bound=Hashable)
Row = TypeVar("Row")
Result = TypeVar("Result")
Value = str | bytes | float | Sequence[float] | None

MAX_VALUE_BYTES = 32 << 20  # one value; larger ones are refused here, before they fill anybody's memory
SUB_BATCH_BYTES = 8 << 20
_NUMBER_BYTES = 8


@dataclass(slots=True)
class SubBatch:
    """Consecutive distinct values that travel together; `first` is the place of `rows[0]` among them."""

    first: int
    rows: list[Any] = field(default_factory=list)


@dataclass(slots=True)
class InputColumn:
    """The distinct values of a column, and where each row finds its own.

    `place[i]` is the index of row i's value in `distinct`, or −1 where the row is NULL or at fault;
    `errors` holds the rows that are refused before they are sent.
    """

    distinct: list[Any]
    place: Sequence[int]
    errors: dict[int, MlUdfError]

    @classmethod
    def of(cls, values: Sequence[Value], datatype: str, columns: Sequence[str] = ()) -> InputColumn:
        """Prepare `values` for a tensor of `datatype`; never raises for a single bad value.

        columns: of a table, where a value is its row as JSON: an array in their order, or an object by their
        names
        """
        distinct: list[Any] = []
        seen: dict[Hashable, int] = {}
        place: list[int] = []
        errors: dict[int, MlUdfError] = {}
        if datatype == "BYTES" and (not columns or _are_arrays(values)):
            texts = _texts(values)
            if texts is not None:
                return texts
        as_wire = _bytes_value if datatype == "BYTES" else _number_value
        for row, value in enumerate(values):
            if value is None:
                place.append(-1)
                continue
            try:
                wire = as_wire(_row_by_place(value, columns) if columns else value)
            except MlUdfError as error:
                errors[row] = error
                place.append(-1)
                continue
            at = seen.setdefault(wire, len(distinct))
            if at == len(distinct):
                distinct.append(wire)
            place.append(at)
        return cls(distinct, place, errors)

    def sub_batches(self, batch_rows: int) -> Iterator[SubBatch]:
        """Cut the distinct values into requests, bounded by rows and by bytes."""
        first = 0
        while first < len(self.distinct):
            rows = _within_bytes(self.distinct[first : first + batch_rows])
            yield SubBatch(first, rows)
            first += len(rows)

    def spread(self, answers: Sequence[Any]) -> list[Any]:
        """Answers of the distinct values → one per row; None where there was nothing to ask."""
        if len(self.distinct) == len(self.place):  # no NULL, no two alike: each at its own place
            return list(answers)
        return [answers[at] if at >= 0 else None for at in self.place]


def _are_arrays(rows: Sequence[Value]) -> bool:
    """Whether a table's rows are all as a server takes them, and not by the names of its columns."""
    return all(type(row) is str and row.startswith("[") for row in rows)


def _texts(values: Sequence[Value]) -> InputColumn | None:
    """A column of texts alone, at a part of the time; None where one is something else, or refused."""
    if set(map(type, values)) != {str}:
        return None
    try:
        wires: list[bytes] = list(map(str.encode, values))  # type: ignore[arg-type]  # all are texts
    except UnicodeEncodeError:
        return None
    if max(map(len, wires)) > MAX_VALUE_BYTES:
        return None
    distinct = list(dict.fromkeys(wires))
    if len(distinct) == len(wires):
        return InputColumn(distinct, range(len(wires)), {})
    places = dict(zip(distinct, range(len(distinct)), strict=True))
    return InputColumn(distinct, list(map(places.__getitem__, wires)), {})


def _within_bytes(rows: list[Any]) -> list[Any]:
    """As many of the first as fit into one request; one at least."""
    nbytes = list(map(len, rows)) if isinstance(rows[0], bytes) else [_NUMBER_BYTES] * len(rows)
    if sum(nbytes) <= SUB_BATCH_BYTES:
        return rows
    return rows[: max(1, bisect_right(list(accumulate(nbytes)), SUB_BATCH_BYTES))]


def input_tensor(info: FunctionInfo, rows: list[Any]) -> Tensor:
    """The input tensor of some wire values. Raises `InputInvalid` where they are not of its datatype."""
    shape = (len(rows), *info.row_shape)
    if info.input_datatype == "BYTES":
        return Tensor(info.input_name, "BYTES", shape, rows)
    flat: list[float] = []
    for row in rows:
        flat.extend(row if isinstance(row, tuple) else (row,))
    width = len(flat) // max(1, len(rows))
    if rows and isinstance(rows[0], tuple) and math.prod(info.row_shape) in (0, 1):
        shape = (len(rows), width)  # the metadata leaves the vector's width open
    if len(flat) != math.prod(shape):
        raise InputInvalid(
            f"{info.name}: a row has {width} numbers, the function takes {math.prod(info.row_shape)}",
            hint="give every row a vector of the function's length",
        )
    try:
        return Tensor.of_numbers(info.input_name, info.input_datatype, flat, shape)
    except WireError as exc:
        raise InputInvalid(f"{info.name}: {exc}") from exc


def values_of(tensor: Tensor, rows: int) -> list[Any]:
    """One Python value per row of an output: text (bytes where it is not UTF-8), number, or a vector of them.

    A vector is an array of floats, or else a list. Raises `WireError` where the tensor does not have `rows`
    rows.
    """
    if len(tensor.shape) > 1 and tensor.shape[0] == rows and (floats := tensor.floats()) is not None:
        wide = len(floats) // rows if rows else 0
        if wide > 1:
            return [floats[at : at + wide] for at in range(0, len(floats), wide)]
    flat = _all_texts(tensor.elements) if tensor.datatype == "BYTES" else tensor.numbers()
    if rows and (not flat or len(flat) % rows or (tensor.shape and tensor.shape[0] != rows)):
        raise WireError(f"{rows} rows were sent, output {tensor.name!r} has shape {list(tensor.shape)}")
    width = len(flat) // rows if rows else 1
    if width == 1:
        return flat
    return [flat[at : at + width] for at in range(0, len(flat), width)]


def _all_texts(elements: list[bytes]) -> list[Any]:
    try:
        return list(map(bytes.decode, elements))
    except UnicodeDecodeError:
        return [_text(element) for element in elements]


def _text(element: bytes) -> str | bytes:
    try:
        return element.decode()
    except UnicodeDecodeError:
        return element


def _bytes_value(value: Value) -> bytes:
    if isinstance(value, str):
        try:
            wire = value.encode()
        except UnicodeEncodeError as exc:
            raise InputInvalid("the text is not valid Unicode") from exc
    elif isinstance(value, bytes):
        wire = value
    elif isinstance(value, bytearray | memoryview):
        wire = bytes(value)
    else:
        raise InputInvalid(f"the function takes text or bytes, not {type(value).__name__}")
    if len(wire) > MAX_VALUE_BYTES:
        raise InputTooLarge(
            f"a value of {len(wire):,} bytes is over the limit of {MAX_VALUE_BYTES:,}",
            hint="store the file under a media root and pass its path",
        )
    return wire


def _row_by_place(value: Value, columns: Sequence[str]) -> Value:
    """A table's row, given by the names of its columns, as the array in which a server takes it."""
    if not isinstance(value, str) or not value.lstrip().startswith("{"):
        return value
    try:
        row = json.loads(value)
        missing = [name for name in columns if name not in row]
    except (ValueError, RecursionError) as exc:
        raise InputInvalid(f"the row is no JSON: {exc}") from exc
    if missing:
        raise InputInvalid(
            f"the row has no {', '.join(map(repr, missing))}; the function takes {', '.join(columns)}",
            hint="give each column, null where its value is missing",
        )
    return json.dumps([row[name] for name in columns], ensure_ascii=False)


def _number_value(value: Value) -> float | tuple[float, ...]:
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, str | bytes) or value is None:
        raise InputInvalid(f"the function takes numbers, not {type(value).__name__}")
    try:
        vector = tuple(map(float, value))
    except (TypeError, ValueError) as exc:
        raise InputInvalid(f"the function takes numbers or vectors of numbers: {exc}") from exc
    if len(vector) * 8 > MAX_VALUE_BYTES:
        raise InputTooLarge(f"a vector of {len(vector):,} numbers is over the limit")
    return vector


def asked_by_key(
    keys: Sequence[Key | None],
    values: Sequence[Row],
    ask: Callable[[Key, list[Row]], Sequence[Result]],
    empty: Result,
) -> list[Result]:
    """Ask each key for its own rows of the column, in order of appearance; `empty` where there is none."""
    found = [empty] * len(values)
    rows_of: dict[Key, list[int]] = {}
    for row, (key, _) in enumerate(zip(keys, values, strict=True)):
        if key is not None:
            rows_of.setdefault(key, []).append(row)
    for key, rows in rows_of.items():
        for row, answer in zip(rows, ask(key, [values[row] for row in rows]), strict=True):
            found[row] = answer
    return found
