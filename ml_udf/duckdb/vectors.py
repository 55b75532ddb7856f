"""DuckDB's vectors, as Arrow arrays, to columns of Python values and back.

Types follow the wire's datatypes: BYTES is text (a blob where the function takes encoded images), numbers
are DOUBLE or BIGINT, rows of several numbers are lists of them. FP32 vectors of a known length are FLOAT[d],
which DuckDB's distances and its vector index take.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ml_udf.client.answer_type import AnswerKind, answer_kind
from ml_udf.client.column import Value
from ml_udf.client.contents import boxes_of, json_of_text, labels_of
from ml_udf.client.function_info import FunctionInfo
from ml_udf.client.statement import Outcome
from ml_udf.client.vectors import vector_text
from ml_udf.errors import WrongType

__all__ = [
    "BYTES",
    "NUMBER",
    "OF_TEXTS",
    "SCORED",
    "SCORES",
    "TEXT",
    "TEXTS",
    "WHOLE",
    "ArrowVector",
    "VectorType",
    "column_of",
    "detail_array",
    "fitting",
    "in_calendar",
    "input_vector",
    "output_vector",
    "try_array",
    "type_name",
]

ArrowVector: TypeAlias = Any  # pyarrow.ChunkedArray on the way in; pyarrow ships no types

_TRY_ARROW = pa.struct(
    [
        ("value", pa.string()),
        ("confidence", pa.float64()),
        ("model_version", pa.string()),
        ("error", pa.string()),
    ]
)
_DETAIL_ARROW = pa.struct(
    [
        *_TRY_ARROW,
        ("answered_by", pa.list_(pa.string())),
        ("expected_accuracy", pa.float64()),
        ("device_seconds", pa.float64()),
        ("prediction", pa.string()),
        ("decision", pa.string()),
        ("columns", pa.string()),
    ]
)
_JSON_ARROW = pa.json_(pa.string())
_BOX_ARROW = pa.struct([("label", pa.string()), ("score", pa.float64()), ("box", pa.list_(pa.float64()))])
_SCORED_ARROW = pa.struct([("label", pa.string()), ("score", pa.float64())])
_SQL_NAMES = {
    "int8": "TINYINT",
    "int16": "SMALLINT",
    "int32": "INTEGER",
    "int64": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "bool": "BOOLEAN",
    "string": "VARCHAR",
    "binary": "BLOB",
    "date32[day]": "DATE",
}
# The first and the last day, and microsecond, that Python has, from 1970 on.
_DAYS = tuple((day - date(1970, 1, 1)).days for day in (date.min, date.max))
_MICROSECONDS = tuple(
    (moment - datetime(1970, 1, 1)) // timedelta(microseconds=1) for moment in (datetime.min, datetime.max)
)
_WHOLE = {"UINT8", "UINT16", "UINT32", "INT8", "INT16", "INT32", "INT64"}


@dataclass(frozen=True, slots=True)
class VectorType:
    """A column's type, in SQL and in Arrow."""

    sql: str
    arrow: pa.DataType
    of_text: Callable[[str], Any] | None = None  # where the wire has it as a text that means more

    def fit(self, value: Any) -> Any:  # noqa: ANN401  # of the wire's types
        """An answer as `array` takes it. Raises `WrongType`."""
        return self.of_text(value) if self.of_text is not None and isinstance(value, str) else value

    def cast(self, text: str) -> str:
        """The SQL that makes a value of this type of `text`, an answer as `ml_udf.predict` gives it."""
        if self.sql == "VARCHAR":
            return text
        return f"CAST({f'CAST({text} AS JSON)' if self.of_text is not None else text} AS {self.sql})"

    def array(self, values: Sequence[Any]) -> pa.Array:
        """A freshly built array; DuckDB keeps no reference to what a function returned earlier."""
        if pa.types.is_string(self.arrow):
            if not set(map(type, values)) <= {str, type(None)}:
                values = [v if v is None else _as_text(v) for v in values]
        elif pa.types.is_fixed_size_list(self.arrow):
            return _vectors(values, self.arrow.list_size)
        elif _is_list(self.arrow):
            values = [list(v) if isinstance(v, array) else v for v in values]
        return pa.array(values, self.arrow)


TEXT = VectorType("VARCHAR", pa.string())
TEXTS = VectorType("VARCHAR[]", pa.list_(pa.string()))
NUMBER = VectorType("DOUBLE", pa.float64())
WHOLE = VectorType("BIGINT", pa.int64())
BYTES = VectorType("BLOB", pa.binary())
SCORES = VectorType("MAP(VARCHAR, DOUBLE)", pa.map_(pa.string(), pa.float64()))
SCORED = VectorType("STRUCT(label VARCHAR, score DOUBLE)[]", pa.list_(_SCORED_ARROW))


def _checked(text: str) -> str:
    json_of_text(text)
    return text


OF_TEXTS: Mapping[AnswerKind, VectorType] = {
    "labels": VectorType("VARCHAR[]", pa.list_(pa.string()), labels_of),
    "boxes": VectorType(
        "STRUCT(label VARCHAR, score DOUBLE, box DOUBLE[])[]", pa.list_(_BOX_ARROW), boxes_of
    ),
    "json": VectorType("JSON", _JSON_ARROW, _checked),
}


def input_vector(info: FunctionInfo) -> VectorType:
    """The type of the SQL function's argument."""
    if info.input_datatype == "BYTES":
        return BYTES if info.form == "image" else TEXT
    return _numbers(info.input_datatype, lists=math.prod(info.row_shape) != 1 or len(info.row_shape) > 1)


def output_vector(info: FunctionInfo) -> VectorType:
    """The type of the SQL function's result."""
    if info.output_datatype == "BYTES":
        return OF_TEXTS.get(answer_kind(info), TEXT)
    if info.output_datatype == "FP32" and info.output_width > 1:
        return VectorType(f"FLOAT[{info.output_width}]", pa.list_(pa.float32(), info.output_width))
    return _numbers(info.output_datatype, lists=info.output_width != 1)


def fitting(subject: str, vector: ArrowVector, wanted: VectorType, hint: str = "") -> ArrowVector:
    """The vector as one of `wanted`: as DuckDB would cast it by itself. Raises `WrongType`.

    hint  what to do where it does not fit, if a cast is not the way
    """
    if _fits(vector.type, wanted.arrow):
        return vector.cast(wanted.arrow)
    raise WrongType(
        f"{subject} takes {wanted.sql}, not {type_name(vector.type)}",
        hint=hint or f"cast it, as in x::{wanted.sql}",
    )


def type_name(arrow: pa.DataType) -> str:
    """About what DuckDB calls the type."""
    if pa.types.is_dictionary(arrow):
        return "ENUM"
    if _is_list(arrow):
        return type_name(arrow.value_type) + "[]"
    if pa.types.is_decimal(arrow):
        return f"DECIMAL({arrow.precision},{arrow.scale})"
    return _SQL_NAMES.get(str(arrow), str(arrow).upper())


def _fits(given: pa.DataType, wanted: pa.DataType) -> bool:
    is_ = pa.types
    text = given.value_type if is_.is_dictionary(given) else given
    found: bool
    if is_.is_null(given):
        found = True
    elif _is_list(wanted):
        found = _is_list(given) and _fits(given.value_type, wanted.value_type)
    elif is_.is_string(wanted):
        found = is_.is_string(text) or is_.is_large_string(text)
    elif is_.is_binary(wanted):
        found = is_.is_binary(given) or is_.is_large_binary(given)
    elif is_.is_boolean(wanted):
        found = is_.is_boolean(given)
    elif is_.is_integer(wanted):
        found = is_.is_integer(given)
    else:
        found = is_.is_integer(given) or is_.is_floating(given) or is_.is_decimal(given)
    return found


def _is_list(arrow: pa.DataType) -> bool:
    is_ = pa.types
    found: bool = is_.is_list(arrow) or is_.is_large_list(arrow) or is_.is_fixed_size_list(arrow)
    return found


def in_calendar(vector: ArrowVector) -> ArrowVector:
    """Dates and moments as Python has them, moments of a time zone in UTC; NULL where it has none: infinity,
    and what lies before the year 1 or after 9999, as in datasets. Others as they are.
    """
    is_ = pa.types
    if is_.is_date(vector.type):
        vector = vector.cast(pa.date32(), safe=False)
        (first, last), places = _DAYS, vector.cast(pa.int32())
    elif is_.is_timestamp(vector.type):
        vector = vector.cast(pa.timestamp("us", vector.type.tz and "UTC"), safe=False)
        (first, last), places = _MICROSECONDS, vector.cast(pa.int64())
    else:
        return vector
    is_inside = pc.and_(pc.greater_equal(places, first), pc.less_equal(places, last))
    return pc.if_else(is_inside, vector, None)


def column_of(vector: ArrowVector) -> list[Value]:
    """A vector's values; its length is 0 where a filter left nothing."""
    values: list[Value] = vector.to_pylist()
    return values


def try_array(found: Sequence[tuple[Outcome, str | None]]) -> pa.Array:
    """`try_predict`'s composite per row: *(value, confidence, model_version, error)*; NULL for NULL."""
    return pa.array([_tried(answer, version) for answer, version in found], _TRY_ARROW)


def detail_array(found: Sequence[tuple[Outcome, str | None]]) -> pa.Array:
    """The same with how each row was answered: *(…, answered_by, …)*, as `AnswerDetail` has it."""
    rows = []
    for answer, version in found:
        tried, told = _tried(answer, version), answer.detail
        if tried is not None and told is not None:
            tried["answered_by"] = list(told.answered_by)
            tried["expected_accuracy"] = told.expected_accuracy
            tried["device_seconds"] = told.device_seconds
            tried["prediction"] = told.prediction
            tried["decision"] = told.decision
            tried["columns"] = told.columns
        rows.append(tried)
    whole = pa.array(rows, _DETAIL_ARROW)
    fields = whole.flatten()
    fields[-1] = pa.ExtensionArray.from_storage(_JSON_ARROW, fields[-1])  # which no struct is built of
    names = [field.name for field in _DETAIL_ARROW]
    return pa.StructArray.from_arrays(fields, names, mask=whole.is_null())


def _tried(answer: Outcome, version: str | None) -> dict[str, Any] | None:
    if answer.error is None and answer.value is None:
        return None
    return {
        "value": None if answer.value is None else _as_text(answer.value),
        "confidence": answer.confidence,
        "model_version": version,
        "error": None if answer.error is None else f"{answer.error.code}: {answer.error.message}",
    }


def _as_text(value: Any) -> str:  # noqa: ANN401  # of the wire's types
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return vector_text(value) if isinstance(value, list | array) else str(value)


def _vectors(values: Sequence[Any], width: int) -> pa.Array:
    """float32 [n, width] of arrays of numbers, None where there is none."""
    nothing = array("f", bytes(4 * width))
    parts = [nothing if value is None else _float32(value) for value in values]
    if any(len(part) != width for part in parts):
        raise WrongType(f"the function answered a vector that has not {width} numbers, as it says of itself")
    numbers = pa.Array.from_buffers(pa.float32(), len(parts) * width, [None, pa.py_buffer(b"".join(parts))])
    mask = pa.array([value is None for value in values], pa.bool_())
    return pa.FixedSizeListArray.from_arrays(numbers, width, mask=mask)


def _float32(value: Sequence[float]) -> array[float]:
    return value if isinstance(value, array) and value.typecode == "f" else array("f", value)


def _numbers(datatype: str, *, lists: bool) -> VectorType:
    if datatype == "BOOL":
        single = VectorType("BOOLEAN", pa.bool_())
    elif datatype in _WHOLE:
        single = VectorType("BIGINT", pa.int64())
    else:
        single = VectorType("DOUBLE", pa.float64())
    return VectorType(single.sql + "[]", pa.list_(single.arrow)) if lists else single
