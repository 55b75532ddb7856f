"""Whether a failure is that of a full disk, whoever says so: the system, SQLite, PostgreSQL, DuckDB."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
from collections.abc import Iterator

import duckdb
from sqlalchemy.exc import DBAPIError

from server.errors import NoSpace

__all__ = ["full_disk_told", "no_space"]

_FULL = frozenset((errno.ENOSPC, errno.EDQUOT))
_DISK_FULL = "53100"  # PostgreSQL's SQLSTATE


def no_space(error: BaseException | None) -> NoSpace | None:
    """The error that a caller gets for a full disk; None if it is something else."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _FULL:
            return NoSpace(
                "no space left in the home folder (or for temporary files); nothing was changed: free some"
            )
        if isinstance(error, DBAPIError) and _is_full(error.orig):
            return NoSpace("no space left for the registry; nothing was changed: free some")
        error = error.__cause__
    return None


@contextlib.contextmanager
def full_disk_told() -> Iterator[None]:
    """DuckDB's errors of a full disk are the system's, as of everything else that writes here."""
    try:
        yield
    except duckdb.Error as exc:
        if os.strerror(errno.ENOSPC) in str(exc):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from exc
        raise


def _is_full(cause: BaseException | None) -> bool:
    if isinstance(cause, sqlite3.Error):
        # A write into the log or a temporary file that fails is an I/O error to SQLite; so is it where the
        # index of the log (-shm) finds no room, as of whoever opens the registry first.
        name = getattr(cause, "sqlite_errorname", "")
        return name == "SQLITE_FULL" or name.startswith(("SQLITE_IOERR_WRITE", "SQLITE_IOERR_SHMSIZE"))
    return getattr(cause, "sqlstate", None) == _DISK_FULL
