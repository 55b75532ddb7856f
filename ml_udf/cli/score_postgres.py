"""Scoring from outside over a connection to PostgreSQL: no extension needed, the server is asked from here.

Every statement is a transaction of its own, and only the write of a page changes anything.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
from psycopg.abc import Buffer
from psycopg.adapt import Dumper
from psycopg.pq import Format
from psycopg.rows import dict_row

from ml_udf.client import Client
from ml_udf.client.bulk_job import BulkJob
from ml_udf.client.statement import Binding
from ml_udf.config import Options
from ml_udf.postgres.binary import flat_reals
from ml_udf.scoring import Asking, ScoreProgress, ScoreRequest, score
from ml_udf.scoring.binding import bound
from ml_udf.scoring.postgres_catalog import TEXT_SETTINGS, Parameter, PostgresCatalog, Reals
from ml_udf.scoring.postgres_store import PostgresStore
from ml_udf.scoring.resolving import resolved

__all__ = ["KEEPALIVES", "Connection", "lost_connection", "score_postgres"]

_NAME = "ml-udf score"
# A server that vanishes without a word is found out, and the run's lock released, within about half a minute.
KEEPALIVES = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}


def score_postgres(
    dsn: str,
    client: Client,
    request: ScoreRequest,
    options: Options,
    on_progress: Callable[[ScoreProgress], None],
) -> ScoreProgress:
    """Score a table of the database `dsn`. Raises as `score`, and `psycopg.Error`."""
    connected: dict[str, Any] = {"application_name": _NAME, **KEEPALIVES}
    with psycopg.connect(dsn, autocommit=True, **connected) as connection:
        for name, value in TEXT_SETTINGS.items():
            connection.execute(f"SET {name} = '{value}'")
        sql = Connection(connection)
        catalog = PostgresCatalog(sql)
        catalog.check_writable()
        info = client.look_up(request.function, version=request.version)
        layout = resolved(catalog, request, info)
        store = PostgresStore(sql, layout, info.version)
        store.check_values(info)
        binding = bound(Binding(request.function), info, layout.input.kind)
        job = BulkJob.begun("table", layout.title)
        asking = Asking(
            client,
            binding,
            info.version,
            options,
            patience_s=request.patience_s,
            job=job,
            column=layout.value_type,
        )
        store.lock()  # released with the connection

        def show(so_far: ScoreProgress) -> None:
            on_progress(so_far)  # first: the connection may be gone, what it stored is not
            share = 100 * so_far.stored // max(1, so_far.due)
            text = f"{_NAME} {share}% {so_far.stored}/{so_far.due} {layout.title}"
            sql.rows("SELECT pg_catalog.set_config('application_name', $1::text, false)", text)

        return score(store, asking, layout, request, on_progress=show)


def lost_connection(error: Exception) -> bool:
    """Whether an error says that the connection is gone, or cannot be had yet; a cancel, say, does not."""
    return (getattr(error, "sqlstate", None) or "08").startswith(("08", "57P"))


class _FlatReals(bytes):
    """A real[] in PostgreSQL's binary format."""


class _FlatRealsDumper(Dumper):
    """Sends it as it is."""

    format = Format.BINARY
    oid = psycopg.adapters.types["float4"].array_oid

    def dump(self, obj: _FlatReals) -> Buffer:
        """The very bytes."""
        return obj


class Connection:
    """`ml_udf.scoring.postgres_catalog.Sql` over psycopg."""

    Error: type[Exception] = psycopg.Error

    def __init__(self, connection: psycopg.Connection) -> None:
        connection.adapters.register_dumper(_FlatReals, _FlatRealsDumper)
        self._connection = connection
        self._cursor = psycopg.RawCursor(connection, row_factory=dict_row)

    def rows(self, query: str, *parameters: Parameter) -> list[dict[str, Any]]:
        """The rows of a query."""
        return self._executed(query, parameters).fetchall()

    def change(self, query: str, *parameters: Parameter) -> int:
        """How many rows a statement changed."""
        return self._executed(query, parameters).rowcount

    def reals(self, vectors: Sequence[array[float]]) -> Reals:
        """One array of all numbers, of which each vector is a slice."""
        width = len(vectors[0])
        one = f"({{parameter}}::real[])[{{at}} * {width} + 1 : ({{at}} + 1) * {width}]"
        return Reals(_FlatReals(flat_reals(vectors)), one)

    def commit(self) -> None:
        """End the transaction, keeping it; with autocommit every statement was one."""
        self._connection.commit()

    def rollback(self) -> None:
        """End the transaction, forgetting it."""
        self._connection.rollback()

    def _executed(self, query: str, parameters: Sequence[Parameter]) -> psycopg.RawCursor[dict[str, Any]]:
        return self._cursor.execute(query, parameters, prepare=True)
