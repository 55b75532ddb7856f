"""Databases that the server may read datasets from, by the names that the operator gave them.

A query runs in one READ ONLY, REPEATABLE READ transaction behind a server-side cursor, so that memory does
not depend on the row count. DSNs are secrets: no message, log or attribute that leaves this module holds one.
Blocking.
"""

from __future__ import annotations

import contextlib
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql

from server.errors import BadOption
from server.training.dataset_spec import DatasetSpec

__all__ = ["Connections"]

_BATCH_ROWS = 5_000
_CONNECT_S = 10
_READ_TYPES: Mapping[str, pa.DataType] = {
    "int2": pa.int64(),
    "int4": pa.int64(),
    "int8": pa.int64(),
    "float4": pa.float64(),
    "float8": pa.float64(),
    "bool": pa.bool_(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
}

_CAUSES: Mapping[str, str] = {  # what libpq and PostgreSQL say → what may be repeated
    "password authentication failed": "the password is refused",
    "no password supplied": "it has no password, and the database asks for one",
    "pg_hba.conf": "the database lets nobody in from this host as this role",
    "Connection refused": "nothing answers at its address",
    "timeout expired": f"nothing answers at its address within {_CONNECT_S} s",
    "No such file or directory": "nothing answers at its address",
    "resolve": "its host is not known",
    "translate host name": "its host is not known",
    'database "': "there is no such database",
    'role "': "there is no such role, or it may not log in",
    'missing "="': "it is no connection string",
}


class Connections:
    """`file`: TOML, name = "postgresql://…" a line, read anew each time; None = there are none."""

    def __init__(self, file: Path | None, statement_timeout_s: float) -> None:
        self._file = file
        self._statement_timeout_ms = int(statement_timeout_s * 1000)

    @contextlib.contextmanager
    def batches(self, spec: DatasetSpec) -> Iterator[Iterator[pa.RecordBatch]]:
        """The rows of a dataset's query in the order of its key. Raises `BadOption` with the cause."""
        dsns = {} if self._file is None else _read(self._file)
        dsn = dsns.get(spec.source)
        if dsn is None:
            known = ", ".join(sorted(dsns)) or "none; the server's connections_file names them"
            raise BadOption(f"there is no connection {spec.source!r}; there are: {known}")
        try:
            connection = psycopg.connect(dsn, connect_timeout=_CONNECT_S, application_name="ml_udf datasets")
        except psycopg.Error as exc:
            raise BadOption(
                f"the connection {spec.source!r} cannot be opened: {_cause(exc)}; "
                "ask the operator to check it in the server's connections_file"
            ) from None
        try:
            connection.read_only = True
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.execute(
                sql.SQL("SET LOCAL statement_timeout = {}").format(sql.Literal(self._statement_timeout_ms))
            )
            with connection.cursor("ml_udf_dataset") as cursor:
                cursor.execute(_ordered(spec))
                yield _record_batches(cursor, exact=(spec.key, spec.target))
        except psycopg.Error as exc:
            primary = exc.diag.message_primary or str(exc).splitlines()[0]
            raise BadOption(f"dataset {spec.name}: the database refused the query: {primary}") from None
        finally:
            connection.close()


def _ordered(spec: DatasetSpec) -> sql.Composed:
    # The target too: equal keys must not come in another order the next time.
    query = sql.SQL(spec.query.strip().rstrip(";"))  # parsed, and run read-only
    return sql.SQL("SELECT * FROM (\n{}\n) AS dataset ORDER BY {}, {}").format(
        query, sql.Identifier(spec.key), sql.Identifier(spec.target)
    )


def _record_batches(cursor: psycopg.ServerCursor[Any], exact: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """exact: columns whose numbers of arbitrary precision stay texts; a model sees such numbers as floats."""
    while True:
        rows = cursor.fetchmany(_BATCH_ROWS)
        described = cursor.description or []
        names = [column.name for column in described]
        kinds = [_kind(column, exact) for column in described]
        columns: list[Sequence[Any]] = list(zip(*rows, strict=True)) if rows else [()] * len(names)
        yield pa.record_batch(
            [_column(values, kind) for values, kind in zip(columns, kinds, strict=True)], names=names
        )
        if len(rows) < _BATCH_ROWS:
            return


def _kind(column: psycopg.Column, exact: Sequence[str]) -> pa.DataType:
    if column.type_display.startswith("numeric") and column.name not in exact:
        return pa.float64()
    return _READ_TYPES.get(column.type_display, pa.string())


def _column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if kind == pa.float64():
        values = [None if value is None else float(value) for value in values]
    if kind == pa.string():
        values = [value if value is None or isinstance(value, str) else str(value) for value in values]
    return pa.array(values, kind)


def _cause(exc: psycopg.Error) -> str:
    """Why a connection failed, in our words.

    The driver's text repeats host and user, and may repeat the password that it could not parse.
    """
    told = str(exc)
    return next((cause for sign, cause in _CAUSES.items() if sign in told), type(exc).__name__)


def _read(file: Path) -> dict[str, str]:
    try:
        text = file.read_text(encoding="utf-8")
        parsed = tomllib.loads(text)
    except OSError as exc:
        raise BadOption(f"the connections file {file} cannot be read: {exc.strerror}") from None
    except (ValueError, tomllib.TOMLDecodeError):
        raise BadOption(f"the connections file {file} is not TOML of lines name = 'postgresql://…'") from None
    wrong = sorted(name for name, dsn in parsed.items() if not isinstance(dsn, str))
    if wrong:
        raise BadOption(f"the connections file {file}: {wrong[0]!r} must be a text, 'postgresql://…'")
    return parsed
