"""Answered pages on their way into the store: each at once, or gathered and written beside the asking.

Where a transaction costs more than its rows, as in DuckDB, many pages are one. They wait while those before
are written, and then until writing them takes a small share of the time since, by what rows of the last write
took; or until they fill their room. So a slow function's answers are stored as they come, and those of a fast
one, of which writing would always take more, in pieces as large as can be.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Protocol

from ml_udf.client.request_pool import WAIT_SLICE_S, signals_blocked
from ml_udf.client.statement import Outcome
from ml_udf.scoring.pages import Page, Store

__all__ = ["Writing", "Written", "writing_into"]

MAX_WAIT_S = 15.0  # of answers; what a killed process loses at most, beside what is being written
WRITING_SHARE = 0.1  # of the time
ROOM_ROWS = 122_880  # a row group of DuckDB's: each checkpoint writes one anew that is not full
ROOM_BYTES = 192 << 20  # which so many vectors of 256 numbers take
_END_WAIT_S = 30.0  # for a database that is told to stop
_ANSWER_BYTES = 200  # with its row's key and hash, without its value
_NUMBER_BYTES = 24  # of one in a list

Written = Callable[[Sequence[Outcome], int], None]  # answers, and how many of them were stored


class Writing(Protocol):
    """Used by one thread. Each method raises what writing raised, once; then nothing more is written."""

    def add(self, page: Page, answers: Sequence[Outcome]) -> None:
        """Take an answered page."""
        ...

    def look(self) -> None:
        """Do what is due; called at least every 50 ms."""
        ...

    def finish(self) -> None:
        """Store everything."""
        ...

    def drop(self) -> None:
        """End what is under way, forget what waits."""
        ...


def writing_into(
    store: Store, version: str, written: Written, on_wait: Callable[[], None] | None = None
) -> Writing:
    """The way in which this store is written.

    written  called in the caller's thread after each transaction
    on_wait  called in the caller's thread at least every 50 ms; what it raises ends the wait
    """
    if store.gathers:
        return _Gathered(store, version, written, on_wait or (lambda: None))
    return _AtOnce(store, version, written)


class _AtOnce:
    """Each page is a transaction, in the caller's thread."""

    def __init__(self, store: Store, version: str, written: Written) -> None:
        self._store = store
        self._version = version
        self._written = written

    def add(self, page: Page, answers: Sequence[Outcome]) -> None:
        if page:
            self._written(answers, self._store.write(page, answers, self._version))

    def look(self) -> None:
        pass

    def finish(self) -> None:
        pass

    def drop(self) -> None:
        pass


class _Gathered:
    """Pages are written together, by a thread of its own, one transaction at a time."""

    def __init__(self, store: Store, version: str, written: Written, on_wait: Callable[[], None]) -> None:
        self._store = store
        self._version = version
        self._written = written
        self._on_wait = on_wait
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ml_udf_write")
        self._write: tuple[Future[int], Sequence[Outcome], float] | None = None  # with when it began
        self._row_s = 0.0  # what one took in the last write
        self._ended_s = -math.inf  # the last write; only then what waits began to
        self._failed = False
        self._forget()

    def add(self, page: Page, answers: Sequence[Outcome]) -> None:
        """Wait while there is no room."""
        self._page.keys += page.keys
        self._page.hashes += page.hashes
        self._answers += answers
        self._nbytes += _nbytes(answers)
        self.look()
        while self._is_full() and self._write is not None:
            self._wait_for_write()

    def look(self) -> None:
        if self._write is not None:
            future, answers, began_s = self._write
            if not future.done():
                return
            self._write, self._failed = None, future.exception() is not None
            self._written(answers, future.result())
            self._ended_s = time.monotonic()
            self._row_s = (self._ended_s - began_s) / len(answers)
        if self._page and (self._is_full() or self._is_due(time.monotonic())):
            self._begin()

    def finish(self) -> None:
        while (self._page or self._write is not None) and not self._failed:
            self._ended_s = -math.inf
            self.look()
            if self._write is not None:
                self._wait_for_write()

    def drop(self) -> None:
        self._forget()
        if self._write is not None:
            self._store.stop_writing()
            wait([self._write[0]], _END_WAIT_S)
            self._write = None
        self._thread.shutdown(wait=False)

    def _forget(self) -> None:
        self._page, self._nbytes = Page(), 0
        self._answers: list[Outcome] = []

    def _is_full(self) -> bool:
        return len(self._page) >= ROOM_ROWS or self._nbytes >= ROOM_BYTES

    def _is_due(self, now_s: float) -> bool:
        waited_s = now_s - self._ended_s
        return waited_s >= MAX_WAIT_S or self._row_s * len(self._page) <= WRITING_SHARE * waited_s

    def _begin(self) -> None:
        with signals_blocked():
            future = self._thread.submit(self._store.write, self._page, self._answers, self._version)
        self._write = (future, self._answers, time.monotonic())
        self._forget()

    def _wait_for_write(self) -> None:
        if self._write is not None:
            wait([self._write[0]], WAIT_SLICE_S)
            self._on_wait()
            self.look()


def _nbytes(answers: Sequence[Outcome]) -> int:
    values = [answer.value for answer in answers]
    numbers = sum(len(value) for value in values if isinstance(value, list))
    return _ANSWER_BYTES * len(values) + sum(map(sys.getsizeof, values)) + _NUMBER_BYTES * numbers
