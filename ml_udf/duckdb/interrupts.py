"""Ctrl-C and `interrupt()` for calls that wait for a server.

DuckDB waits for a running function before it looks at an interrupt, and may run it on a thread that never
sees KeyboardInterrupt. So every call looks at a token of its own while it waits.

At Ctrl-C DuckDB ends the statement, and waits for what its threads have begun: a whole table that one of them
reads. They look at `interrupt()` alone, so Ctrl-C calls that, too.
"""

from __future__ import annotations

import contextlib
import re
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

import duckdb

from ml_udf.errors import Cancelled

__all__ = ["Interrupts", "interruptible_by_ctrl_c"]

_DUCKDB_SAW_IT = "Query interrupted"
_FUNCTION_SAW_IT = re.compile(r"\sKeyboardInterrupt: ")


@contextlib.contextmanager
def interruptible_by_ctrl_c(con: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """Raises KeyboardInterrupt for Ctrl-C wherever it comes, and ends the statement that `con` has under way.

    A query that is running when it comes may end with a RuntimeError of DuckDB's instead, or with its error
    for `interrupt()`, and one whose function was waiting with that for what a function raised.
    """
    interrupts = Interrupts(con)
    interrupts.listen_to_ctrl_c()
    try:
        yield
    except duckdb.InterruptException as error:
        raise KeyboardInterrupt from error
    except Exception as error:
        if str(error) != _DUCKDB_SAW_IT and not _FUNCTION_SAW_IT.search(str(error)):
            raise
        raise KeyboardInterrupt from error
    finally:
        interrupts.stop_listening()


class Interrupts:
    """The statement of a connection that is under way, its calls, and the way to end them."""

    def __init__(self, con: duckdb.DuckDBPyConnection) -> None:
        self._con = con
        # Ctrl-C may come to a thread that has it.
        self._lock = threading.RLock()
        self._tokens: set[threading.Event] = set()
        self._previous: Callable[[int, FrameType | None], object] | None = None

    @contextlib.contextmanager
    def call(self) -> Iterator[Callable[[], None]]:
        """While a call is under way; gives the check that raises `Cancelled` once interrupted."""
        token = threading.Event()
        with self._lock:
            self._tokens.add(token)

        def check() -> None:
            if token.is_set():
                raise Cancelled("the statement was interrupted")

        try:
            yield check
        except KeyboardInterrupt:
            self.interrupt()  # the other threads of the same statement never see the key
            raise
        finally:
            with self._lock:
                self._tokens.discard(token)

    def interrupt(self) -> None:
        """End the statement under way, and its calls."""
        with contextlib.suppress(duckdb.Error):  # it is closed
            self._con.interrupt()
        with self._lock:
            for token in self._tokens:
                token.set()

    def listen_to_ctrl_c(self) -> None:
        """Let Ctrl-C end the calls too; only from the main thread, only before Python's own handler."""
        if threading.current_thread() is not threading.main_thread():
            return
        previous = signal.getsignal(signal.SIGINT)
        if callable(previous):
            self._previous = previous
            signal.signal(signal.SIGINT, self._on_sigint)

    def stop_listening(self) -> None:
        """Give Ctrl-C back, if nobody has taken it meanwhile; who has may call us, and we pass it on."""
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and self._previous and signal.getsignal(signal.SIGINT) == self._on_sigint:
            signal.signal(signal.SIGINT, self._previous)
            self._previous = None

    def _on_sigint(self, number: int, frame: FrameType | None) -> None:
        self.interrupt()
        if self._previous is not None:
            self._previous(number, frame)
