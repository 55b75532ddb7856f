"""Scoring a table of a DuckDB database: `score_table(con, …)`, and `ml-udf score` behind it.

One process alone may write to a DuckDB file, so another run into it is DuckDB's own refusal; runs on several
cursors of one process meet in DuckDB's conflicts, which are tried again. A page is cut from a larger segment,
and a segment from a range of keys: of all that may be among the next rows DuckDB reads and hashes every one,
and where a range ends the keys alone tell.
"""

from __future__ import annotations

import contextlib
import re
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import duckdb
import pyarrow as pa

from ml_udf.client import Client
from ml_udf.client.answer_type import AnswerKind
from ml_udf.client.bulk_job import BulkJob
from ml_udf.client.claim import Claim
from ml_udf.client.function_info import FunctionInfo
from ml_udf.client.statement import Binding, Outcome
from ml_udf.config import Options
from ml_udf.duckdb.interrupts import interruptible_by_ctrl_c
from ml_udf.duckdb.vectors import OF_TEXTS, VectorType
from ml_udf.errors import UnknownTable, WrongType
from ml_udf.name_list import names_of
from ml_udf.quoting import literal, qualified
from ml_udf.scoring import Asking, ColumnDef, Layout, Page, ScoreProgress, ScoreRequest, score
from ml_udf.scoring.binding import bound
from ml_udf.scoring.layout import Source
from ml_udf.scoring.names import split_name
from ml_udf.scoring.pages import Key, next_rows
from ml_udf.scoring.queries import Queries
from ml_udf.scoring.request import rescore_of
from ml_udf.scoring.resolving import resolved, unfit
from ml_udf.scoring.texts import sample_texts, text_of

__all__ = ["score_connection", "score_table"]

_FLOATS = re.compile(r"FLOAT\[(\d+)\]")
_ORDERED = re.compile(  # types that have one order, whatever the column
    r"(U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|DECIMAL\(.*\)|FLOAT|DOUBLE|UUID|DATE|TIMESTAMP.*)"
)
_PATH_PART = re.compile(r'(?:"((?:[^"]|"")+)"|([^",.]+))(?:[.,]|\Z)')
_ANSWERS = "ml_udf_answers"  # of this cursor alone
# Constraints that the answers violate, whoever else writes.
_OF_THE_ANSWERS = re.compile(r"(CHECK|NOT NULL) constraint failed")
SEGMENT_PAGES = 64
RANGE_ROWS = 1 << 16  # at first, due or not; then as many as hold a segment's
MAX_RANGE_ROWS = 1 << 22
STATEMENT_BYTES = 32 << 20  # of vectors, which are copied for it
CONFLICT_PATIENCE_S = 20.0  # with other cursors, each of which may write for seconds
CONFLICT_PAUSE_S = 0.01
MAX_CONFLICT_PAUSE_S = 0.2

_RELATIONS = """
    SELECT database_name, schema_name, table_name AS name, 'table' AS kind FROM duckdb_tables()
    WHERE lower(table_name) = lower($1)
    UNION ALL
    SELECT database_name, schema_name, view_name, 'view' FROM duckdb_views()
    WHERE lower(view_name) = lower($1) AND NOT internal"""

_TEMPORARY = """
    SELECT 'table' FROM duckdb_tables() WHERE temporary AND lower(table_name) = lower($1)
    UNION ALL
    SELECT 'view' FROM duckdb_views() WHERE temporary AND lower(view_name) = lower($1)"""

_KEYS = """
    SELECT constraint_type = 'PRIMARY KEY', constraint_column_names FROM duckdb_constraints()
    WHERE database_name = $1 AND schema_name = $2 AND table_name = $3
      AND constraint_type IN ('PRIMARY KEY', 'UNIQUE')"""


def score_table(
    con: duckdb.DuckDBPyConnection,
    endpoint: str,
    relation: str,
    function: str,
    input: str,  # as the SQL procedure names it
    *,
    token: str | None = None,
    allow_plain: bool = False,
    sslrootcert: str | None = None,
    sslcert: str | None = None,
    sslkey: str | None = None,
    user: str = "",
    options: Options | None = None,
    rescore: str | None = None,
    on_progress: Callable[[ScoreProgress], None] = lambda _: None,
    **how: Any,  # noqa: ANN401  # the other fields of `ScoreRequest`
) -> ScoreProgress:
    """Store a function's answers for all rows of a table that have none yet; called again, it goes on.

    `how` are the fields of `ml_udf.scoring.ScoreRequest`: `output` or `result_table`, `key`, `condition`,
    `row_limit`, `batch_rows`, `on_error`, `version`, `patience_s`; the others are those of
    `register`. Raises `BadOption`, and as `score`.
    """
    how["key"] = tuple(names_of(how.get("key"), "key"))
    request = ScoreRequest(relation, function, input, rescore=rescore_of(rescore), **how)
    made = Client(
        endpoint,
        token=token,
        allow_plain=allow_plain,
        sslrootcert=sslrootcert,
        sslcert=sslcert,
        sslkey=sslkey,
        claim=Claim(user),
    )
    with contextlib.closing(made) as client:
        return score_connection(con, client, request, options or Options(), on_progress=on_progress)


def score_connection(
    con: duckdb.DuckDBPyConnection,
    client: Client,
    request: ScoreRequest,
    options: Options,
    *,
    on_progress: Callable[[ScoreProgress], None] = lambda _: None,
) -> ScoreProgress:
    """`score_table` with what it makes. By cursors of its own: `con` may be in a transaction."""
    for name in filter(None, (request.relation, request.result_table)):
        _check_lasting(con, name)
    ((path,),) = con.execute("SELECT current_setting('search_path')").fetchall()
    with con.cursor() as cursor, con.cursor() as writer, interruptible_by_ctrl_c(cursor):
        if path:  # a cursor begins where the database does, not where USE has led `con`
            cursor.execute(f"SET search_path = {literal(path)}")
        info = client.look_up(request.function, version=request.version)
        layout = resolved(DuckDbCatalog(cursor), request, info)
        store = _DuckDbStore(cursor, writer, layout, info.version)
        store.check_values(info)
        binding = bound(Binding(request.function), info, layout.input.kind)
        job = BulkJob.begun("table", layout.title)
        asking = Asking(client, binding, info.version, options, patience_s=request.patience_s, job=job)
        return score(store, asking, layout, request, on_progress=on_progress)


def _check_lasting(con: duckdb.DuckDBPyConnection, name: str) -> None:
    """Raises `UnknownTable` where `con` means a temporary table or view, which no other cursor sees."""
    *place, table = split_name(name)
    if place and place[0].lower() != "temp":
        return
    found = con.execute(_TEMPORARY, [table]).fetchone()
    if found is not None:
        raise UnknownTable(
            f"{name!r} is a temporary {found[0]}, which the cursors that score do not see",
            hint=f"score one that is kept: CREATE TABLE … AS FROM {name}",
        )


class _DuckDbStore:
    """One run's tables; every statement is its own transaction.

    cursor reads, writer writes: each by one thread at a time.
    """

    gathers = True  # a transaction looks through the table, and a file's last part may be written anew

    def __init__(
        self,
        cursor: duckdb.DuckDBPyConnection,
        writer: duckdb.DuckDBPyConnection,
        layout: Layout,
        version: str,
    ) -> None:
        self._cursor = cursor
        self._writer = writer
        self._layout = layout
        self._queries = Queries(layout, version)
        floats = _FLOATS.fullmatch(layout.value_type)
        self._width = None if floats is None else int(floats[1])  # of vectors
        self._is_reached = layout.beside and _ORDERED.fullmatch(layout.key[0].type) is not None
        self._segment = Page()
        self._cut = 0  # so many of its rows are pages already
        self._segment_rows = 0
        self._range_rows = RANGE_ROWS

    def due_rows(self, row_limit: int | None) -> int:
        """How many rows are due, counted up to `row_limit`."""
        ((found,),) = self._cursor.execute(self._queries.count(row_limit)).fetchall()
        return int(found)

    def page(self, after: Key | None, rows: int) -> Page:
        """The next rows that are due, behind the key `after`."""
        if after is None:
            self._segment, self._cut = Page(), 0
        if self._cut >= len(self._segment):
            self._segment = Page()  # not beside the next
            wanted = SEGMENT_PAGES * rows
            wanted = min(wanted, self._segment_rows or rows)
            read = self._read_ranges if self._layout.of_table else self._read
            self._segment = read(after, wanted)
            self._segment_rows = next_rows(self._segment, SEGMENT_PAGES * rows) if self._segment else 0
            self._cut = 0
        page = self._segment.part(self._cut, self._cut + rows)
        self._cut += rows
        return page

    def _read_ranges(self, after: Key | None, rows: int) -> Page:
        """The due rows, at most so many, of the next range of keys in which there are any."""
        while True:
            query = self._queries.end(after, max(rows, self._range_rows))
            end = self._cursor.execute(query, list(after or ())).fetchone()
            if end is None:
                return Page()
            found = self._read(after, rows, tuple(end))
            if len(found) == rows:
                self._range_rows //= 2
            elif 2 * len(found) < rows:
                self._range_rows = min(4 * self._range_rows, MAX_RANGE_ROWS)
            if found:
                return found
            after = tuple(end)

    def _read(self, after: Key | None, rows: int, until: Key | None = None) -> Page:
        query = self._queries.page(after, rows, until)
        found = self._cursor.execute(query, [*(after or ()), *(until or ())]).fetchall()
        width = len(self._layout.key)
        return Page(
            [tuple(row[:width]) for row in found],
            [row[width] for row in found],
            [row[width + 1] for row in found],
        )

    def write(self, page: Page, answers: Sequence[Outcome], version: str) -> int:
        """Store answers in one transaction, tried again where another cursor was in the way."""
        give_up_s = time.monotonic() + CONFLICT_PATIENCE_S
        pause_s = CONFLICT_PAUSE_S
        while True:
            try:
                return self._stored(page, answers)
            except (duckdb.TransactionException, duckdb.ConstraintException) as error:
                # ON CONFLICT does not see a key that another transaction has just stored: it fails instead.
                if _OF_THE_ANSWERS.search(str(error)) or time.monotonic() >= give_up_s:
                    raise
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, MAX_CONFLICT_PAUSE_S)

    def stop_writing(self) -> None:
        """Interrupt the statement that is under way."""
        self._writer.interrupt()

    def _values(self, values: Sequence[Any]) -> pa.Array:
        """Vectors as their numbers, which take a thirtieth of the time of their text; all else as text."""
        kind = self._layout.value_type
        if self._width is None or not all(value is None or isinstance(value, array) for value in values):
            return pa.array([text_of(value, kind, "[]") for value in values], pa.string())
        try:
            return VectorType(kind, pa.list_(pa.float32(), self._width)).array(values)
        except WrongType as error:
            raise unfit(self._layout, error) from error

    def _stored(self, page: Page, answers: Sequence[Outcome]) -> int:
        """One try. By several statements, so that of many vectors few are there twice."""
        width = self._width
        step = max(1, len(page) if width is None else STATEMENT_BYTES // (4 * width))
        self._writer.begin()
        try:
            stored = sum(
                self._written(page.part(first, first + step), answers[first : first + step])
                for first in range(0, len(page), step)
            )
            self._writer.commit()
        except BaseException:
            with contextlib.suppress(duckdb.Error):  # a failed COMMIT has ended it already
                self._writer.rollback()
            raise
        finally:  # not before: an aborted transaction lets nothing be done
            self._writer.unregister(_ANSWERS)
        return stored

    def _written(self, page: Page, answers: Sequence[Outcome]) -> int:
        columns = {
            f"k{at}": pa.array([key[at] for key in page.keys], pa.string())
            for at in range(len(self._layout.key))
        }
        errors = [None if a.error is None else f"{a.error.code}: {a.error.message}" for a in answers]
        answered = pa.table(
            {
                **columns,
                "h": pa.array(page.hashes, pa.string()),
                "v": self._values([answer.value for answer in answers]),
                "c": pa.array([answer.confidence for answer in answers], pa.float64()),
                "e": pa.array(errors, pa.string()),
            }
        )
        self._writer.register(_ANSWERS, answered)
        try:
            reach: Sequence[str] = ()
            if self._is_reached:
                (reach,) = self._writer.execute(self._queries.reach(_ANSWERS)).fetchall()
            write = self._queries.write(_ANSWERS, reached=self._is_reached)
            ((stored,),) = self._writer.execute(write, list(reach)).fetchall()
        except duckdb.ConversionException as error:
            raise unfit(self._layout, error) from error
        return int(stored)

    def check_values(self, info: FunctionInfo) -> None:
        """See that answers fit into their column. Raises `WrongType`."""
        kind = self._layout.value_type
        samples = sample_texts(info, kind, "[]")
        value = self._layout.cast.format("v")
        try:
            self._cursor.execute(
                f"SELECT count({value}::{kind}) FROM (SELECT unnest($1::text[]) AS v)", [samples]
            ).fetchall()
        except duckdb.ConversionException as error:
            raise unfit(self._layout, error) from error


class DuckDbCatalog:
    """The catalog, with its search path."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection) -> None:
        self._cursor = cursor
        ((path, *first),) = cursor.execute(
            "SELECT lower(current_setting('search_path')), lower(current_database()), lower(current_schema())"
        ).fetchall()
        parts = [within.replace('""', '"') or plain for within, plain in _PATH_PART.findall(path)] or first
        self._path = list(zip(parts[::2], parts[1::2], strict=True))

    def found(self, name: str) -> Source | None:
        """The table or view that SQL would find by this name. Raises `BadOption` for what is no name."""
        *place, name = split_name(name)
        found = [
            (rank, row)
            for row in self._cursor.execute(_RELATIONS, [name]).fetchall()
            if (rank := self._rank(place, row[0].lower(), row[1].lower())) is not None
        ]
        if not found:
            return None
        _, (database, schema, table, kind) = min(found)
        sql = qualified(database, schema, table)
        described = self._cursor.execute(f"DESCRIBE {sql}").fetchall()
        keys = self._cursor.execute(_KEYS, [database, schema, table]).fetchall()
        return Source(
            table if schema == "main" else f"{schema}.{table}",
            sql,
            tuple(ColumnDef(row[0], row[1], row[1], row[2] != "NO") for row in described),
            is_table=kind == "table",
            primary=next((tuple(names) for is_primary, names in keys if is_primary), ()),
            unique=tuple(frozenset(names) for _, names in keys) if kind == "table" else None,
        )

    def _rank(self, place: Sequence[str], database: str, schema: str) -> int | None:
        """How soon a name in that place finds what is in a schema, 0 the soonest; None where it does not."""
        named = [part.lower() for part in place]
        near = [each == (database, schema) if not named else each[0] == database for each in self._path]
        if named in ([], [schema]) and True in near:
            return near.index(True)
        is_whole = named == [database, schema] or [*named, "main"] == [database, schema]
        return len(near) if is_whole else None

    @property
    def types(self) -> Mapping[AnswerKind, str]:
        """As result types of functions."""
        return {kind: vector.sql for kind, vector in OF_TEXTS.items()}

    def cast(self, kind: AnswerKind, value_type: str) -> str:
        """By JSON, which is read into lists and structs."""
        is_text = value_type.upper() in ("VARCHAR", "JSON")
        return "{}::JSON" if kind in OF_TEXTS and not is_text else "{}"

    def create(self, statement: str) -> None:
        """Create a table."""
        self._cursor.execute(statement)
