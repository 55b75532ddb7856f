"""`CALL ml_udf.score_table(…)`: scoring from inside, with the caller's rights, committing as it goes.

Owns the function's name, the session's options, progress in pg_stat_activity, and that a call which ends in
any way leaves the session as it was. What is scored and how is `ml_udf.scoring`'s.
"""

from __future__ import annotations

import contextlib
import json
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ml_udf.client.bulk_job import BulkJob
from ml_udf.client.statement import Binding
from ml_udf.errors import BadOption, InsideTransaction, UnknownFunction
from ml_udf.name_list import names_of
from ml_udf.postgres.backend import Backend
from ml_udf.postgres.binary import binary_reals
from ml_udf.postgres.endpoints import Endpoints
from ml_udf.postgres.faults import PostgresError
from ml_udf.postgres.spi import Plan, Plpy
from ml_udf.postgres.statements import Statements, Target
from ml_udf.postgres.watching import Watching
from ml_udf.scoring import Asking, Layout, ScoreProgress, ScoreRequest, score
from ml_udf.scoring.binding import bound
from ml_udf.scoring.names import split_name
from ml_udf.scoring.postgres_catalog import TEXT_SETTINGS, Parameter, PostgresCatalog, Reals
from ml_udf.scoring.postgres_store import PostgresStore
from ml_udf.scoring.request import BATCH_ROWS, PATIENCE_S, rescore_of
from ml_udf.scoring.resolving import resolved

__all__ = ["Scoring"]

_NAME_BYTES = 63
_NOT_IN_A_TRANSACTION = "2D000"  # invalid_transaction_termination
_FIX_TEXTS = "SELECT " + ", ".join(
    f"pg_catalog.set_config('{name}', '{value}', true)" for name, value in TEXT_SETTINGS.items()
)

# A function by its name, or by its signature where the name alone is not enough.
_FUNCTIONS = """
    SELECT w.record::text AS record, p.oid::pg_catalog.regprocedure::text AS signature,
           pg_catalog.format('%I.%I(%s)', n.nspname, p.proname, pg_catalog.oidvectortypes(p.proargtypes))
               AS full_signature,
           pg_catalog.has_function_privilege(p.oid, 'EXECUTE') AS permitted
    FROM ml_udf._wrappers() w JOIN pg_catalog.pg_proc p ON p.oid = w.oid
    JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
    WHERE w.kind = 'scalar' AND """
_BY_SIGNATURE = _FUNCTIONS + "p.oid = pg_catalog.to_regprocedure($1)"
_BY_PLAIN_NAME = _FUNCTIONS + "p.proname = $1 AND pg_catalog.pg_function_is_visible(p.oid)"
_BY_FULL_NAME = _FUNCTIONS + "p.proname = $1 AND n.nspname = $2"


@dataclass(frozen=True, slots=True)
class _Called:
    """What to call; where it is an SQL function, the type of its answers, and its signature in full."""

    target: Target
    returns: str | None = None
    signature: str | None = None


class Scoring:
    """The procedure's body, for one session."""

    def __init__(self, plpy: Plpy, backend: Backend, endpoints: Endpoints, statements: Statements) -> None:
        self._plpy = plpy
        self._backend = backend
        self._endpoints = endpoints
        self._statements = statements

    def run(self, given: Mapping[str, Any]) -> dict[str, int]:
        """Score a table; `given` are the procedure's arguments by name.

        Raises `InsideTransaction`, `ReadOnly`, `UnknownFunction`, `AlreadyRunning`, those of `resolved` and
        of `score`; `PostgresError` where the caller may not execute the function.
        """
        sql = _Procedure(self._plpy, batches=self._backend.setting(b"ml_udf.batching") == "on")
        try:
            sql.commit()
        except sql.Error as error:
            if getattr(error, "sqlstate", None) != _NOT_IN_A_TRANSACTION:
                raise
            raise InsideTransaction(
                "ml_udf.score_table commits after every batch, so it cannot run inside a transaction",
                hint="CALL it by itself: outside BEGIN, with autocommit on, not from a function",
            ) from None
        catalog = PostgresCatalog(sql)
        catalog.check_writable()
        called = self._called(sql, str(given["function"] or ""), given["server"])
        target = called.target
        options = self._statements.options(target)
        request = _request(given, options.on_error)
        client = self._endpoints.client(target.server, needs_usage=target.needs_usage, bound=target.bound)
        info = client.look_up(
            target.binding.function,
            version=request.version,
            input_name=target.binding.input_name,
            output_name=target.binding.output_name,
            on_wait=self._statements.check_interrupts,
        )
        layout = resolved(catalog, request, info, called.returns)
        store = PostgresStore(sql, layout, info.version)
        store.check_values(info)
        if given.get("watch"):
            return self._watched(sql, request, called, layout)
        asking = Asking(
            client,
            bound(target.binding, info, layout.input.kind),
            info.version,
            options,
            patience_s=request.patience_s,
            job=BulkJob.begun("table", layout.title),
            column=layout.value_type,
        )
        try:
            with self._shown(sql, layout.title) as show, _alone(sql, store):
                so_far = score(
                    store,
                    asking,
                    layout,
                    request,
                    on_wait=self._statements.check_interrupts,
                    on_progress=show,
                )
        finally:
            self._statements.count_run(target, asking.stats)
        self._warn(so_far, layout.title)
        return {"answered": so_far.answered, "failed": so_far.failed, "missed": so_far.missed}

    def pause_watch(self, watch: int) -> None:
        """`ml_udf.pause_watch`. Raises `PostgresError`."""
        self._watching().pause(watch)

    def resume_watch(self, watch: int) -> None:
        """`ml_udf.resume_watch`. Raises `PostgresError`."""
        self._watching().resume(watch)

    def drop_watch(self, watch: int) -> None:
        """`ml_udf.drop_watch`. Raises `PostgresError`."""
        self._watching().drop(watch)

    def _watching(self) -> Watching:
        return Watching(_Procedure(self._plpy, batches=False))

    def _watched(
        self, sql: _Procedure, request: ScoreRequest, called: _Called, layout: Layout
    ) -> dict[str, int]:
        watch = Watching(sql).keep(request, called.target, called.signature, layout)
        sql.commit()
        self._plpy.notice(
            f"watch {watch} keeps {layout.title} fresh",
            hint="ml-udf score --watch answers what is noted; the view ml_udf.watches shows how far it is",
        )
        return {"answered": 0, "failed": 0, "missed": 0}

    def _called(self, sql: _Procedure, function: str, server: str | None) -> _Called:
        if server is not None:
            return _Called(Target(server, Binding(function), needs_usage=True))
        if "(" in function:
            found = sql.rows(_BY_SIGNATURE, function)
        else:
            *schema, name = split_name(function)
            found = sql.rows(_BY_FULL_NAME if schema else _BY_PLAIN_NAME, name, *schema)
        if not found:
            raise UnknownFunction(
                f"there is no SQL function {function!r} that ml_udf.create_function made",
                hint=f"SELECT ml_udf.create_function('{function}'), or name the foreign server (server)",
            )
        if len(found) > 1:
            raise BadOption(
                f"there are several functions {function!r}",
                hint="write the one that is meant: " + " or ".join(row["signature"] for row in found),
            )
        if not found[0]["permitted"]:
            raise PostgresError("42501", f"permission denied for function {found[0]['signature']}")
        record = json.loads(found[0]["record"])
        return _Called(Target.of(record), record["returns"], found[0]["full_signature"])

    @contextlib.contextmanager
    def _shown(self, sql: _Procedure, title: str) -> Iterator[Any]:
        """Progress as application_name, in pg_stat_activity; afterwards what it was before."""
        before = self._backend.setting(b"application_name") or ""

        def show(so_far: ScoreProgress) -> None:
            share = 100 * so_far.stored // max(1, so_far.due)
            text = f"ml_udf.score_table {share}% {so_far.stored}/{so_far.due} {title}"
            sql.rows("SELECT pg_catalog.set_config('application_name', $1, false)", _cut(text))
            sql.commit()

        try:
            yield show
        finally:
            sql.rollback()  # of what failed; what was stored is committed
            sql.rows("SELECT pg_catalog.set_config('application_name', $1, false)", before)
            sql.commit()

    def _warn(self, so_far: ScoreProgress, title: str) -> None:
        if so_far.failed and so_far.first_fault is not None:
            fault = so_far.first_fault
            self._plpy.warning(
                f"{so_far.failed:,} rows of {title} could not be answered and hold their error; the first:"
                f" {fault.code}: {fault.message}",
                detail=fault.detail,
            )


class _Procedure:
    """SPI inside a procedure. Plans are kept for one call alone: their texts name the caller's tables."""

    def __init__(self, plpy: Plpy, *, batches: bool) -> None:
        """batches: whether the plan node does."""
        self.Error = plpy.SPIError
        self._plpy = plpy
        self._batches = batches
        self._plans: dict[tuple[str, tuple[str, ...]], Plan] = {}
        self._fixes_texts = False

    def rows(self, query: str, *parameters: Parameter) -> list[dict[str, Any]]:
        """The rows of a query."""
        return list(self._executed(query, parameters))

    def change(self, query: str, *parameters: Parameter) -> int:
        """How many rows a statement changed."""
        return int(self._executed(query, parameters).nrows())

    def reals(self, vectors: Sequence[array[float]]) -> Reals | None:
        """A bytea of each vector's binary format, which the plan node receives in place of `ml_udf._reals`.

        None without the node: PL/Python makes the numbers of an array one by one, which takes longer than
        their text.
        """
        if not self._batches:
            return None
        values = binary_reals(vectors)
        size = len(values) // len(vectors)
        one = f"ml_udf._reals(substring({{parameter}}::bytea FROM {{at}} * {size} + 1 FOR {size}))"
        return Reals(values, one)

    def commit(self) -> None:
        """End the transaction, keeping it. The next one is this procedure's own, with `TEXT_SETTINGS`."""
        self._plpy.commit()
        self._fixes_texts = True

    def rollback(self) -> None:
        """End the transaction, forgetting it."""
        self._plpy.rollback()
        self._fixes_texts = True

    def _executed(self, query: str, parameters: Sequence[Parameter]) -> Any:  # noqa: ANN401  # plpy's result
        if self._fixes_texts:
            self._fixes_texts = False
            self._executed(_FIX_TEXTS, ())
        types = tuple("text" if isinstance(value, str) else "bytea" for value in parameters)
        plan = self._plans.get((query, types))
        if plan is None:
            plan = self._plans[(query, types)] = self._plpy.prepare(query, list(types))
        return self._plpy.execute(plan, list(parameters))


@contextlib.contextmanager
def _alone(sql: _Procedure, store: PostgresStore) -> Iterator[None]:
    store.lock()
    try:
        yield
    finally:
        sql.rollback()
        store.unlock()


def _request(given: Mapping[str, Any], on_error: str) -> ScoreRequest:
    return ScoreRequest(
        relation=given["relation"] or "",
        function=given["function"] or "",
        input=given["input"] or "",
        output=given["output"],
        result_table=given["result_table"],
        key=tuple(names_of(given["key"], "key")),
        condition=given["condition"],
        row_limit=given["row_limit"],
        batch_rows=BATCH_ROWS if given["batch_rows"] is None else given["batch_rows"],
        on_error=given["on_error"] or on_error,
        rescore=rescore_of(given["rescore"]),
        version=given["version"],
        patience_s=PATIENCE_S if given["patience_s"] is None else given["patience_s"],
    )


def _cut(text: str) -> str:
    return text.encode()[:_NAME_BYTES].decode("utf-8", "ignore")
