"""A dataset's query, looked over before a database sees it: one statement, and only a reading one.

Pure. The database has the last word: the transaction is READ ONLY and the role may only SELECT. This is for
the message that says at once what is wrong.
"""

from __future__ import annotations

import sqlglot
from sqlglot import exp

from server.errors import BadOption

__all__ = ["check_query"]

_MAX_CHARS = 100_000
_WRITES = (
    exp.Insert,
    exp.Update,
    exp.Delete,
    exp.Merge,
    exp.Create,
    exp.Drop,
    exp.Alter,
    exp.Command,
    exp.Into,
    exp.Lock,
    exp.TruncateTable,
    exp.Copy,
)


def check_query(query: str, dialect: str) -> None:
    """Raises `BadOption` unless `query` is one SELECT (with WITH, UNION, VALUES as it likes).

    dialect: postgres or duckdb.
    """
    if not query.strip():
        raise BadOption("the dataset's query is empty")
    if len(query) > _MAX_CHARS:
        raise BadOption(f"the dataset's query has {len(query)} characters, more than {_MAX_CHARS}")
    try:
        statements = [one for one in sqlglot.parse(query, read=dialect) if one is not None]
    except sqlglot.errors.SqlglotError as exc:
        first = str(exc).splitlines()[0]
        raise BadOption(f"the dataset's query cannot be parsed: {first}") from None
    if len(statements) != 1:
        raise BadOption(f"the dataset's query holds {len(statements)} statements; give one SELECT")
    (statement,) = statements
    if isinstance(statement, exp.Command):  # what the parser knows no more of than its first word
        raise BadOption(f"the dataset's query is a {str(statement.this).upper()}; give one SELECT")
    written = next((node for node in statement.walk() if isinstance(node, _WRITES)), None)
    if written is not None:
        what = "takes locks" if isinstance(written, exp.Lock) else f"writes ({written.key.upper()})"
        raise BadOption(f"the dataset's query {what}; give one SELECT that only reads")
    if not isinstance(statement, exp.Query | exp.Values):
        raise BadOption(f"the dataset's query is a {statement.key.upper()}; give one SELECT")
