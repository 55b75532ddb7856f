"""One warning per statement for the rows that became NULL, with their count and the first cause.

DuckDB does not show its functions when a statement ends, so a warning is given when the statement has been
quiet for a moment, when the next statement begins, or at the interpreter's end, whichever comes first. One
that waits for answers is not quiet. One that goes on all the same, as the work between its calls takes long,
is warned of again, each time after twice the quiet.
"""

from __future__ import annotations

import threading
import warnings
from collections import Counter
from collections.abc import Callable

from ml_udf.client.statement import Statement
from ml_udf.errors import MlUdfError

__all__ = ["FaultWarnings", "FaultyRowsWarning", "is_spelled_out", "spelled_out"]

QUIET_S = 0.3


def spelled_out(error: MlUdfError, subject: str) -> MlUdfError:
    """The same error, with everything in its text: DuckDB keeps an exception's text and drops the rest.

    subject  what was called
    """
    if is_spelled_out(error):  # it has passed here, within another call
        return error
    whole = type(error)(f"{subject}: {error.report()}")
    whole.hint = ""  # its text holds it
    return whole


def is_spelled_out(error: MlUdfError) -> bool:
    """Whether everything is in its text already."""
    return f"[{error.sqlstate} {error.code}]" in error.message


class FaultyRowsWarning(UserWarning):
    """Some rows of a statement are NULL because they could not be answered."""


class FaultWarnings:
    """The statements with faulty rows that have not been warned of yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Whoever asks for the warnings has them when the call returns, also where the timer is giving them.
        self._giving = threading.RLock()
        self._waiting: dict[int, Statement] = {}
        self._under_way: Counter[int] = Counter()  # calls, by statement
        self._timer: threading.Timer | None = None
        self._last: tuple[Statement | None, float] = (
            None,
            QUIET_S,
        )  # warned of, and its quiet now

    def call_begins(self, statement: Statement) -> None:
        """A call of `statement` begins; `call_ended` follows."""
        with self._lock:
            self._under_way[id(statement)] += 1

    def call_ended(self, statement: Statement) -> None:
        """A call of `statement` has ended; it may have made rows NULL."""
        with self._lock:
            self._under_way[id(statement)] -= 1
            if not self._under_way[id(statement)]:
                del self._under_way[id(statement)]
            if statement.options.on_error == "error":
                return
            self._waiting[id(statement)] = statement
            if self._timer is not None:
                self._timer.cancel()
            last, quiet_s = self._last
            self._timer = threading.Timer(quiet_s if last is statement else QUIET_S, self._flush_quiet)
            self._timer.daemon = True
            self._timer.start()

    def flush(self) -> None:
        """Warn of every statement noted, now."""
        self._give(lambda statement: True)

    def _flush_quiet(self) -> None:
        """Warn of those without a call under way: the others are noted again when it ends."""
        self._give(lambda statement: id(statement) not in self._under_way)

    def _give(self, is_due: Callable[[Statement], bool]) -> None:
        with self._giving:
            with self._lock:
                if self._timer is not None:
                    self._timer.cancel()
                    self._timer = None
                due = [statement for statement in self._waiting.values() if is_due(statement)]
                for statement in due:
                    del self._waiting[id(statement)]
            for statement in due:
                if (fault := statement.fault_report()) is not None:
                    last, quiet_s = self._last
                    self._last = statement, 2 * (quiet_s if last is statement else QUIET_S)
                    warnings.warn(str(fault), FaultyRowsWarning, stacklevel=3)
