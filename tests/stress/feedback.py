"""`python -m tests.stress.feedback`: a million labels in one statement, while server and client are killed.

Of each engine in turn one statement labels that many rows (labelled_rows.py). Meanwhile the server is killed
and started again, and the statement is cancelled, or its process killed, at random; it is then asked again,
until it comes to its end. What had counted when it was cancelled has a label each. Afterwards every input has
counted once and has its last label, what is kept is within its bounds, and neither side has taken more memory
than for a part of the rows.

Writes bench-results/stress_feedback.json; ends with 1 if any of this is not so.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO

from ml_udf.cli.pg_sandbox import Sandbox, sandbox
from ml_udf.cli.pg_server import PostgresServer
from ml_udf.client import Client
from ml_udf.errors import MlUdfError
from server.ensemble.fit import Fit, SubsetFit
from tests.benchmarks.report import console, write_json
from tests.inference_server import InferenceServer, inference_server
from tests.models import CLASSES, text_model
from tests.stress.feedback_statement import CANCELLED, most_bytes
from tests.stress.labelled_rows import faulty, kept

__all__ = ["FeedbackOutcome", "give_under_fire", "served"]

MEMBERS = ("text_one", "text_other")
FIT = Fit(
    MEMBERS,
    (1.0, 1.0),
    (
        SubsetFit((0,), (1.0,), 0.5, 1.0),
        SubsetFit((1,), (1.0,), 0.5, 1.0),
        SubsetFit((0, 1), (0.7, 0.7), 0.5, 1.0),
    ),
    100,
    len(CLASSES),
)
MiB = 1 << 20
_PATIENCE_S = 3600.0


@dataclass
class FeedbackOutcome:
    """What one engine's statement came to."""

    engine: str
    rows: int
    server_kills: int = 0
    client_kills: int = 0
    cancels: int = 0
    counted_at_cancels: list[int] = field(default_factory=list)
    tries: int = 0
    elapsed_s: float = 0.0
    last_try_s: float = 0.0
    outcomes: dict[str, int] = field(default_factory=dict)  # of the try that came to its end
    counted: int = 0  # inputs, as the server says
    wrong: list[str] = field(default_factory=list)
    client_bytes: int = 0
    backend_bytes: int = 0
    server_bytes: int = 0
    registry_bytes: int = 0


def served(server: InferenceServer, made: Path) -> None:
    """Deploy `udf_dish`, which learns."""
    for seed, name in enumerate(MEMBERS):
        server.deploy(text_model(made, name, seed=seed))
    client = Client(server.url)
    client.put("/v1/functions/udf_dish", {"models": list(MEMBERS), "combine": "log_pool"})
    client.close()
    server.keep_fit(FIT.to_json())


def give_under_fire(
    engine: str,
    where: str,
    server: InferenceServer,
    rows: int,
    *,
    kills: int,
    cancels: int = 0,
    seed: int = 1,
) -> FeedbackOutcome:
    """One statement of so many rows, while the server and the statement are each killed `kills` times.

    where: the URL of the server for DuckDB, the cluster's DSN for PostgreSQL. cancels: how many times the
    statement is cancelled before.
    """
    outcome = FeedbackOutcome(engine, rows)
    source = random.Random(f"{engine} {seed}")
    began_s = time.monotonic()
    # Where the kills come: after so many inputs have counted.
    inputs = len(kept(rows))
    marks = sorted(source.randrange(inputs // 20, inputs) for _ in range(2 * kills + cancels))
    victims = ["cancel"] * cancels + ["server", "client"] * kills
    while True:
        outcome.tries += 1
        try_s, kills_before = time.monotonic(), outcome.server_kills
        # Files: nobody reads a pipe while it runs, and one that is full would hold it up.
        with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as complained:
            statement = subprocess.Popen(
                [sys.executable, "-m", "tests.stress.feedback_statement", engine, where, str(rows)],
                stdin=subprocess.PIPE,
                stdout=said,
                stderr=complained,
            )
            try:
                _watch(statement, server, outcome, marks, victims)
                statement.wait(timeout=60)
            finally:
                statement.kill()
                statement.wait()
            told, complaint = _all_of(said), _all_of(complained)
        outcome.last_try_s = time.monotonic() - try_s
        if statement.returncode == 0:
            break
        if statement.returncode == CANCELLED:
            outcome.wrong += _half_counted(server, outcome)
            continue
        # A server that is gone for longer than clients try again ends the statement.
        if statement.returncode != -signal.SIGKILL and outcome.server_kills == kills_before:
            outcome.wrong.append(f"the statement failed: {complaint.decode()[-2000:]}")
            break
        _await_ended(engine, where)
    outcome.elapsed_s = time.monotonic() - began_s
    if statement.returncode == 0:
        found = json.loads(told)
        outcome.outcomes = found["outcomes"]
        outcome.client_bytes, outcome.backend_bytes = found["client_bytes"], found["backend_bytes"]
        outcome.wrong += _wrong(server, rows, outcome.outcomes)
    outcome.counted = _counted(server)
    outcome.server_bytes = max(outcome.server_bytes, most_bytes(server.pid))
    outcome.registry_bytes = sum(path.stat().st_size for path in server.home.glob("registry.db*"))
    return outcome


def _all_of(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


def _watch(
    statement: subprocess.Popen[bytes],
    server: InferenceServer,
    outcome: FeedbackOutcome,
    marks: list[int],
    victims: list[str],
) -> None:
    """Until it ends: say how far it is, and kill where a mark is passed."""
    ends_s, told_s = time.monotonic() + _PATIENCE_S, time.monotonic()
    while statement.poll() is None:
        if time.monotonic() > ends_s:
            raise TimeoutError(f"the statement did not end within {_PATIENCE_S:g} s")
        time.sleep(0.1)
        counted = _counted(server)
        if time.monotonic() - told_s > 10:
            told_s = time.monotonic()
            console.print(f"{outcome.engine}: {counted:,} inputs counted, try {outcome.tries}")
        if marks and counted >= marks[0]:
            marks.pop(0)
            victim = victims.pop(0)
            if victim == "cancel":
                assert statement.stdin is not None, "it is a pipe"
                statement.stdin.write(b"cancel\n")
                statement.stdin.flush()
                outcome.cancels += 1
                return
            if victim == "client":
                statement.kill()
                outcome.client_kills += 1
                return
            outcome.server_bytes = max(outcome.server_bytes, most_bytes(server.pid))
            os.kill(server.pid, signal.SIGKILL)
            server.wait()
            server.start()
            outcome.server_kills += 1


def _counted(server: InferenceServer) -> int:
    client = Client(server.url)
    try:
        return int((client.get("/v1/functions/udf_dish")["feedback"] or {"rows": 0})["rows"])
    except MlUdfError:
        return 0
    finally:
        client.close()


def _half_counted(server: InferenceServer, outcome: FeedbackOutcome) -> list[str]:
    """What is not as it should be once a statement was cancelled: labels that are kept, and did not count, or
    the other way. Requests under way when it was cancelled may still come to their end.
    """
    kept_now = -1
    while kept_now != (kept_now := _kept(server)):
        time.sleep(1)
    counted = _counted(server)
    outcome.counted_at_cancels.append(counted)
    return [] if counted == kept_now else [f"cancelled: {counted} inputs counted, and {kept_now} are kept"]


def _kept(server: InferenceServer) -> int:
    with contextlib.closing(sqlite3.connect(server.home / "registry.db")) as registry:
        return int(registry.execute("SELECT count(*) FROM feedback").fetchone()[0])


def _await_ended(engine: str, where: str) -> None:
    """The backend of a client that was killed goes on until it notices; two at once would have no order."""
    if engine == "duckdb":
        return
    import psycopg

    with psycopg.connect(where, autocommit=True) as con:
        con.execute(
            "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity"
            " WHERE pid <> pg_backend_pid() AND query LIKE '%udf_dish%'"
        )


def _wrong(server: InferenceServer, rows: int, outcomes: dict[str, int]) -> list[str]:
    """What is not as it should be."""
    wrong: list[str] = []
    expected = kept(rows)
    if _counted(server) != len(expected):
        wrong.append(f"{_counted(server)} inputs counted, and there are {len(expected)}")
    if sum(outcomes.values()) != rows or outcomes.get("None", 0) != faulty(rows):
        wrong.append(f"outcomes of {rows} rows, {faulty(rows)} of them without: {outcomes}")
    with contextlib.closing(sqlite3.connect(server.home / "registry.db")) as registry:
        found = dict(registry.execute("SELECT digest, label FROM feedback").fetchall())
        answers = registry.execute("SELECT count(*) FROM feedback_answers").fetchone()[0]
    if answers > 100_000:
        wrong.append(f"{answers} rows of answers are kept")
    digests = {
        hashlib.sha256(b"text\0" + each.encode()).hexdigest(): label for each, label in expected.items()
    }
    if found.keys() != digests.keys():
        wrong.append(
            f"{len(found.keys() ^ digests.keys())} inputs are kept that should not be, or the other way"
        )
    others = sum(found.get(digest) != label for digest, label in digests.items())
    if others:
        wrong.append(f"{others} inputs have another label than the last")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.stress.feedback", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--cancels", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", choices=["duckdb", "postgres", "both"], default="both")
    flags = parser.parse_args()
    found: list[FeedbackOutcome] = []
    for engine in ("duckdb", "postgres") if flags.engine == "both" else (flags.engine,):
        with contextlib.ExitStack() as stack:
            home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ml_udf_feedback_")))
            server = stack.enter_context(inference_server(home / "home"))
            served(server, home / "made")
            where = server.url
            if engine == "postgres":
                cluster = stack.enter_context(sandbox(PostgresServer.find(), batching=True, local=False))
                where = dsn_with_server(cluster, server.url)
            one = give_under_fire(
                engine,
                where,
                server,
                flags.rows,
                kills=flags.kills,
                cancels=flags.cancels,
                seed=flags.seed,
            )
        found.append(one)
        console.print(
            f"{engine}: {one.rows:,} rows in {one.elapsed_s:,.0f} s ({one.rows / one.elapsed_s:,.0f} rows/s,"
            f" the last try alone {one.rows / one.last_try_s:,.0f}), {one.server_kills} servers and"
            f" {one.client_kills} clients killed, {one.cancels} times cancelled;"
            f" most memory: server {one.server_bytes // MiB} MiB, client"
            f" {one.client_bytes // MiB}, backend {one.backend_bytes // MiB}; registry"
            f" {one.registry_bytes // MiB} MiB; {one.wrong or 'all as it should be'}"
        )
    write_json("stress_feedback", {"engines": [asdict(each) for each in found]})
    return 1 if any(each.wrong for each in found) else 0


def dsn_with_server(cluster: Sandbox, url: str) -> str:
    """A database of the cluster with the extension, and our server in it."""
    cluster.sql("CREATE DATABASE stress")
    cluster.sql("SET client_min_messages = warning; CREATE EXTENSION ml_udf CASCADE", "stress")
    cluster.sql(f"CREATE SERVER ml_udf FOREIGN DATA WRAPPER ml_udf OPTIONS (url '{url}')", "stress")
    return cluster.dsn("stress")


if __name__ == "__main__":
    sys.exit(main())
