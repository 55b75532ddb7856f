"""Rows that a database session sends as JSON: what they become, and what is refused."""

from __future__ import annotations

import json
import math

import pyarrow as pa
import pytest

from server.errors import BadOption
from server.training.datasets.rows_json import record_batch

pytestmark = pytest.mark.security


def part(*columns: object) -> bytes:
    return json.dumps({"columns": columns}).encode()


def column(kind: str, *values: object, name: str = "c") -> dict[str, object]:
    return {"name": name, "type": kind, "values": values}


@pytest.mark.parametrize(
    ("kind", "values", "type_"),
    [
        ("int64", [1, None, -(2**63)], pa.int64()),
        ("float64", [0.1, None, math.inf, 3], pa.float64()),
        ("bool", [True, None, False], pa.bool_()),
        ("string", ["a", None, "ü"], pa.string()),
        ("date32", [0, None, 20_000], pa.date32()),
        ("timestamp", [0, None, 1], pa.timestamp("us")),
        ("timestamptz", [0, None, 1], pa.timestamp("us", "UTC")),
    ],
)
def test_each_type_becomes_its_column(kind: str, values: list[object], type_: pa.DataType) -> None:
    batch = record_batch(part(column(kind, *values)))
    assert (batch.num_rows, batch.schema.field("c").type, batch.column(0).null_count) == (
        len(values),
        type_,
        1,
    )


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b"{}",
        b'{"columns": 7}',
        b'{"columns": [7]}',
        b"\xff\xfe",
        b"[" * 100_000,
        part(),
        part(column("int64", 1), column("int64", 1, 2, name="d")),
        part({"name": "c", "type": "int64", "values": {"a": 1}}),
        part({"name": "c", "type": "int64", "values": 7}),
        part({"name": 7, "type": "int64", "values": []}),
        part({"name": "c", "type": ["int64"], "values": []}),
        part(column("uuid", "x")),
        part(column("int64", "SECRET")),
        part(column("int64", 2**63)),
        part(column("int64", 1.5)),
        part(column("bool", "SECRET")),
        part(column("string", {"SECRET": 1})),
        part(column("string", 7)),
        part(column("date32", 2**40)),
        part(column("float64", ["SECRET"])),
        part(column("string", "SECRET \ud83d")),
        part(column("int64", 1, name="\ud83d")),
    ],
)
def test_what_are_no_rows_is_refused_and_no_value_is_told(body: bytes) -> None:
    with pytest.raises(BadOption) as caught:
        record_batch(body)
    assert "SECRET" not in caught.value.message
