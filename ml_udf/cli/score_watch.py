"""`ml-udf score --watch`: the worker that keeps the answers of all watches of a database fresh.

    main thread   listens for notes, reads which watches there are, asks for the version of their functions
    gatherer      takes what commits noted to where lanes take it (`ml_udf._gather_notes`)
    lanes         take notes, ask, store (`WatchStore.step`), each over a connection of its own
    sweeper       brings whole tables up to date (`WatchStore.sweep`): new watches, new versions

Any number of workers may run beside each other. What a worker knows can be lost at any time: notes and
answers are the database's. Every transaction runs as the watch's owner.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from ml_udf.cli.score_postgres import KEEPALIVES, Connection, lost_connection
from ml_udf.client import Client
from ml_udf.client.bulk_job import BulkJob
from ml_udf.client.statement import Binding
from ml_udf.client.transport import Abort
from ml_udf.config import Options
from ml_udf.errors import (
    AlreadyRunning,
    BadOption,
    Cancelled,
    MlUdfError,
    ReadOnly,
    UnknownFunction,
    UnknownTable,
    VersionGone,
)
from ml_udf.scoring import Asking
from ml_udf.scoring.asking import PASSING
from ml_udf.scoring.binding import bound
from ml_udf.scoring.layout import Layout
from ml_udf.scoring.postgres_catalog import TEXT_SETTINGS, Parameter, PostgresCatalog
from ml_udf.scoring.postgres_store import PostgresStore
from ml_udf.scoring.resolving import resolved
from ml_udf.scoring.texts import array_literal
from ml_udf.scoring.watch import CHANNEL, LOOK, Definition, Watch, pause_s
from ml_udf.scoring.watch_store import WatchChanged, WatchStore

__all__ = ["WatchWorker"]

_NAME = "ml-udf score --watch"
LOOK_S = 5.0  # between looks at the watches, and at the versions of their functions
LISTEN_S = 0.5  # between looks at whether to stop
POLL_S = 1.0  # between looks at the notes, where no notification comes
GATHER_S = 0.1  # between looks at new notes, which come without a notification
GATHER_SHARE = 0.1  # of the time, at most, where dead notes that cannot be vacuumed make a look long
GATHERED = 5000  # new notes that one look takes: more may be there
LINGER_S = 0.05  # before writers are asked to notify: under a load that comes in drops they need not
PATIENCE_S = 5.0  # with the server, while notes are held
RECONNECT_S = 0.5
MAX_RECONNECT_S = 10.0
BEGINS_S = 15.0  # that a database may take to come up beside its worker
_IN_THE_WAY = ("40", "55P03")  # serialization failures, deadlocks, locks: the same step again

_COMING_UP = ("starting up", "shutting down", "recovery", "not yet accepting", "terminating connection")

_ACT = "SELECT pg_catalog.set_config('role', $1, true), pg_catalog.set_config('search_path', $2, true)"

_WATCHES = """
    SELECT w.id, pg_catalog.pg_get_userbyid(w.owner) AS owner, w.definition, w.revision, w.version, w.paused,
           w.place::text AS place,
           (SELECT pg_catalog.format('%I.%I', n.nspname, c.relname) FROM pg_catalog.pg_class c
            JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = w.relation) AS relation,
           (SELECT pg_catalog.format('%I.%I', n.nspname, c.relname) FROM pg_catalog.pg_class c
            JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = w.target) AS target,
           (SELECT coalesce(pg_catalog.sum(n.size), 0)::text FROM ml_udf._note n
            WHERE n.watch = w.id AND n.attempts = 0) AS lag_rows
    FROM ml_udf._watch w WHERE w.definition ->> 'server' = $1 ORDER BY w.id"""

_SEEN = (
    "UPDATE ml_udf._watch SET seen_at = pg_catalog.clock_timestamp() WHERE id = ANY ($1::text[]::integer[])"
)

_RECORD = """
    SELECT w.record::text AS record FROM ml_udf._wrappers() w
    WHERE w.kind = 'scalar' AND w.oid = pg_catalog.to_regprocedure($1)"""

# The version that answers from now on, unless another worker has set one since this one looked.
_VERSION = """
    UPDATE ml_udf._watch SET version = $2
    WHERE id = $1::text::integer AND revision = $3::text::integer
      AND version IS NOT DISTINCT FROM nullif($4, '') AND version IS DISTINCT FROM $2 RETURNING id"""

_FAULT = """
    UPDATE ml_udf._watch SET failures = failures + 1, error = $2, error_at = pg_catalog.clock_timestamp(),
           seen_at = pg_catalog.clock_timestamp() WHERE id = $1::text::integer"""


class _Acting(Connection):
    """A connection each of whose transactions runs as the watch's owner, with the watch's search_path."""

    def __init__(self, connection: psycopg.Connection, watch: Watch) -> None:
        super().__init__(connection)
        self._as = (watch.owner, watch.definition.path)

    def _executed(self, query: str, parameters: Sequence[Parameter]) -> psycopg.RawCursor[dict[str, Any]]:
        if self._connection.info.transaction_status == TransactionStatus.IDLE:
            super()._executed(_ACT, self._as)
        return super()._executed(query, parameters)


@dataclass(slots=True, eq=False)
class _Bound:
    """A watch with all that it takes to answer its rows. Shared by the threads."""

    watch: Watch
    layout: Layout
    asking: Asking
    sweeping: Asking
    job: BulkJob
    failures: int = 0
    not_before_s: float = 0.0

    @property
    def version(self) -> str:
        """Of the function."""
        return self.asking.version

    def failed(self) -> None:
        """Let it rest, longer each time."""
        self.failures += 1
        self.not_before_s = time.monotonic() + pause_s(self.failures)


class WatchWorker:
    """One worker. `run` works until `stop` is set.

    dsn     of the database, as a role that may act as the owners of its watches
    client  of the server that answers
    server  the foreign server whose watches are answered
    lanes   how many batches are on the way at once
    say     called with a line now and then, from any thread
    """

    def __init__(
        self, dsn: str, client: Client, *, server: str, lanes: int, stop: Abort, say: Callable[[str], None]
    ) -> None:
        self._dsn = dsn
        self._client = client
        self._server = server
        self._lanes = lanes
        self._stop = stop
        self._say = say
        self._bounds: dict[int, _Bound] = {}  # replaced as a whole by the main thread
        self._woken = threading.Event()
        self._changed = threading.Event()
        self._broken: BaseException | None = None

    def run(self) -> None:
        """Raises `psycopg.Error`, `BadOption`, `ReadOnly`: it cannot be had, has no watches, is a standby."""
        self._wait_for_watches()
        tasks = [self._gather] + [self._serve_notes] * self._lanes + [self._serve_sweeps]
        threads = [
            threading.Thread(target=self._watched, args=(task,), name=f"ml_udf_watch_{at}")
            for at, task in enumerate(tasks)
        ]
        for thread in threads:
            thread.start()
        try:
            self._watched(self._listen)
        finally:
            self._stop.set()
            self._woken.set()
            for thread in threads:
                thread.join()
        if self._broken is not None:
            raise self._broken

    def _wait_for_watches(self) -> None:
        """Until the database is there, if it comes up within `BEGINS_S`."""
        ends_s, is_said = time.monotonic() + BEGINS_S, False
        while not self._stop:
            try:
                self._check_watches()
            except psycopg.Error as error:
                if not _comes_up(error) or time.monotonic() > ends_s:
                    raise
                if not is_said:
                    self._say(f"the database is awaited for {BEGINS_S:g} s: {_said(error)}")
                is_said = True
                self._stop.sleep(RECONNECT_S)
            else:
                return

    def _check_watches(self) -> None:
        with self._connection() as connection:
            found = connection.execute(
                "SELECT pg_catalog.to_regclass('ml_udf._watch') IS NOT NULL,"
                " pg_catalog.to_regprocedure('ml_udf._gather_notes()') IS NOT NULL,"
                " pg_catalog.pg_is_in_recovery()"
            ).fetchone()
            knows_watches, gathers, is_standby = found or (False, False, False)
            if is_standby:
                raise ReadOnly("this database is a standby: answers cannot be stored here")
            if not knows_watches:
                raise BadOption(
                    "this database knows no watches",
                    hint="CREATE EXTENSION ml_udf CASCADE, or ALTER EXTENSION ml_udf UPDATE; then"
                    " CALL ml_udf.score_table(…, watch => true) makes one",
                )
            if not gathers:
                raise BadOption(
                    "the extension ml_udf of this database is older than this worker",
                    hint="ALTER EXTENSION ml_udf UPDATE",
                )

    # ── threads ──────────────────────────────────────────────────────────────────────────────────

    def _watched(self, serve: Callable[[psycopg.Connection], None]) -> None:
        """`serve` with a connection, another one when that is lost. What it raises ends the worker."""
        rest_s = RECONNECT_S
        try:
            while not self._stop:
                try:
                    with self._connection() as connection:
                        rest_s = RECONNECT_S
                        serve(connection)
                except psycopg.Error as error:
                    if not lost_connection(error):
                        raise
                    self._stop.sleep(rest_s)
                    rest_s = min(2 * rest_s, MAX_RECONNECT_S)
        except Cancelled:
            pass
        except BaseException as error:
            self._broken = self._broken or error
        finally:
            self._stop.set()
            self._woken.set()

    @contextlib.contextmanager
    def _connection(self) -> Iterator[psycopg.Connection]:
        told: dict[str, Any] = {"application_name": _NAME, **KEEPALIVES}
        connection = psycopg.connect(self._dsn, **told)
        try:
            # A batch's transaction waits for the server; and nothing waits long for somebody's lock.
            connection.execute("SET idle_in_transaction_session_timeout = 0")
            connection.execute("SET statement_timeout = 0")
            connection.execute("SET lock_timeout = '2s'")
            for name, value in TEXT_SETTINGS.items():
                connection.execute(f"SET {name} = '{value}'")
            connection.commit()
            yield connection
        finally:
            connection.close()

    def _listen(self, connection: psycopg.Connection) -> None:
        connection.execute(f"LISTEN {CHANNEL}")
        connection.commit()
        look_at_s = 0.0
        while not self._stop:
            if time.monotonic() >= look_at_s or self._changed.is_set():
                self._changed.clear()
                self._look(connection)
                look_at_s = time.monotonic() + LOOK_S
            for notified in connection.notifies(timeout=LISTEN_S, stop_after=1):
                if notified.payload:
                    self._changed.set()
                self._woken.set()

    def _gather(self, connection: psycopg.Connection) -> None:
        connection.autocommit = True
        failures = 0
        while not self._stop:
            began_s = time.monotonic()
            try:
                ((gathered,),) = connection.execute("SELECT ml_udf._gather_notes()").fetchall()
            except psycopg.Error as error:
                if lost_connection(error):
                    raise
                if not (error.sqlstate or "").startswith(_IN_THE_WAY):
                    self._say(f"new notes: {_said(error)}")
                failures += 1
                self._stop.sleep(pause_s(failures))
                continue
            failures = 0
            if gathered:
                self._woken.set()
            if gathered < GATHERED:
                took_s = time.monotonic() - began_s
                self._stop.sleep(max(GATHER_S, took_s / GATHER_SHARE))

    def _serve_notes(self, connection: psycopg.Connection) -> None:
        stores = _Stores(connection)
        asked_to_notify = False
        while not self._stop:
            busy = False
            for bound_ in list(self._bounds.values()):
                busy |= self._tried(connection, bound_, lambda b: stores.of(b).step(b.asking, self._stop))
            if busy:
                asked_to_notify = False
            elif not asked_to_notify:
                self._rest(LINGER_S)
                for bound_ in list(self._bounds.values()):
                    self._tried(connection, bound_, lambda b: stores.of(b).wait())
                asked_to_notify = True
            else:
                self._rest(POLL_S)

    def _serve_sweeps(self, connection: psycopg.Connection) -> None:
        stores = _Stores(connection)
        while not self._stop:
            for bound_ in list(self._bounds.values()):
                self._tried(connection, bound_, lambda b: self._swept(stores.of(b), b))
            self._stop.sleep(POLL_S)

    def _rest(self, seconds: float) -> None:
        if self._woken.wait(seconds) and not self._stop:
            self._woken.clear()

    # ── one watch ────────────────────────────────────────────────────────────────────────────────

    def _tried(
        self, connection: psycopg.Connection, bound_: _Bound, what: Callable[[_Bound], bool | None]
    ) -> bool:
        """Do one thing for a watch; its faults are its own, and shown. Whether there was something to do."""
        if self._stop or time.monotonic() < bound_.not_before_s:
            return False
        try:
            did = bool(what(bound_))
        except WatchChanged:
            connection.rollback()
            self._changed.set()
            self._stop.sleep(LINGER_S)
            return False
        except AlreadyRunning:
            connection.rollback()
            return False
        except psycopg.Error as error:
            if lost_connection(error):
                raise
            connection.rollback()
            if (error.sqlstate or "").startswith(_IN_THE_WAY):
                self._stop.sleep(LINGER_S)
                return True
            self._keep_fault(connection, bound_, _said(error))
            return False
        except Cancelled:
            connection.rollback()
            return False
        except MlUdfError as error:
            connection.rollback()
            if isinstance(error, VersionGone):
                self._changed.set()
            self._keep_fault(connection, bound_, _said(error))
            return False
        if did:
            bound_.failures = 0
        return did

    def _swept(self, store: WatchStore, bound_: _Bound) -> None:
        wanted = store.wants_sweep()
        if wanted is None:
            return

        def check() -> None:
            if self._stop:
                raise Cancelled("the worker ends")
            if self._bounds.get(bound_.watch.id) is not bound_:
                raise WatchChanged

        store.sweep(bound_.sweeping, wanted, check)
        self._woken.set()

    def _keep_fault(self, connection: psycopg.Connection, bound_: _Bound, text: str) -> None:
        bound_.failed()
        self._say(f"watch {bound_.watch.id} ({bound_.layout.title}): {text}")
        try:
            WatchStore(
                _Acting(connection, bound_.watch), bound_.watch, bound_.layout, bound_.version
            ).keep_fault(text)
        except psycopg.Error as error:  # it is said above
            if lost_connection(error):
                raise
            connection.rollback()

    # ── which watches there are ──────────────────────────────────────────────────────────────────

    def _look(self, connection: psycopg.Connection) -> None:
        sql = Connection(connection)
        rows = sql.rows(_WATCHES, self._server)
        sql.commit()
        found: dict[int, _Bound] = {}
        for row in rows:
            if row["paused"]:
                continue
            before = self._bounds.get(row["id"])
            watch = None
            try:
                watch = _watch_of(row)
                found[watch.id] = self._bind(connection, watch, before)
            except WatchChanged:
                connection.rollback()
                self._changed.set()
            except (MlUdfError, psycopg.Error) as error:
                if isinstance(error, psycopg.Error) and lost_connection(error):
                    raise
                connection.rollback()
                if isinstance(error, PASSING) and before is not None and before.watch == watch:
                    found[before.watch.id] = before
                self._unbound(sql, row["id"], error)
        for row in rows:
            if (bound_ := found.get(row["id"])) is not None:
                bound_.job.lag_rows = int(row["lag_rows"])
        for watch_id in found.keys() - self._bounds.keys():
            self._say(f"watch {watch_id}: {found[watch_id].layout.title}")
        self._bounds = found
        if found:
            sql.change(_SEEN, array_literal([str(watch_id) for watch_id in found]))
            sql.commit()
            self._woken.set()

    def _bind(self, connection: psycopg.Connection, watch: Watch, before: _Bound | None) -> _Bound:
        sql = _Acting(connection, watch)
        made_for = watch.definition
        if watch.relation is None or watch.target is None:
            raise UnknownTable("its table is gone", hint=f"SELECT ml_udf.drop_watch({watch.id})")
        self._check_function(sql, made_for)
        info = self._client.look_up(
            made_for.binding.function,
            version=made_for.version,
            input_name=made_for.binding.input_name,
            output_name=made_for.binding.output_name,
        )
        if info.version != watch.version:
            given = (str(watch.id), info.version, str(watch.revision), watch.version or "")
            if not sql.rows(_VERSION, *given):
                raise WatchChanged
            if watch.version is not None and "version" in made_for.rescore:
                sql.change(LOOK, str(watch.id))
            sql.commit()
            watch = replace(watch, version=info.version)
        layout = resolved(PostgresCatalog(sql), watch.request, info)
        if before is not None and (before.watch, before.layout) == (watch, layout):
            sql.commit()
            return before
        PostgresStore(sql, layout, info.version).check_values(info)
        sql.commit()
        how = bound(made_for.binding, info, layout.input.kind)
        options = replace(Options().overridden(made_for.options), row_class="bulk")

        # One id for good, whichever worker asks: what it was told holds for the next one too.
        digest = hashlib.sha256(f"{connection.info.dbname}\0{watch.id}".encode()).hexdigest()[:12]
        job = BulkJob(f"watch-{digest}", "watch", layout.title)

        def asking(patience: float) -> Asking:
            return Asking(
                self._client,
                how,
                info.version,
                options,
                patience_s=patience,
                keeps_faults=False,
                job=job,
                column=layout.value_type,
            )

        return _Bound(watch, layout, asking(PATIENCE_S), asking(PATIENCE_S), job)

    def _check_function(self, sql: Connection, made_for: Definition) -> None:
        """That the SQL function still is the one that the watch was made with."""
        if made_for.signature is None:
            return
        found = sql.rows(_RECORD, made_for.signature)
        again = "call score_table again to change the watch"
        if not found:
            raise UnknownFunction(f"the SQL function {made_for.signature} is gone", hint=again)
        record = json.loads(found[0]["record"])
        asked = Binding(record["function"], record.get("input_name"), record.get("output_name"))
        if (record["server"], asked) != (made_for.server, made_for.binding):
            raise UnknownFunction(f"{made_for.signature} stands for another function now", hint=again)

    def _unbound(self, sql: Connection, watch: int, error: Exception) -> None:
        text = _said(error)
        self._say(f"watch {watch}: {text}")
        sql.change(_FAULT, str(watch), text)
        sql.commit()


class _Stores:
    """The stores of one connection, one for each watch."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection
        self._made: dict[int, tuple[_Bound, WatchStore]] = {}

    def of(self, bound_: _Bound) -> WatchStore:
        """The store of a watch as it is bound now."""
        found = self._made.get(bound_.watch.id)
        if found is None or found[0] is not bound_:
            acting = _Acting(self._connection, bound_.watch)
            found = (bound_, WatchStore(acting, bound_.watch, bound_.layout, bound_.version))
            self._made[bound_.watch.id] = found
        return found[1]


def _comes_up(error: psycopg.Error) -> bool:
    """Whether the database may be there in a moment. It refuses whom it knows not by a FATAL, too."""
    text = str(error)
    return lost_connection(error) and ("FATAL" not in text or any(word in text for word in _COMING_UP))


def _said(error: Exception) -> str:
    """In one line."""
    return f"{error.code}: {error.message}" if isinstance(error, MlUdfError) else str(error).splitlines()[0]


def _watch_of(row: Mapping[str, Any]) -> Watch:
    return Watch(
        id=row["id"],
        owner=row["owner"],
        relation=row["relation"],
        target=row["target"],
        place=row["place"],
        definition=Definition.of_json(row["definition"]),
        revision=row["revision"],
        version=row["version"],
        paused=row["paused"],
    )
