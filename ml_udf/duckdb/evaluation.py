"""Evaluation from DuckDB's SQL, as table macros: `ml_udf.evaluate`, `confusion_matrix`, `importance`.

A statement that runs keeps its connection busy, so a query runs by a second one to the same database: it
sees what is committed, and no temporary tables.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import duckdb
import pyarrow as pa

from ml_udf.client import Client
from ml_udf.client.column import Value
from ml_udf.client.function_info import FunctionInfo
from ml_udf.client.statement import Binding
from ml_udf.duckdb.calls import Calls
from ml_udf.duckdb.faults import spelled_out
from ml_udf.duckdb.queries import checked_query
from ml_udf.duckdb.scalar import parted
from ml_udf.duckdb.surface import CATALOG, STATEMENT_ARGUMENT
from ml_udf.duckdb.vectors import TEXT, ArrowVector, in_calendar
from ml_udf.errors import BadOption, MlUdfError
from ml_udf.evaluation import COLUMNS, LabelledRow, result_rows
from ml_udf.quoting import literal, quoted
from ml_udf.training import TrainingCalls

__all__ = ["EvaluationFunctions", "evaluation_statements"]

_PAGE_ROWS = 4096
_EXACT = 2**53  # up to here each whole number is a float

# verb → (parameter, its default; None = required)
_OF_ROWS = (("function", None), ("data", None), ("target", "NULL"))
_MACROS: Mapping[str, tuple[tuple[str, str | None], ...]] = {
    "evaluate": (*_OF_ROWS, ("input", "NULL")),
    "confusion_matrix": (*_OF_ROWS, ("input", "NULL")),
    "importance": (*_OF_ROWS, ("repeats", "5"), ("seed", "0")),
    "learning_curve": (("job", None),),
}


def evaluation_statements(scalar: str) -> list[str]:
    """The statements that put the table macros over `scalar(verb, arguments, path)` into the catalog."""
    statements = []
    for name, parameters in _MACROS.items():
        head = ", ".join(p if default is None else f"{p} := {default}" for p, default in parameters)
        pairs = ", ".join(f"'{parameter}', {parameter}" for parameter, _ in parameters)
        call = f"{quoted(scalar)}('{name}', json_object({pairs})::VARCHAR, current_setting('search_path'), "
        call += f"{STATEMENT_ARGUMENT})"
        shape = "[{" + ", ".join(f'"{column}": "{kind}"' for column, kind in COLUMNS[name].items()) + "}]"
        statements.append(
            f"CREATE OR REPLACE MACRO {CATALOG}.{name}({head}) AS TABLE "
            f"SELECT unnest(from_json({call}, '{shape}'), max_depth := 2)"
        )
    return statements


class EvaluationFunctions:
    """The scalar behind the macros."""

    def __init__(self, con: duckdb.DuckDBPyConnection, client: Client, calls: Calls) -> None:
        self._con = con
        self._client = client
        self._calls = calls

    def call(self, *vectors: ArrowVector) -> pa.Array:
        """One JSON text for each row of (verb, arguments, search path): the rows of the verb's result."""
        columns, statement = parted(vectors)
        asked = zip(*(column.to_pylist() for column in columns), strict=True)
        return TEXT.array(
            [self._told(verb, json.loads(text), path, statement or "") for verb, text, path in asked]
        )

    def _told(self, verb: str, given: dict[str, Any], path: str, statement: str) -> str:
        try:
            with self._calls.interrupts.call() as check:
                found = result_rows(
                    verb,
                    given,
                    TrainingCalls(self._client, check),
                    lambda function: _Asker(self._client, self._calls, function, statement),
                    lambda query: self._pages(query, path, given.get("target")),
                )
            return json.dumps(found)
        except MlUdfError as error:
            self._calls.note(error)
            raise spelled_out(error, verb) from error

    def _pages(self, query: str, path: str, target: str | None) -> Iterator[Sequence[LabelledRow]]:
        with self._con.cursor() as cursor:
            try:
                checked_query(cursor, query)
                if path:
                    cursor.execute(f"SET search_path = {literal(path)}")
                for batch in cursor.sql(query).to_arrow_reader(_PAGE_ROWS):
                    rows = _rows_of(batch, target)
                    yield [{name: _shown(value) for name, value in row.items()} for row in rows]
            except duckdb.Error as error:
                raise BadOption(
                    f"DuckDB refused the query: {error}",
                    hint="it runs beside your statement: no temporary tables, nothing uncommitted",
                ) from error


def _rows_of(batch: pa.RecordBatch, target: str | None) -> list[dict[str, Any]]:
    """The rows, with targets and moments as datasets have them.

    A target of type FLOAT is the number of its own text, 0.1 of 0.1; a date or a time is Arrow's text.
    """
    columns = {
        name: (_class_target(column) if name == target else in_calendar(column)).to_pylist()
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    }
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _class_target(column: ArrowVector) -> ArrowVector:
    is_ = pa.types
    if is_.is_float32(column.type):
        return column.cast(pa.string()).cast(pa.float64())
    if is_.is_date(column.type) or is_.is_timestamp(column.type) or is_.is_time(column.type):
        return column.cast(pa.string())
    return column


def _shown(value: object) -> object:
    """A whole number of type DOUBLE has no point, as in datasets: 1.0 is the class 1."""
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        return int(value)
    return value


class _Asker:
    """See `ml_udf.evaluation.Asker`."""

    def __init__(self, client: Client, calls: Calls, function: str, statement: str) -> None:
        self._client = client
        self._calls = calls
        self._function = function
        self._statement = statement
        self._info: FunctionInfo | None = None

    def info(self) -> FunctionInfo:
        if self._info is None:
            self._info = self._client.look_up(self._function)
        return self._info

    def values(self, inputs: Sequence[Value]) -> list[Any]:
        return self._calls.values(Binding(self._function), self._statement, inputs)

    def probabilities(self, inputs: Sequence[Value]) -> list[Any]:
        return self._calls.scores(
            self._function, self._statement, inputs, lambda scores, _: [*scores.values()]
        )
