"""The columns of a table as a model gets to see them: kinds, and rows as JSON. Pure; knows Arrow.

A row is a JSON array, a value for each column in their order; null is a missing value, as is a number that is
not finite. Dates and times are texts of ISO 8601. `gpu_worker.networks.table` reads it, in training and in
serving.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa

from server.errors import BadOption

__all__ = ["Feature", "features_json", "features_of", "rows_of"]

_DATES, _MOMENTS = date(1970, 1, 1), datetime(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class Feature:
    """A column; kind: number, text, boolean, date, timestamp or timestamptz."""

    name: str
    kind: str


def features_of(batch: pa.RecordBatch, names: Sequence[str], dataset: str) -> tuple[Feature, ...]:
    """What the columns of a batch are. Raises `BadOption` for a type that models cannot see."""
    return tuple(Feature(name, _kind(batch.column(name).type, name, dataset)) for name in names)


def features_json(features: Sequence[Feature]) -> str:
    """Name and kind of each, as text."""
    return json.dumps([asdict(feature) for feature in features], ensure_ascii=False)


def rows_of(batch: pa.RecordBatch, features: Sequence[Feature]) -> pa.Array:
    """Each row's JSON."""
    columns = [_values(batch.column(feature.name), feature.kind) for feature in features]
    rows = zip(*columns, strict=True)
    return pa.array([json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows], pa.string())


def _kind(kind: pa.DataType, name: str, dataset: str) -> str:
    types = pa.types
    if types.is_dictionary(kind):
        kind = kind.value_type
    if types.is_boolean(kind):
        return "boolean"
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) or types.is_null(kind):
        return "number"
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return "text"
    if types.is_date(kind):
        return "date"
    if types.is_timestamp(kind):
        return "timestamp" if kind.tz is None else "timestamptz"
    raise BadOption(
        f"dataset {dataset}: {name!r} is of type {kind}, which no model of tables can see; make it a number "
        "(of a time of day or an interval, its epoch), a text, a boolean or a timestamp, or leave it out"
    )


def _values(values: pa.Array, kind: str) -> list[Any]:
    if kind == "date":
        days = values.cast(pa.date32(), safe=False).cast(pa.int32()).to_pylist()
        return [None if day is None else _iso_8601(_DATES, days=day) for day in days]
    if kind in ("timestamp", "timestamptz"):
        origin = _MOMENTS.replace(tzinfo=UTC) if kind == "timestamptz" else _MOMENTS
        moments = values.cast(pa.timestamp("us", values.type.tz), safe=False).cast(pa.int64()).to_pylist()
        return [None if moment is None else _iso_8601(origin, microseconds=moment) for moment in moments]
    found: list[Any] = values.to_pylist()
    if kind != "number":
        return found
    return [None if value is None or not math.isfinite(value) else float(value) for value in found]


def _iso_8601(origin: date, **after: int) -> str | None:
    """None for what stands before the first year or after the last, infinity among them."""
    try:
        return (origin + timedelta(**after)).isoformat()
    except OverflowError:
        return None
