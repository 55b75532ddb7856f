"""Rows and texts as an ONNX graph wants them: one table of numbers, an input for each column, or strings.

with `ml_udf.columns` in its metadata   [n, features], made as in training (`networks.table`)
one input of numbers [n, columns]       the values in the order of the columns; a missing one is NaN, and
                                        where the input takes whole numbers a fault of its row
one input of strings [n, columns]       texts in that order; a missing one is ""
an input for each column, by its name   [n, 1] or [n]: a number, a whole number, a truth value, a text
one input of strings, of texts          [n] or [n, 1]
one input of files' bytes               [n, bytes] (`networks.file_input`)
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, Protocol

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from gpu_worker.errors import ModelUnusable
from gpu_worker.model_files.manifest import Manifest
from gpu_worker.networks.encoders import Values
from gpu_worker.networks.file_input import FileInput
from gpu_worker.networks.table import NamedColumn, RowInvalid, Table, TableColumn, columns_of, values_of

__all__ = ["COLUMNS_KEY", "RowInput", "row_input"]

COLUMNS_KEY: Final = "ml_udf.columns"

Feed = dict[str, NDArray[Any]]

_NUMBERS: Final = {"tensor(float)": np.float32, "tensor(double)": np.float64}
_WHOLE: Final = {"tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(bool)": np.bool_}
# Of those, what a number in double precision may be: from the first to below the second.
_ENDS: Final = {"tensor(int64)": (-(2.0**63), 2.0**63), "tensor(int32)": (-(2.0**31), 2.0**31)}
_STRING: Final = "tensor(string)"


class RowInput(Protocol):
    """What rows become before the graph sees them."""

    @property
    def empty(self) -> bytes:
        """A row that says nothing."""
        ...

    def feed(self, rows: Sequence[bytes]) -> tuple[Feed, Sequence[int]]:
        """What the graph is fed, and which rows could not be read; of those it is fed something."""
        ...

    def fault_of(self, row: bytes) -> str | None:
        """Why a row cannot be read; None of one that can."""
        ...


def row_input(session: onnxruntime.InferenceSession, manifest: Manifest, path: str) -> RowInput:
    """The way into a session. Raises `ModelUnusable` where its inputs are none of those above."""
    inputs = session.get_inputs()
    if manifest.input.preprocess.file_ends is not None:
        return FileInput(inputs, manifest.input.preprocess, path)
    if manifest.input.form == "text":
        return _TextInput(inputs, manifest, path)
    stored = session.get_modelmeta().custom_metadata_map.get(COLUMNS_KEY)
    if stored is not None:
        return _TableInput(_table(stored, path), inputs, path)
    columns = [TableColumn(name, kind) for name, kind in manifest.input.columns]
    if not columns:
        raise ModelUnusable(
            f"{path} does not say what a row is: it holds no {COLUMNS_KEY!r} in its metadata, and model.json "
            "lists no 'input.columns'"
        )
    return _ColumnsInput(columns, inputs, path)


class _TableInput:
    """A row becomes numbers as it did in training."""

    def __init__(self, table: Table, inputs: Sequence[Any], path: str) -> None:
        self._table = table
        fits = len(inputs) == 1 and inputs[0].type == "tensor(float)" and len(inputs[0].shape) == 2
        if not fits:
            raise ModelUnusable(f"{path} needs one float32 input [n, features]")
        if inputs[0].shape[1] != table.width:
            raise ModelUnusable(
                f"{path} takes {inputs[0].shape[1]} features, and its columns make {table.width}"
            )
        self._name = str(inputs[0].name)
        self.empty = _empty_row(table.columns)

    def feed(self, rows: Sequence[bytes]) -> tuple[Feed, Sequence[int]]:
        matrix, faults = self._table.numbers(rows)
        return {self._name: matrix}, list(faults)

    def fault_of(self, row: bytes) -> str | None:
        try:
            values_of(row, self._table.columns)
        except RowInvalid as fault:
            return str(fault)
        return None


class _ColumnsInput:
    """The values as they are, side by side in one input, or each in one of its own."""

    def __init__(self, columns: Sequence[NamedColumn], inputs: Sequence[Any], path: str) -> None:
        self._columns = columns
        self._by_column = {column.name: at for at, column in enumerate(columns)}
        self._types = [""] * len(columns)  # of the inputs, by column
        self._alone: list[tuple[str, int, str, tuple[int, ...]]] = []  # input, column, type, shape of a row
        self._together = ""
        told = ", ".join(f"{each.name} {each.type} {each.shape}" for each in inputs)
        if len(inputs) == 1 and (len(columns) > 1 or inputs[0].name not in self._by_column):
            (only,) = inputs
            width = only.shape[1] if len(only.shape) == 2 else None
            if only.type not in (*_NUMBERS, *_WHOLE, _STRING) or (
                isinstance(width, int) and width != len(columns)
            ):
                raise ModelUnusable(f"{path} takes {told}, and the model's rows have {len(columns)} columns")
            kinds = {column.kind for column in columns}
            if kinds != {"text"} if only.type == _STRING else "text" in kinds:
                raise ModelUnusable(
                    f"{path} takes {told}, and the model's columns are {', '.join(sorted(kinds))}; "
                    "a graph that takes texts beside numbers needs an input for each column"
                )
            self._together = str(only.name)
            self._types = [str(only.type)] * len(columns)
            self.empty = self._nothing()
            return
        names = {str(each.name) for each in inputs}
        if names != set(self._by_column):
            raise ModelUnusable(
                f"{path} takes {told}, and the model's columns are {', '.join(self._by_column)}: "
                "each input must be a column of its name"
            )
        for each in inputs:
            if each.type not in (*_NUMBERS, *_WHOLE, _STRING):
                raise ModelUnusable(f"{path}: its input {each.name} is {each.type}, which no column can be")
            at = self._by_column[str(each.name)]
            if (each.type == _STRING) != (columns[at].kind == "text"):
                raise ModelUnusable(
                    f"{path}: its input {each.name} is {each.type}, and the column is a {columns[at].kind}"
                )
            self._alone.append((str(each.name), at, str(each.type), (1,) * (len(each.shape) - 1)))
        for _, at, kind, _ in self._alone:
            self._types[at] = kind
        self.empty = self._nothing()

    def feed(self, rows: Sequence[bytes]) -> tuple[Feed, Sequence[int]]:
        columns, unread = columns_of(rows, self._columns)
        faults = set(unread)
        for values, kind in zip(columns, self._types, strict=True):
            if kind in _WHOLE:
                faults.update(_not_whole(values, kind))
        for values in columns:
            for place in faults:
                values[place] = None  # NaN in an array
        arrays = [_array(values, kind) for values, kind in zip(columns, self._types, strict=True)]
        if self._together:
            return {self._together: np.stack(arrays, axis=1)}, sorted(faults)
        feed = {name: arrays[at].reshape(len(rows), *shape) for name, at, _, shape in self._alone}
        return feed, sorted(faults)

    def fault_of(self, row: bytes) -> str | None:
        try:
            values = values_of(row, self._columns)
        except RowInvalid as fault:
            return str(fault)
        for column, kind, value in zip(self._columns, self._types, values, strict=True):
            if kind not in _WHOLE or not _not_whole([value], kind):
                continue
            if value is None or value != int(value):
                return f"{value!r} in column {column.name!r} is not a whole number, as the model needs"
            return f"{value:.20g} in column {column.name!r} is beyond the whole numbers of {kind}"
        # It can be read, and its answer was no number.
        for column, value in zip(self._columns, values, strict=True):
            if value is None:
                return (
                    f"the value of column {column.name!r} is missing, and the model has no answer without it"
                )
        return None

    def _nothing(self) -> bytes:
        """A row that says nothing; of a whole number, which cannot be missing, 0."""
        zero = [False if column.kind == "boolean" else 0 for column in self._columns]
        values = [each if kind in _WHOLE else None for each, kind in zip(zero, self._types, strict=True)]
        return json.dumps(values).encode()


class _TextInput:
    """Texts into one input of strings."""

    empty = b""

    def __init__(self, inputs: Sequence[Any], manifest: Manifest, path: str) -> None:
        if len(inputs) != 1 or inputs[0].type != _STRING or len(inputs[0].shape) > 2:
            told = ", ".join(f"{each.name} {each.type} {each.shape}" for each in inputs)
            raise ModelUnusable(
                f"{path} takes {told}; a graph of texts needs one input of strings, [n] or [n, 1]. One that "
                "takes tokens comes with its tokenizer, as a Hugging Face directory"
            )
        self._name = str(inputs[0].name)
        self._shape = (1,) * (len(inputs[0].shape) - 1)
        self._how = manifest.input.preprocess

    def feed(self, rows: Sequence[bytes]) -> tuple[Feed, Sequence[int]]:
        texts = [self._how.prefix + bytes(row).decode("utf-8", "replace") for row in rows]
        if self._how.lower_case:
            texts = [text.lower() for text in texts]
        return {self._name: np.array(texts, object).reshape(len(rows), *self._shape)}, ()

    def fault_of(self, row: bytes) -> str | None:
        return None


def _array(column: Values, kind: str) -> NDArray[Any]:
    if kind == _STRING:
        return np.array(["" if value is None else value for value in column], object)
    numbers = np.array(column, np.float64)  # NaN for None
    if kind in _WHOLE:
        return np.nan_to_num(numbers).astype(_WHOLE[kind])
    return numbers.astype(_NUMBERS[kind])


def _not_whole(column: Values, kind: str) -> list[int]:
    """The places of values that are missing, of which there is none among whole numbers, not whole, or beyond
    the type.
    """
    numbers = np.array(column, np.float64)
    wrong = numbers != np.trunc(numbers)  # NaN is not itself
    if kind in _ENDS:
        least, end = _ENDS[kind]
        wrong |= ~((numbers >= least) & (numbers < end))
    return [int(place) for place in np.flatnonzero(wrong)]


def _table(stored: str, path: str) -> Table:
    try:
        return Table.from_json(stored)
    except (ValueError, TypeError, KeyError, RecursionError) as exc:
        raise ModelUnusable(f"{COLUMNS_KEY!r} of {path} cannot be read: {exc}") from exc


def _empty_row(columns: Sequence[NamedColumn]) -> bytes:
    return ("[" + ",".join(["null"] * len(columns)) + "]").encode()
