"""`ml_udf.duckdb.sql`: a query in which models are asked only for the rows that cheap conditions leave.

    ml_udf.duckdb.sql(con, "SELECT * FROM foodlog WHERE note LIKE '%soup%' AND udf_food_name(path) = 'laksa'")

DuckDB has no hook for an optimizer in Python, so the query's text is rewritten: `ml_udf.duckdb.rewrite`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import duckdb

from ml_udf.errors import MlUdfError

if TYPE_CHECKING:
    from ml_udf.duckdb.rewrite import Rewrite

__all__ = ["asked", "rewritten", "sql"]

Result = TypeVar("Result")

# What DuckDB raises before it runs a statement.
_NOT_BOUND = (duckdb.BinderException, duckdb.ParserException, duckdb.CatalogException)


def sql(
    con: duckdb.DuckDBPyConnection, query: str, params: Sequence[Any] | Mapping[str, Any] | None = None
) -> duckdb.DuckDBPyRelation:
    """`con.sql(query)` with the cheap conditions first; of several statements what the last one gives.

    params: the values of `?`, `$1` or `$name` in the last statement

    Raises what `con.sql` raises, and `MlUdfError` where sqlglot is not installed.
    """
    statements = con.extract_statements(query)
    if len(statements) == 1:
        return _relation(con, query, params)
    for statement in statements[:-1]:
        _relation(con, statement.query, None)
    return _relation(con, statements[-1].query if statements else query, params)


def rewritten(con: duckdb.DuckDBPyConnection, query: str) -> Rewrite:
    """One statement as `sql` runs it, and which conditions on models stay as they are, and why.

    Raises `MlUdfError` where sqlglot is not installed. Of what DuckDB would refuse, nothing is changed.
    """
    try:
        from ml_udf.duckdb.catalog import known_of
        from ml_udf.duckdb.rewrite import rewrite
    except ModuleNotFoundError as error:
        if error.name != "sqlglot":
            raise
        raise MlUdfError(
            "sqlglot is missing, which reads the query", hint="pip install 'ml_udf[duckdb]'"
        ) from None
    return rewrite(query, known_of(con, query))


def asked(told: Rewrite, query: str, ask: Callable[[str], Result]) -> Result:
    """What `ask` makes of the rewritten query, or of `query` itself where DuckDB does not take that."""
    try:
        return ask(told.query)
    except _NOT_BOUND:
        if not told.is_changed:
            raise
    return ask(query)


def _relation(
    con: duckdb.DuckDBPyConnection, query: str, params: Sequence[Any] | Mapping[str, Any] | None
) -> duckdb.DuckDBPyRelation:
    def ask(text: str) -> duckdb.DuckDBPyRelation:
        return con.sql(text) if params is None else con.sql(text, params=params)

    told = rewritten(con, query)
    with _frames_of_the_caller(con):
        return asked(told, query, ask)


@contextlib.contextmanager
def _frames_of_the_caller(con: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """A query may name a data frame of who has written it: by itself DuckDB looks in our frame alone."""
    ((before,),) = con.execute("SELECT current_setting('python_scan_all_frames')").fetchall()
    if before:
        yield
        return
    con.execute("SET python_scan_all_frames = true")
    try:
        yield
    finally:
        with contextlib.suppress(duckdb.Error):  # in a transaction that has failed nothing can be set
            con.execute("SET python_scan_all_frames = false")
