"""The error behind DuckDB's last one: as it was, not as DuckDB was given its text."""

from __future__ import annotations

import duckdb

from ml_udf.client import Client
from ml_udf.config import Options
from ml_udf.duckdb.calls import Calls
from ml_udf.duckdb.faults import spelled_out
from ml_udf.errors import BadOption


def test_an_error_that_passes_two_calls_is_kept_as_it_was() -> None:
    calls = Calls(duckdb.connect(), Client("http://127.0.0.1:9"), Options())
    error = BadOption("what", hint="do so")
    calls.note(error)
    calls.note(spelled_out(error, "udf_costs"))
    assert calls.last_error is error
