"""The rows of a table, as DuckDB's functions send them."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

import pyarrow as pa

from ml_udf.client.statement import Binding
from ml_udf.duckdb.calls import Calls
from ml_udf.duckdb.scalar import Scalar
from tests.unit.ml_udf.infos import info_of


class Sent:
    """Stands for `Calls`: keeps what is asked, and has no answer."""

    def __init__(self) -> None:
        self.rows: list[str] = []

    def values(self, _binding: object, _statement: object, values: list[str], _fit: object) -> list[Any]:
        self.rows = values
        return [None] * len(values)


def test_rows_are_written_as_json_dumps_writes_them() -> None:
    moments = [datetime(2026, 2, 28, 23, 59, 59, 5), None, datetime(1, 1, 1), datetime(9999, 12, 31, 1)]
    numbers = [0.1, -0.0, None, float("nan")]
    more = [1e300, float("-inf"), 5e-324, 3.0]
    texts = ['a"b\\', "é\n\u2028", None, "\x00"]
    flags = [True, None, False, True]
    columns = [
        ("n", "number", pa.array(numbers), numbers),
        ("m", "number", pa.array(more), more),
        ("w", "number", pa.array([1, None, -3, 2**53], pa.int64()), [1.0, None, -3.0, 2.0**53]),
        ("t", "text", pa.array(texts), texts),
        ("f", "boolean", pa.array(flags), flags),
        ("d", "date", pa.array(moments).cast(pa.date32(), safe=False), [m and m.date() for m in moments]),
        ("s", "timestamp", pa.array(moments), moments),
        (
            "z",
            "timestamptz",
            pa.array(moments).cast(pa.timestamp("us", "UTC")),
            [m and m.replace(tzinfo=UTC) for m in moments],
        ),
    ]
    sent = Sent()
    info = replace(info_of(), columns=tuple((name, kind) for name, kind, _, _ in columns))
    scalar = Scalar("udf_f", cast(Binding, None), info, cast(Calls, sent))
    scalar.answers([values for _, _, values, _ in columns])
    wanted = [
        json.dumps(row, ensure_ascii=False, default=lambda moment: moment.isoformat())
        for row in zip(*(told for _, _, _, told in columns), strict=True)
    ]
    assert sent.rows == wanted
