"""One statement from the next, distinguished by the pause between them.

For calls that DuckDB gives no identity: those of connections that have no macro in front of the function.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

__all__ = ["LONGEST_S", "PAUSE_S", "Pauses"]

PAUSE_S = 0.3  # without a call under way: then the next one belongs to another statement
LONGEST_S = 60.0  # of what counts as one, lest a busy process never asks for a function's version again


class Pauses:
    """Names the statement that a call belongs to. Calls that fail end it: the next one asks anew."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._number = 0
        self._began_s = self._ended_s = float("-inf")
        self._under_way = 0

    @contextlib.contextmanager
    def call(self) -> Iterator[str]:
        """While a call is under way; gives its statement's identity."""
        with self._lock:
            now_s = self._clock_s()
            quiet = not self._under_way and now_s - self._ended_s > PAUSE_S
            if quiet or now_s - self._began_s > LONGEST_S:
                self._number += 1
                self._began_s = now_s
            self._under_way += 1
            identity = f"pause {self._number}"
        try:
            yield identity
        except Exception:
            with self._lock:
                self._began_s = float("-inf")
            raise
        finally:
            with self._lock:
                self._under_way -= 1
                self._ended_s = self._clock_s()
