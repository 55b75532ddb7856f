"""Scoring on PostgreSQL: the run's lock, pages and answers.

One store for two ways in: from inside a procedure (`ml_udf.postgres.scoring`) and from outside over a
connection (`ml_udf.cli.score_postgres`). Everything runs with the rights, the row security and the
search_path of the one who asks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from ml_udf.client.function_info import FunctionInfo
from ml_udf.client.statement import Outcome
from ml_udf.errors import AlreadyRunning
from ml_udf.scoring.layout import Layout
from ml_udf.scoring.pages import Key, Page
from ml_udf.scoring.postgres_catalog import Parameter, Sql
from ml_udf.scoring.queries import Queries
from ml_udf.scoring.resolving import unfit
from ml_udf.scoring.texts import array_literal, columns_of, float_width, sample_texts, text_of

__all__ = ["PostgresStore", "writing"]

MAX_WRITES = 5  # of one page, where another transaction is in the way
_IN_THE_WAY = {"40001", "40P01"}  # serialization_failure, deadlock_detected
_LOCK = "SELECT pg_catalog.pg_try_advisory_lock(pg_catalog.hashtextextended($1::text, 0)) AS mine"
_UNLOCK = "SELECT pg_catalog.pg_advisory_unlock(pg_catalog.hashtextextended($1::text, 0))"
_HOLDER = """
    SELECT l.pid, a.application_name AS name
    FROM pg_catalog.pg_locks l LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
    WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
      AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())
      AND (l.classid::bigint << 32) | l.objid::bigint = pg_catalog.hashtextextended($1::text, 0)"""


class PostgresStore:
    """One run's tables. Between its calls no transaction is open; the run's lock is the session's."""

    gathers = False  # rows are locked no longer than a page takes

    def __init__(self, sql: Sql, layout: Layout, version: str) -> None:
        self._sql = sql
        self._layout = layout
        self._queries = Queries(layout, version)
        self._lock = f"ml_udf.score_table {layout.target} {layout.places['value']}"

    def lock(self) -> None:
        """Be the only run into this place. Raises `AlreadyRunning`."""
        (found,) = self._sql.rows(_LOCK, self._lock)
        if not found["mine"]:
            holder = next(iter(self._sql.rows(_HOLDER, self._lock)), {"pid": "?", "name": ""})
            raise AlreadyRunning(
                f"another run scores into {self._layout.title}: process {holder['pid']}",
                detail=holder["name"] or "",
                hint="wait for it, or end it"
                + (
                    f": SELECT pg_cancel_backend({holder['pid']})"
                    if (holder["name"] or "").startswith("ml_udf.score_table")
                    else ", where its command runs"
                ),
            )

    def unlock(self) -> None:
        """Let others run."""
        try:
            self._sql.rows(_UNLOCK, self._lock)
        except BaseException:
            # A cancel that comes just now ends this and no more; the lock would stay as long as the session.
            with suppress(Exception):
                self._sql.rows(_UNLOCK, self._lock)
            raise

    def due_rows(self, row_limit: int | None) -> int:
        """How many rows are due, counted up to `row_limit`."""
        (found,) = self._sql.rows(self._queries.count(row_limit))
        self._sql.commit()
        return int(found["n"])

    def page(self, after: Key | None, rows: int) -> Page:
        """The next rows that are due, behind the key `after`. Raises `NoKey`."""
        found = self._sql.rows(self._queries.page(after, rows), *(after or ()))
        self._sql.commit()  # nothing is held while the server works
        keys = [f"k{at}" for at in range(len(self._layout.key))]
        return Page(
            [tuple(row[key] for key in keys) for row in found],
            [row["h"] for row in found],
            [row["v"] for row in found],
        )

    def write(self, page: Page, answers: Sequence[Outcome], version: str) -> int:
        """Store answers in one transaction, tried again where another one was in the way."""
        statement, parameters = writing(
            self._sql, self._layout, page, answers, lambda vector: self._queries.write(vector=vector)
        )
        for last in [False] * (MAX_WRITES - 1) + [True]:
            try:
                stored = self._sql.change(statement, *parameters)
                self._sql.commit()
            except self._sql.Error as error:
                state = getattr(error, "sqlstate", None) or ""
                if state.startswith("22"):
                    raise unfit(self._layout, error) from error
                if last or state not in _IN_THE_WAY:
                    raise
                self._sql.rollback()
            else:
                return stored
        raise AssertionError("the last try returns or raises")

    def stop_writing(self) -> None:
        """Nothing is written by another thread."""

    def check_values(self, info: FunctionInfo) -> None:
        """See that answers fit into their column. Raises `WrongType`."""
        kind = self._layout.value_type
        samples = array_literal(sample_texts(info, kind, "{}"))
        try:
            self._sql.rows(f"SELECT count(v::{kind}) FROM unnest($1::text[]) AS v", samples)
        except self._sql.Error as error:
            if not (getattr(error, "sqlstate", None) or "").startswith(("22", "42")):
                raise
            raise unfit(self._layout, error) from error


def writing(
    sql: Sql,
    layout: Layout,
    page: Page,
    answers: Sequence[Outcome],
    statement: Callable[[str | None], str],
) -> tuple[str, Sequence[Parameter]]:
    """The statement that stores answers, and its parameters: vectors as numbers where `sql` takes such.

    statement: by the SQL of a vector, or None, as `Queries.write`
    """
    kind = layout.value_type
    vectors = [answer.value for answer in answers if answer.value is not None]
    reals = sql.reals(vectors) if float_width(vectors, kind) else None
    if reals is None:
        texts = [text_of(answer.value, kind) for answer in answers]
        return statement(None), columns_of(page, answers, texts)
    numbers = map(str, range(len(vectors)))
    told = [None if answer.value is None else next(numbers) for answer in answers]
    return statement(reals.one), [*columns_of(page, answers, told), reals.parameter]
