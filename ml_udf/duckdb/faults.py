"""One warning per statement for the rows that became NULL, with their count and the first cause.

DuckDB does not tell its functions when a statement ends, so a warning is given when the statement has been
quiet for a moment, when the next statement begins, or at the interpreter's end, whichever comes first.
"""

from __future__ import annotations

import threading
import warnings

from ml_udf.statement import Statement

__all__ = ["FaultWarnings", "FaultyRowsWarning"]

QUIET_S = 0.3


class FaultyRowsWarning(UserWarning):
    """Some rows of a statement are NULL because they could not be answered."""


class FaultWarnings:
    """The statements with faulty rows that have not been warned of yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[Statement, int]] = {}  # → (statement, rows warned of already)
        self._timer: threading.Timer | None = None

    def note(self, statement: Statement) -> None:
        """A call of `statement` has ended; it may have made rows NULL."""
        if statement.null_rows == 0:
            return
        with self._lock:
            _, warned = self._waiting.get(id(statement), (statement, 0))
            self._waiting[id(statement)] = (statement, warned)
            if self._timer is not None:
                self._timer.cancel()
            self._timer = threading.Timer(QUIET_S, self.flush)
            self._timer.daemon = True
            self._timer.start()

    def flush(self) -> None:
        """Warn of every statement noted, now."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            due = [(s, warned) for s, warned in self._waiting.values() if s.null_rows > warned]
            self._waiting.clear()
        for statement, _ in due:
            cause = statement.first_fault
            rows = "1 row is" if statement.null_rows == 1 else f"{statement.null_rows:,} rows are"
            warnings.warn(
                f"{statement.binding.function}: {rows} NULL because of errors; the first: "
                f"{cause.code if cause else ''}: {cause}",
                FaultyRowsWarning,
                stacklevel=2,
            )
