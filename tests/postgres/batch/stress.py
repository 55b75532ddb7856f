"""`python -m tests.postgres.batch.stress`: statements stopped at random moments while workers die.

Several sessions run batched statements of known answers. A share of them is stopped at a random moment,
by a cancel, by statement_timeout or by pg_terminate_backend, and all the while random inference workers are
killed. Afterwards no row was wrong, no backend crashed, the cluster never restarted, nothing waits in the
server, and the backends that lived through it hold no more memory, threads or sockets than at the start.

Writes bench-results/plan_node_stress.json; ends with 1 if any of this is not so.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import signal
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

from ml_udf.cli.pg_sandbox import Sandbox, sandbox
from ml_udf.cli.pg_server import PostgresServer
from tests.benchmarks.report import console, write_json
from tests.inference_server import ANEW, InferenceServer, inference_server
from tests.models import hashing_model
from tests.postgres.batch.stress_outcome import STOPS, Held, Outcome
from tests.postgres.batch.stress_statements import FUNCTION, SCHEMA, Statement, random_statement

__all__ = ["Stress", "stressed"]

DATABASE = "stress"
CODES = {"cancel": "57014", "timeout": "57014", "terminate": "57P01"}
WORKER_LOST = "58000"  # the documented answer where two workers died under the same rows
CRASHED = re.compile(r"terminated by signal|PANIC:|TRAP:|server closed the connection|all server processes")
EMPTY_WITHIN_S = 2.0
RECOVERED_WITHIN_S = 30.0


class Stress:
    """Sessions, stops and kills against one cluster and one server, until enough of both have happened."""

    def __init__(
        self, cluster: Sandbox, server: InferenceServer, *, stops: int, kills: int, seed: int
    ) -> None:
        self._cluster = cluster
        self._server = server
        self._stops = stops
        self._kills = kills
        self._seed = seed
        self._lock = threading.Lock()
        self._typical_s: dict[str, float] = {}
        self.outcome = Outcome()

    def run(self, sessions: int, *, kill_every_s: float) -> Outcome:
        """Run to the end and look at what is left."""
        began_s = time.monotonic()
        began = self._cluster.sql("SELECT pg_postmaster_start_time()")
        self.outcome.held = [[] for _ in range(sessions)]
        threads = [threading.Thread(target=self._session, args=(n,)) for n in range(sessions)]
        threads.append(threading.Thread(target=self._kill_workers, args=(kill_every_s,)))
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(10)
                self._tell()
        outcome = self.outcome
        outcome.queue_empty_after_s = self._empty_after_s()
        outcome.restarted = self._cluster.sql("SELECT pg_postmaster_start_time()") != began
        outcome.crashes = [line for line in self._cluster.log().splitlines() if CRASHED.search(line)]
        others = "datname = 'stress' AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        outcome.left_behind = _gone(self._cluster, f"SELECT count(*) FROM pg_stat_activity WHERE {others}")
        outcome.elapsed_s = time.monotonic() - began_s
        return outcome

    def _tell(self) -> None:
        now = self.outcome
        console.print(
            f"{sum(now.statements.values()):,} statements, {sum(now.stopped.values()):,} stopped,"
            f" {now.kills} workers killed, {len(now.wrong)} wrong"
        )

    def _enough(self) -> bool:
        stopped = sum(self.outcome.stopped.values())
        return bool(self.outcome.wrong) or (stopped >= self._stops and self.outcome.kills >= self._kills)

    def _kill_workers(self, every_s: float) -> None:
        source = random.Random(f"kills {self._seed}")
        while self.outcome.kills < self._kills and not self.outcome.wrong:
            time.sleep(source.uniform(0, 2 * every_s))
            alive = self._server.worker_pids()
            # Never all of them: a server whose workers all died a minute ago answers that, and rightly so.
            if len(alive) > 1:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(source.choice(alive), signal.SIGKILL)
                    self.outcome.kills += 1

    def _session(self, number: int) -> None:
        """Statements one after the other; every second session may be terminated, the others are weighed."""
        source = random.Random(f"session {number} {self._seed}")
        ways = STOPS if number % 2 else STOPS[:2]
        connection = self._connect()
        try:
            while not self._enough():
                statement = random_statement(source)
                how = source.choice(ways) if source.random() < 0.8 else None
                self._one(connection, statement, how, source.uniform(0.0, 1.2))
                if connection.closed:
                    connection = self._connect()
                elif number % 2 == 0:
                    self.outcome.held[number].append(Held.by(connection.info.backend_pid))
        except Exception as error:
            self._wrong(f"session {number} broke: {type(error).__name__}: {error}")
        finally:
            connection.close()

    def _connect(self) -> psycopg.Connection:
        connection = psycopg.connect(self._cluster.dsn(DATABASE), autocommit=True)
        connection.prepare_threshold = None
        # So that at these few rows batches follow each other, and requests too.
        # PostgreSQL keeps buffers of temporary tables for good, up to 8 MB: not what is weighed here.
        connection.execute("SET ml_udf.gather_rows = 512; SET temp_buffers = '800kB'")
        return connection

    def _one(
        self, connection: psycopg.Connection, statement: Statement, how: str | None, moment: float
    ) -> None:
        """Run a statement and stop it, `moment` being a share of the time that its kind takes."""
        after_s = moment * self._typical_s.get(statement.kind, 0.1)
        due_s = [time.monotonic() + after_s]
        error = ""
        rows: list[Any] = []
        with self._stopping(connection, how, after_s, due_s):
            began_s = time.monotonic()
            try:
                rows = _run(connection, statement)
            except psycopg.Error as caught:
                error = caught.sqlstate or f"{type(caught).__name__}: {caught}"
            ended_s = time.monotonic()
        self._recover(connection)
        with self._lock:
            self.outcome.statements[statement.kind] += 1
            # A backend that was idle then says why it goes, but the client may not get to read it.
            cut_off = how == "terminate" and "server closed the connection" in error
            if how is not None and (cut_off or error == CODES[how]):
                self.outcome.stopped[how] += 1
                self.outcome.late_ms[how].append((ended_s - due_s[0]) * 1e3)
            elif error == WORKER_LOST:
                self.outcome.lost += 1
            elif error:
                self._wrong(f"{statement.kind}, stopped by {how}: {error}")
            elif told := _told(rows, how):
                self.outcome.told += 1
                if not set(rows) - told < set(statement.expected):
                    self._wrong(f"{statement.texts} answered wrongly beside {len(told)} errors")
            elif sorted(rows) != statement.expected:
                odd = sorted(set(rows) ^ set(statement.expected))[:6]
                self._wrong(f"{statement.texts} answered wrongly, such as {odd}")
            else:
                typical_s = self._typical_s.get(statement.kind, ended_s - began_s)
                self._typical_s[statement.kind] = 0.8 * typical_s + 0.2 * (ended_s - began_s)

    @contextlib.contextmanager
    def _stopping(
        self, connection: psycopg.Connection, how: str | None, after_s: float, due_s: list[float]
    ) -> Iterator[None]:
        """Stop what runs in the block after a while; `due_s` then holds when it was asked to end."""
        if how is None:
            yield
            return
        if how == "timeout":
            # For each statement of several: the last one began last.
            connection.execute(f"SET statement_timeout = {max(1, round(after_s * 1e3))}".encode())
            due_s[0] = time.monotonic() + after_s
            yield
            return
        pid = connection.info.backend_pid

        def stop() -> None:
            due_s[0] = time.monotonic()
            if how == "cancel":
                connection.cancel()
            else:
                with psycopg.connect(self._cluster.dsn()) as operator:
                    due_s[0] = time.monotonic()
                    operator.execute("SELECT pg_terminate_backend(%s)", [pid])

        timer = threading.Timer(after_s, stop)
        timer.start()
        try:
            yield
        finally:
            timer.join()

    def _recover(self, connection: psycopg.Connection) -> None:
        """Take a stop that came late, and end the transaction."""
        end_s = time.monotonic() + RECOVERED_WITHIN_S
        for text in ("SELECT 1", "ROLLBACK", "SET statement_timeout = 0"):
            while True:
                try:
                    connection.execute(text.encode())
                    break
                except psycopg.errors.InFailedSqlTransaction:
                    break
                except psycopg.errors.QueryCanceled:  # on a busy machine 1 ms is short for SET itself
                    if time.monotonic() > end_s:
                        raise
                except psycopg.OperationalError:
                    connection.close()
                    return

    def _wrong(self, what: str) -> None:
        self.outcome.wrong.append(what)
        console.print(f"[red]WRONG[/] {what}")

    def _empty_after_s(self) -> float | None:
        """How long rows went on waiting in the server; None: they still do."""
        began_s = time.monotonic()
        while time.monotonic() - began_s < EMPTY_WITHIN_S:
            if waiting_rows(self._server) == 0:
                return time.monotonic() - began_s
            time.sleep(0.01)
        return None


def waiting_rows(server: InferenceServer) -> float:
    """Rows in the server's queues, by its own metrics."""
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=10) as reply:
        lines = reply.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("ml_udf_queue_rows{"))


def _run(connection: psycopg.Connection, statement: Statement) -> list[Any]:
    rows: list[Any] = []
    several = len(statement.texts) > 1
    for text in ("BEGIN", *statement.texts, "COMMIT") if several else statement.texts:
        cursor = connection.execute(text.encode())
        if cursor.description:
            rows += cursor.fetchall()
    return rows


def _told(rows: list[Any], how: str | None) -> set[Any]:
    """The rows of try_predict that tell of workers that died under them twice, or of the coming timeout."""
    codes = ("worker_lost:", "deadline_exceeded:") if how == "timeout" else ("worker_lost:",)
    return {row for row in rows if isinstance(row[-1], str) and row[-1].startswith(codes)}


def _gone(cluster: Sandbox, query: str) -> int:
    """The count that a query gives, once it had time to become 0."""
    count = -1
    end_s = time.monotonic() + 5
    while count and time.monotonic() < end_s:
        count = int(cluster.sql(query))
        time.sleep(0.05)
    return count


@contextlib.contextmanager
def stressed(server: PostgresServer, *, workers: int) -> Iterator[tuple[Sandbox, InferenceServer]]:
    """A cluster with the module and a database, and an inference server of a model that takes its time."""
    with contextlib.ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ml_udf-stress-")))
        model = hashing_model(work / "made", "stress_hash", delay_ms=4, row_delay_ms=0.1)
        inference = stack.enter_context(inference_server(work / "home", flags=[ANEW, f"--workers={workers}"]))
        inference.deploy(model, FUNCTION)
        cluster = stack.enter_context(sandbox(server, batching=True, local=False))
        cluster.database(DATABASE, url=inference.url, functions=[FUNCTION])
        cluster.sql(SCHEMA, DATABASE)
        yield cluster, inference


def main() -> int:
    parser = argparse.ArgumentParser(description="Random stops and dying workers under the plan node.")
    parser.add_argument("--stops", type=int, default=1_000)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--sessions", type=int, default=4)
    parser.add_argument("--workers", type=int, default=16, help="a killed one takes up to 30 s to return")
    parser.add_argument("--kill-every-s", type=float, default=2.5, help="on average")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pg-config", type=Path)
    options = parser.parse_args()

    server = PostgresServer.find(options.pg_config)
    with stressed(server, workers=options.workers) as (cluster, inference):
        stress = Stress(cluster, inference, stops=options.stops, kills=options.kills, seed=options.seed)
        outcome = stress.run(options.sessions, kill_every_s=options.kill_every_s)
    complaints = outcome.complaints()
    write_json(
        "plan_node_stress",
        {
            "postgresql": server.version,
            "sessions": options.sessions,
            "workers": options.workers,
            "seed": options.seed,
            **outcome.record(),
            "complaints": complaints,
        },
    )
    console.print("\n".join(complaints) or "nothing to complain about")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
