"""The SQL statements under way in this session, and what each has asked of which function.

A statement is known by the memory context that lives as long as it does; when PostgreSQL frees that, the rows
that became NULL are warned of, once, and the statement's memory goes. Settings are read at every call (a
function may carry its own, and PL/pgSQL may SET them in between); the endpoint, its token and the right to
use it once per statement.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ml_udf.client import CallStats, Client
from ml_udf.client.bulk_job import BulkJob
from ml_udf.client.exchange import ROW_FAULTS
from ml_udf.client.statement import Binding, Statement
from ml_udf.config import SETTINGS, Options
from ml_udf.postgres.backend import Backend
from ml_udf.postgres.endpoints import Bound, Endpoints
from ml_udf.postgres.faults import PostgresError
from ml_udf.postgres.latency_histogram import LatencyHistogram
from ml_udf.postgres.spi import Plpy
from ml_udf.scoring.binding import bound

__all__ = ["Past", "Statements", "Target"]

_SETTINGS = [(setting.name, f"ml_udf.{setting.name}".encode()) for setting in SETTINGS]
_DEFAULTS = Options()
_MARK = b"ml_udf_statistics"
MAX_REQUEST_ROWS = 65_536  # more is gathered only where one request at a time is wanted

StatementKey = tuple[int, "Target", tuple[str | None, ...]]


@dataclass(frozen=True, slots=True)
class Target:
    """What a call is for: a function of a server, with the options that its SQL function was created with."""

    server: str
    binding: Binding
    options: tuple[tuple[str, str], ...] = ()
    needs_usage: bool = False  # of the server: for the generic functions, which anybody may aim anywhere
    bound: Bound | None = None  # the server that its SQL function was made for
    sends_bytes: bool = False  # the values are bytea: encoded images, where the function takes paths as well

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Target:
        """Of an SQL function that was created with `record`; its owner answers for the server."""
        return cls(
            record["server"],
            Binding(record["function"], record.get("input_name"), record.get("output_name")),
            tuple(record.get("options", {}).items()),
            bound=Bound(record.get("server_oid"), record.get("server_owner")),
        )


@dataclass(slots=True)
class _OpenStatement:
    """One SQL statement under way."""

    job: BulkJob = field(default_factory=lambda: BulkJob.begun("statement", f"process {os.getpid()}"))
    clients: dict[tuple[int, str, bool, Bound | None], Client] = field(default_factory=dict)
    asked: dict[StatementKey, Statement] = field(default_factory=dict)

    def version(self, target: Target) -> str | None:
        """The version that this statement began with, whatever the settings or the role were then."""
        for (_, other, _), statement in self.asked.items():
            same = (other.server, other.binding.function) == (target.server, target.binding.function)
            if same and statement.version:
                return statement.version
        return None


@dataclass(slots=True)
class Past:
    """What this session has asked of one function, statements that have ended."""

    statements: int = 0
    failed_calls: int = 0
    calls: CallStats = field(default_factory=CallStats)
    # of the calls that had to ask the server
    waits: LatencyHistogram = field(default_factory=LatencyHistogram)


class Statements:
    """The statements of one session."""

    def __init__(self, plpy: Plpy, backend: Backend, endpoints: Endpoints) -> None:
        self._plpy = plpy
        self._backend = backend
        self._endpoints = endpoints
        self._open: dict[int, _OpenStatement] = {}
        self._past: dict[tuple[int, str, str], Past] = {}
        backend.at_abort(self.forget)

    def current(self, target: Target) -> Statement:
        """What the statement under way has asked of `target`, for current_user and the settings of now.

        Raises `BadOption` for a setting that cannot be used, `PostgresError` where there is no such server.
        """
        backend = self._backend
        key = (
            backend.role(),
            target,
            tuple([backend.setting(name) for _, name in _SETTINGS]),
        )
        context = backend.statement_context()
        under_way = self._open.get(context)
        if under_way is None:
            under_way = self._begin(context)
        statement = under_way.asked.get(key)
        if statement is None:
            client = self._client(under_way, target)
            options = _options(target, key[2], gather_rows=self._gather_rows())
            binding = self._image_binding(client, target) if target.sends_bytes else target.binding
            statement = Statement(client, binding, options)
            statement.version = under_way.version(target)
            under_way.asked[key] = statement
        statement.deadline_s = backend.statement_end_s()
        return statement

    def client(self, server: str) -> Client:
        """The client of a server that current_user may use, outside any function."""
        return self._endpoints.client(server, needs_usage=True)

    def bound(self, server: str) -> Bound:
        """What a function that is made for that server now has to hold."""
        return self._endpoints.bound(server)

    def options(self, target: Target) -> Options:
        """The settings of now, for calls of `target`. Raises `BadOption`."""
        texts = [self._backend.setting(name) for _, name in _SETTINGS]
        return _options(target, texts, gather_rows=self._gather_rows())

    def check_interrupts(self) -> None:
        """Act on a cancel, a timeout or a termination that waits: raises plpy's error, or does not return."""
        if self._backend.interrupt_pending():
            self._plpy.execute("SELECT 1")

    def mark(self) -> None:
        """Begin to count, unless it has begun. A prepared statement is the sign of it.

        Like them what was counted is kept through a rollback, and goes with DISCARD ALL or DEALLOCATE ALL:
        a pooler's next client begins at nothing. Counting cannot begin within REFRESH MATERIALIZED VIEW.
        """
        if not self._backend.has_prepared(_MARK) and not self._backend.leaves_nothing():
            self._past.clear()
            self._plpy.execute(f"PREPARE {_MARK.decode()} AS SELECT 1")

    def count_failure(self, target: Target) -> None:
        """A call for `target` has failed its statement."""
        self._of(target).failed_calls += 1

    def count_run(self, target: Target, stats: CallStats) -> None:
        """A statement that asked for `target` by itself has ended."""
        past = self._of(target)
        past.statements += 1
        past.calls = past.calls + stats

    def count_wait(self, target: Target, seconds: float) -> None:
        """A call for `target` has waited for the server."""
        self._of(target).waits.add(seconds)

    def tell_cached(self, inputs: int) -> None:
        """So many inputs of the call under way had been answered before: EXPLAIN ANALYZE shows it."""
        self._backend.tell_cached(inputs)

    def subtransaction(self) -> int:
        """What runs, as `forget` knows it."""
        return self._backend.subtransaction()

    def forget(self, since: int = 0) -> None:
        """Drop what was begun with and not answered, in all statements under way.

        since: only what this subtransaction has begun with, and those within it
        """
        for under_way in self._open.values():
            for statement in under_way.asked.values():
                statement.forget(since)

    def past(self) -> Mapping[tuple[str, str], Past]:
        """(server, function) → what ended statements of current_user asked of it since the session began."""
        if not self._backend.has_prepared(_MARK):
            return {}
        role = self._backend.role()
        return {(server, name): past for (by, server, name), past in self._past.items() if by == role}

    def _gather_rows(self) -> int:
        if self._backend.setting(b"ml_udf.batching") is None:
            return 0
        return int(self._backend.setting(b"ml_udf.gather_rows") or 0)

    def _of(self, target: Target, role: int | None = None) -> Past:
        by = self._backend.role() if role is None else role
        return self._past.setdefault((by, target.server, target.binding.function), Past())

    def _image_binding(self, client: Client, target: Target) -> Binding:
        """Of a function whose rows are paths, the input that takes encoded images instead."""
        with contextlib.suppress(*ROW_FAULTS):  # the call itself will meet them, under on_error's rule
            info = client.look_up(target.binding.function, on_wait=self.check_interrupts)
            return bound(target.binding, info, "bytes")
        return target.binding

    def _begin(self, context: int) -> _OpenStatement:
        if self._backend.forbids_queries():
            raise PostgresError(
                "25000",
                "ml_udf cannot be called while a parallel plan is active",
                hint="mark the functions that call it PARALLEL UNSAFE",
            )
        if not self._backend.has_prepared(_MARK):
            self._plpy.execute(
                "SELECT ml_udf._boot()"
            )  # which calls `mark`; this function may change nothing
        under_way = self._open[context] = _OpenStatement()
        self._backend.at_end_of(context, lambda: self._end(context))
        return under_way

    def _end(self, context: int) -> None:
        under_way = self._open.pop(context)
        for statement in under_way.asked.values():
            statement.forget()
        for (role, target, _), statement in under_way.asked.items():
            past = self._of(target, role)
            past.statements += 1
            past.calls = past.calls + statement.stats
        if self._backend.in_transaction():  # a statement that failed has said why
            for statement in _by_function(under_way.asked):
                self._warn(statement)

    def _client(self, under_way: _OpenStatement, target: Target) -> Client:
        key = (self._backend.role(), target.server, target.needs_usage, target.bound)
        client = under_way.clients.get(key)
        if client is None:
            client = self._endpoints.client(target.server, needs_usage=target.needs_usage, bound=target.bound)
            client = client.of_job(under_way.job)
            under_way.clients[key] = client
        return client

    def _warn(self, statement: Statement) -> None:
        if (fault := statement.fault_report()) is not None:
            more = {name: text for name, text in (("detail", fault.detail), ("hint", fault.hint)) if text}
            self._plpy.warning(fault.message, **more)


def _by_function(asked: Mapping[StatementKey, Statement]) -> Iterable[Statement]:
    """One for each function, with the faults of all its uses: `predict` and the function's own are one."""
    found: dict[tuple[str, str], Statement] = {}
    for (_, target, _), statement in asked.items():
        first = found.setdefault((target.server, target.binding.function), statement)
        if first is not statement:
            first.absorb(statement)
    return found.values()


def _options(target: Target, texts: Sequence[str | None], *, gather_rows: int) -> Options:
    """The session's settings over those that the function was created with. Raises `BadOption`.

    gather_rows  how many rows the batching module gathers; 0 = it is not loaded. They leave together, as
                 `max_in_flight` requests, unless `batch_rows` says how large a request is.
    """
    set_now = {name: text for (name, _), text in zip(_SETTINGS, texts, strict=True) if text}
    given = {**dict(target.options), **set_now}
    options = _DEFAULTS.overridden(given)
    if gather_rows and "batch_rows" not in given:
        request_rows = min(MAX_REQUEST_ROWS, -(-gather_rows // options.max_in_flight))
        options = replace(options, batch_rows=request_rows)
    return options
