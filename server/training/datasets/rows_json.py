"""Rows of a dataset as JSON, from clients that have no Arrow: a database session. Pure.

{"columns": [{"name": "id", "type": "int64", "values": [1, 2, null]}, …]}, all of one length. Types are int64,
float64, bool, string, date32 (days since 1970), timestamp and timestamptz (microseconds since 1970).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from server.errors import BadOption

__all__ = ["record_batch"]

_TYPES: Mapping[str, pa.DataType] = {
    "int64": pa.int64(),
    "float64": pa.float64(),
    "bool": pa.bool_(),
    "string": pa.string(),
    "date32": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
}
_BY_NUMBER = {"date32": pa.int32(), "timestamp": pa.int64(), "timestamptz": pa.int64()}
# A lone surrogate, which JSON can name.
_HALF = "half a character, which no text in UTF-8 has"
_JSON: Mapping[str, tuple[type, ...]] = {"float64": (float, int), "bool": (bool,), "string": (str,)}


def record_batch(body: bytes) -> pa.RecordBatch:
    """The rows of one part. Raises `BadOption`, without any value of them."""
    try:
        columns = json.loads(body)["columns"]
        named = [(column["name"], column["type"], column["values"]) for column in columns]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise BadOption(
            'the rows are not JSON of the form {"columns": [{"name", "type", "values"}]}'
        ) from None
    lists = all(isinstance(values, list) for _, _, values in named)
    if not lists or len({len(values) for _, _, values in named}) != 1:
        raise BadOption("the columns of the rows are not lists of one length")
    names = [_name(name) for name, _, _ in named]
    return pa.record_batch([_array(*column) for column in named], names=names)


def _name(name: Any) -> str:  # noqa: ANN401  # from outside
    if not isinstance(name, str):
        raise BadOption("a column's name is not a text")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise BadOption(f"the column's name {name!r} holds {_HALF}") from None
    return name


def _array(name: Any, kind: Any, values: list[Any]) -> pa.Array:  # noqa: ANN401  # from outside
    if not isinstance(kind, str) or kind not in _TYPES:
        raise BadOption(f"column {name!r} is of no type that rows have; there are {', '.join(_TYPES)}")
    wanted = _JSON.get(kind, (int,))
    if not all(value is None or type(value) in wanted for value in values):
        raise BadOption(f"column {name!r} holds values that are no {kind}")
    try:
        return pa.array(values, _BY_NUMBER.get(kind, _TYPES[kind])).cast(_TYPES[kind])
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        raise BadOption(f"column {name!r} holds values that are no {kind}") from None
    except UnicodeEncodeError:
        raise BadOption(f"column {name!r} holds texts with {_HALF}") from None
