"""What a verb of the registry does when the connection is cut under it (the database was restarted, failed
over, or closed the connection), or when another process has it locked. Knows no table.
"""

from __future__ import annotations

import functools
import sqlite3
import time
from collections.abc import Callable
from typing import NoReturn, ParamSpec, TypeVar

import psycopg
from sqlalchemy.exc import DBAPIError

from server.errors import Overloaded

__all__ = ["once", "retried"]

_PAUSES_S = (0.0, 0.05, 0.2, 0.5, 1.0, 2.0, 4.0)

P = ParamSpec("P")
R = TypeVar("R")


def retried(verb: Callable[P, R]) -> Callable[P, R]:
    """Tries again for some seconds. For verbs that may run twice: a commit whose answer was lost may have
    taken place. Then raises `Overloaded`.
    """

    @functools.wraps(verb)
    def tried(*args: P.args, **kwargs: P.kwargs) -> R:
        for pause_s in _PAUSES_S:
            try:
                return verb(*args, **kwargs)
            except DBAPIError as exc:
                if not _was_cut(exc):
                    _tell(exc)
            time.sleep(pause_s)
        return once(verb)(*args, **kwargs)

    return tried


def once(verb: Callable[P, R]) -> Callable[P, R]:
    """Raises `Overloaded`: what was asked for may have been done, and whoever asked must look."""

    @functools.wraps(verb)
    def tried(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return verb(*args, **kwargs)
        except DBAPIError as exc:
            _tell(exc)

    return tried


def _tell(exc: DBAPIError) -> NoReturn:
    """Raises the error that a caller gets."""
    if _is_locked(exc):
        raise Overloaded(
            "another process has the registry locked, and nothing was changed; try again", retry_after_s=5.0
        ) from exc
    if _was_cut(exc):
        raise Overloaded(
            "the connection to the registry's database was lost; look whether it was done, and try again",
            retry_after_s=2.0,
        ) from exc
    raise exc


def _is_locked(exc: DBAPIError) -> bool:
    # SQLite has waited for its lock already; a transaction that did not get it has done nothing.
    code = getattr(exc.orig, "sqlite_errorcode", 0)
    return code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _was_cut(exc: DBAPIError) -> bool:
    if exc.connection_invalidated:
        return True
    state = getattr(exc.orig, "sqlstate", None)
    if isinstance(state, str):  # 57P01 to 57P03: it is shut down, has crashed, is starting
        return state.startswith("08") or state in ("57P01", "57P02", "57P03")
    # The driver's own: there is no server at the other end.
    return isinstance(exc.orig, psycopg.OperationalError)
