"""The statements of a connection that may still go on, and what those before them have asked.

DuckDB tells nobody when a statement ends. So the ones that were called last are kept, each with all of its
functions: what is forgotten of one that goes on is asked anew, perhaps of another version.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ml_udf.client import CallStats
from ml_udf.client.bulk_job import BulkJob
from ml_udf.client.statement import Binding, Statement

__all__ = ["OpenStatement", "OpenStatements"]

_KEPT = 8  # uses of functions
_QUIET_S = 1.0  # without a call: then a statement is taken to have ended where there are too many


def _job() -> BulkJob:
    return BulkJob.begun("statement", f"DuckDB, process {os.getpid()}")


@dataclass(slots=True)
class OpenStatement:
    """One SQL statement. asked: what it has asked of each function, and whether of bytes."""

    asked: dict[tuple[Binding, bool], Statement] = field(default_factory=dict)
    job: BulkJob = field(default_factory=_job)  # its functions are one
    under_way: int = 0  # calls
    last_s: float = 0.0  # when the last one ended

    def version(self, function: str) -> str | None:
        """The version that this statement began with, whatever it asked for of it."""
        versions = (each.version for (binding, _), each in self.asked.items() if binding.function == function)
        return next(filter(None, versions), None)


class OpenStatements:
    """The open statements of one connection, by their identity; DuckDB's threads come here at once."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._open: OrderedDict[str, OpenStatement] = OrderedDict()  # those that were called last at the end
        self._past: dict[str, tuple[int, CallStats]] = {}  # function → uses forgotten, what they cost

    @contextlib.contextmanager
    def call(self, identity: str) -> Iterator[OpenStatement]:
        """While a call of that statement is under way."""
        with self._lock:
            one = self._open.setdefault(identity, OpenStatement())
            self._open.move_to_end(identity)
            one.under_way += 1
        try:
            yield one
        finally:
            with self._lock:
                one.under_way -= 1
                one.last_s = self._clock_s()
                self._open.move_to_end(identity)
                if not one.asked and not one.under_way:  # it failed before it could ask
                    del self._open[identity]

    def use(
        self, one: OpenStatement, binding: Binding, sends_bytes: bool, new: Callable[[], Statement]
    ) -> Statement:
        """What a statement whose call is under way has asked of a function; `new` begins."""
        with self._lock:
            statement = one.asked.get((binding, sends_bytes))
            if statement is None:
                version = one.version(binding.function)
                statement = one.asked[(binding, sends_bytes)] = new()
                statement.version = version
                self._forget_ended()
            return statement

    def costs(self) -> dict[str, tuple[int, CallStats]]:
        """Function → how many statements have asked it, and what that cost."""
        with self._lock:
            total = {name: (count, stats + CallStats()) for name, (count, stats) in self._past.items()}
            for one in self._open.values():
                _add(total, one)
        return total

    def _forget_ended(self) -> None:
        uses = sum(len(one.asked) for one in self._open.values())
        ended_s = self._clock_s() - _QUIET_S
        for identity, one in list(self._open.items()):
            if uses <= _KEPT or (not one.under_way and one.last_s > ended_s):
                return
            if not one.under_way:
                del self._open[identity]
                _add(self._past, one)
                uses -= len(one.asked)


def _add(total: dict[str, tuple[int, CallStats]], one: OpenStatement) -> None:
    for statement in one.asked.values():
        count, stats = total.get(statement.binding.function, (0, CallStats()))
        total[statement.binding.function] = (count + 1, stats + statement.stats)
