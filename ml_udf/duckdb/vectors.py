"""DuckDB's vectors, as Arrow arrays, to columns of Python values and back.

Types follow the wire's datatypes: BYTES is text (a blob where the function takes encoded images), numbers
are DOUBLE or BIGINT, rows of several numbers are lists of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from ml_udf.column import Value
from ml_udf.function_info import FunctionInfo
from ml_udf.statement import Answer

__all__ = ["TEXT", "TEXTS", "Vector", "VectorType", "column_of", "input_vector", "output_vector", "try_array"]

Vector: TypeAlias = Any  # pyarrow.ChunkedArray on the way in; pyarrow ships no types

_TRY_ARROW = pa.struct(
    [
        ("value", pa.string()),
        ("confidence", pa.float64()),
        ("model_version", pa.string()),
        ("error", pa.string()),
    ]
)
_WHOLE = {"UINT8", "UINT16", "UINT32", "INT8", "INT16", "INT32", "INT64"}


@dataclass(frozen=True, slots=True)
class VectorType:
    """A column's type, in SQL and in Arrow."""

    sql: str
    arrow: pa.DataType

    def array(self, values: Sequence[Any]) -> pa.Array:
        """A freshly built array; DuckDB keeps no reference to what a function returned earlier."""
        if pa.types.is_string(self.arrow):
            values = [v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in values]
        return pa.array(values, self.arrow)


TEXT = VectorType("VARCHAR", pa.string())
TEXTS = VectorType("VARCHAR[]", pa.list_(pa.string()))


def input_vector(info: FunctionInfo) -> VectorType:
    """The type of the SQL function's argument."""
    if info.input_datatype == "BYTES":
        return VectorType("BLOB", pa.binary()) if info.form == "image" else TEXT
    return _numbers(info.input_datatype, lists=math.prod(info.row_shape) != 1 or len(info.row_shape) > 1)


def output_vector(info: FunctionInfo) -> VectorType:
    """The type of the SQL function's result."""
    if info.output_datatype == "BYTES":
        return TEXT
    return _numbers(info.output_datatype, lists=info.output_width != 1)


def column_of(vector: Vector) -> list[Value]:
    """A vector's values; its length is 0 where a filter left nothing."""
    values: list[Value] = vector.to_pylist()
    return values


def try_array(found: Sequence[tuple[Answer, str | None]]) -> pa.Array:
    """`try_predict`'s composite per row: *(value, confidence, model_version, error)*; NULL for NULL."""
    rows = [
        None
        if answer.error is None and answer.value is None
        else {
            "value": None if answer.value is None else str(answer.value),
            "confidence": answer.confidence,
            "model_version": version,
            "error": None if answer.error is None else f"{answer.error.code}: {answer.error.message}",
        }
        for answer, version in found
    ]
    return pa.array(rows, _TRY_ARROW)


def _numbers(datatype: str, *, lists: bool) -> VectorType:
    if datatype == "BOOL":
        single = VectorType("BOOLEAN", pa.bool_())
    elif datatype in _WHOLE:
        single = VectorType("BIGINT", pa.int64())
    else:
        single = VectorType("DOUBLE", pa.float64())
    return VectorType(single.sql + "[]", pa.list_(single.arrow)) if lists else single
