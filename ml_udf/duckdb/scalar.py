"""One SQL function of DuckDB: the columns that it is called with, as a column of the server's inputs.

It takes columns of any type, so that what does not fit is said in our words and under the function's own
name. A macro of that name in front of it adds, as a struct behind the input, what DuckDB does not pass to its
functions (`ml_udf.duckdb.surface`). Other connections of the same database do not have the macro: they call
the function itself, with the values alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Final

import pyarrow as pa

from ml_udf.client.column import Value
from ml_udf.client.function_info import FunctionInfo
from ml_udf.client.statement import Binding
from ml_udf.duckdb.calls import Calls
from ml_udf.duckdb.faults import spelled_out
from ml_udf.duckdb.surface import STATEMENT
from ml_udf.duckdb.vectors import (
    ArrowVector,
    VectorType,
    column_of,
    fitting,
    in_calendar,
    input_vector,
    output_vector,
    type_name,
)
from ml_udf.errors import InputInvalid, MlUdfError, WrongType

__all__ = ["Scalar", "parted"]

# A path cast to BLOB is no photo, nor is a photo cast to VARCHAR a path.
_OF_PHOTOS = {
    "image": "give an image's bytes, as in SELECT {name}(content) FROM read_blob('*.jpg'); "
    "to give paths, register it with input_name='image_path' (docs/using.md)",
    "path": "give a path of the inference server's host, as a text; "
    "to give an image's bytes, register it with input_name='image' (docs/using.md)",
}
_SHOWN_CHARS = 200
_AS_REGISTERED = (
    "if {name} was deployed anew and answers something else now, register it again, as in "
    "ml_udf.duckdb.register(con, …); else the model behind it does not keep to what its metadata promise"
)
_KINDS = {
    "number": pa.float64(),
    "text": pa.string(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
}


def parted(vectors: Sequence[ArrowVector]) -> tuple[Sequence[ArrowVector], str | None]:
    """The columns of a call, and its statement's identity where a macro has added it."""
    last = vectors[-1]
    if pa.types.is_struct(last.type) and [field.name for field in last.type] == [STATEMENT]:
        return vectors[:-1], last[0].as_py()[STATEMENT] if len(last) else ""
    return vectors, None


@dataclass(frozen=True, slots=True)
class Scalar:
    """A function of the server under its SQL name."""

    name: str
    binding: Binding
    info: FunctionInfo
    calls: Calls

    @property
    def result(self) -> str:
        """The SQL type of its answers."""
        return output_vector(self.info).sql

    def answers(self, vectors: Sequence[ArrowVector]) -> pa.Array:
        """A value per row. Raises `MlUdfError` with everything in its text."""
        target = output_vector(self.info)
        if len(vectors[0]) == 0:
            return target.array([])
        columns, statement = parted(vectors)
        try:
            values = self._values(columns, rows=statement is None)
        except MlUdfError as error:
            self.calls.note(error)
            raise spelled_out(error, self.name) from None
        fit = None if target.of_text is None else lambda _, value: self._fitted(target, value)
        found = self.calls.values(self.binding, statement, values, fit)
        try:
            return target.array(found)
        except (WrongType, TypeError, ValueError, pa.ArrowException) as misfit:
            reason = misfit.message if isinstance(misfit, WrongType) else f"{misfit!s:.{_SHOWN_CHARS}}"
            refused = self._misfit(target, reason)
            self.calls.note(refused)
            raise spelled_out(refused, self.name) from None

    def _fitted(self, target: VectorType, value: Any) -> Any:  # noqa: ANN401  # of the wire's types
        try:
            return target.fit(value)
        except WrongType as misfit:
            raise self._misfit(target, misfit.message) from None

    def _misfit(self, target: VectorType, reason: str) -> WrongType:
        """DuckDB's functions have one type for good: that of the answers when they were registered."""
        return WrongType(
            f"its answers are no {target.sql}, as they were when it was registered: {reason}",
            hint=_AS_REGISTERED.format(name=self.name),
        )

    def _values(self, columns: Sequence[ArrowVector], *, rows: bool) -> list[Value]:
        """The inputs. rows: whether a table's columns are still to be made into rows."""
        wanted = [name for name, _ in self.info.columns] if rows and self.info.columns else ["input"]
        if len(columns) != len(wanted):
            raise WrongType(
                f"{self.name} takes {', '.join(wanted)}, and was given {len(columns)} arguments",
                hint=f"call it as {self.name}({', '.join(wanted)})",
            )
        if rows and self.info.columns:
            return self._rows(columns)
        hint = _OF_PHOTOS.get(self.info.form, "").format(name=self.name)
        return column_of(fitting(self.name, columns[0], input_vector(self.info), hint))

    def _rows(self, columns: Sequence[ArrowVector]) -> list[Value]:
        texts: list[list[str]] = []
        for (name, kind), column in zip(self.info.columns, columns, strict=True):
            try:
                values = in_calendar(column.cast(_KINDS[kind])).to_pylist()
            except (ValueError, OverflowError, pa.ArrowNotImplementedError) as exc:
                raise InputInvalid(
                    f"{name} is a {kind}, and was given {type_name(column.type)}: {exc}",
                    hint="give a value of that kind, or NULL where it is missing",
                ) from None
            written = _WRITTEN.get(kind, _moment)
            texts.append(["null" if value is None else written(value) for value in values])
        return [f"[{', '.join(row)}]" for row in zip(*texts, strict=True)]


def _number(value: float) -> str:
    return repr(value) if math.isfinite(value) else json.dumps(value)


def _moment(value: date) -> str:
    return f'"{value.isoformat()}"'


# As `json.dumps` writes them, which takes three times as long for a row.
_WRITTEN: Final[Mapping[str, Callable[[Any], str]]] = {
    "number": _number,
    "text": json.JSONEncoder(ensure_ascii=False).encode,
    "boolean": json.dumps,
}
