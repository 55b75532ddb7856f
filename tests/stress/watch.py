"""`python -m tests.stress.watch`: eight sessions write a watched table while all that answers it dies.

The sessions insert, change the input, change another column, and delete. Meanwhile a worker of the inference
server, that server, the database (stopped at once, without a checkpoint) or one of two watchers is killed at
random, and twice a new version of the function is deployed. Every input is another text, and the server
keeps no answers, so what it computes can be counted.

Then everything lives again. Once nothing is noted any more,
    every row has the answer of its present input by the present version, and no answer stands for no row;
    the model has computed each input once a version, but for what kills had asked anew;
and after that other columns alone are changed, while watchers and the database are killed: nothing is
computed at all. The lag that `ml_udf.watches` showed meanwhile is stated.

Writes bench-results/stress_watch.json; ends with 1 if anything is not as it should be.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import psycopg

from ml_udf.cli.pg_sandbox import Sandbox, sandbox
from ml_udf.cli.pg_server import PostgresServer
from ml_udf.errors import MlUdfError
from tests.benchmarks.report import console, write_json
from tests.inference_server import ANEW, InferenceServer, inference_server
from tests.models import CLASSES, label_of, write_manifest
from tests.waiting import wait_until

__all__ = ["Plan", "WatchOutcome", "watched_under_fire"]

FUNCTION = "udf_dish"
WRITERS = 8
WATCHERS = 2
_REST_S = 0.02
FRESH_S = 600.0  # within which everything is to be answered once nothing is killed any more
ASKED_AGAIN = (
    10_240  # rows that a kill may have on the way: two lanes and a sweep of three pages, of two watchers
)
_CHANGES = ("insert", "insert", "insert", "input", "other", "other", "delete")
_ROWS = (1, 1, 1, 1, 5, 20, 100)
_VICTIMS = ("worker", "worker", "server", "database", "watcher", "watcher")
_TABLE = """
    CREATE TABLE foodlog (id bigint PRIMARY KEY, dish text, other integer NOT NULL DEFAULT 0)"""
_WATCH = f"CALL ml_udf.score_table('foodlog', '{FUNCTION}', 'dish', result_table => 'dishes', watch => true)"


@dataclass(frozen=True)
class Plan:
    """How much is written, for how long, and how often something is killed."""

    rows: int = 100_000  # that are inserted
    seconds: float = 600.0
    kill_every_s: float = 8.0
    quiet_s: float = 30.0  # of other columns alone
    deployments: int = 2
    seed: int = 1


@dataclass
class WatchOutcome:
    """What was written, killed, computed; and what of it is not as it should be."""

    written: Counter[str] = field(default_factory=Counter)  # rows, by what was done to them
    failed_statements: int = 0  # whose session lost its connection, or its race with another one
    kills: Counter[str] = field(default_factory=Counter)
    deployments: int = 0
    inputs: int = 0  # different texts that were sent to the database
    computed: int = 0
    most_computed: int = 0  # each input once a version, and what kills asked anew
    computed_for_other_columns: int = 0
    other_changes_alone: int = 0  # rows changed by then
    lag_rows: list[int] = field(default_factory=list)  # as the view showed it, once a second
    lag_s: list[float] = field(default_factory=list)
    fresh_after_s: float = 0.0  # since the last write
    rows_left: int = 0
    wrong: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """All of it; `asdict` makes no copy of a Counter."""
        counted = {"written": dict(self.written), "kills": dict(self.kills)}
        return asdict(replace(self, written=Counter(), kills=Counter())) | counted

    def show(self) -> None:
        console.print(
            f"{dict(self.written)} rows written, {self.failed_statements} statements failed; killed"
            f" {dict(self.kills)}; {self.deployments} new versions\n"
            f"{self.inputs:,} inputs, {self.computed:,} computed (at most {self.most_computed:,}); for"
            f" {self.other_changes_alone:,} changes of other columns {self.computed_for_other_columns}\n"
            f"lag: median {statistics.median(self.lag_s or [0]):.1f} s, at most"
            f" {max(self.lag_s, default=0):.1f} s, {max(self.lag_rows, default=0):,} rows; fresh"
            f" {self.fresh_after_s:.1f} s after the last write;"
            f" {self.rows_left:,} rows left; {self.wrong or 'all as it should be'}",
            soft_wrap=True,
        )


class Computed:
    """How many rows the model has computed, over all lives of its server and all versions."""

    def __init__(self, server: InferenceServer) -> None:
        self._server = server
        self._life = 0
        self._rows: dict[tuple[int, str], int] = {}  # by life and version

    def total(self) -> int:
        """Now; the server has to be there."""
        with self._server.client() as client:
            stats = client.get(f"/v2/models/{FUNCTION}/stats")["model_stats"]
        self._rows |= {(self._life, each["version"]): int(each["inference_count"]) for each in stats}
        return sum(self._rows.values())

    def ends_a_life(self) -> None:
        """The server is about to be killed."""
        with contextlib.suppress(MlUdfError):
            self.total()
        self._life += 1


class Writer:
    """One session, which writes its share and connects again where it must."""

    def __init__(
        self, dsn: str, number: int, plan: Plan, outcome: WatchOutcome, lock: threading.Lock
    ) -> None:
        self._dsn, self._number, self._plan = dsn, number, plan
        self._outcome, self._lock = outcome, lock
        self._dice = random.Random(f"{plan.seed} writer {number}")
        self._texts = 0
        self._rows = 0
        self._con: psycopg.Connection | None = None

    def write(self) -> None:
        """Until its share of the rows is inserted, spread over the time of the plan."""
        share = self._plan.rows // WRITERS
        began_s = time.monotonic()
        while self._rows < share:
            self._do(self._dice.choice(_CHANGES))
            due_s = self._plan.seconds * self._rows / share
            time.sleep(max(0.0, min(1.0, began_s + due_s - time.monotonic())))
        self._close()

    def knows(self, rows: int) -> None:
        """How many rows its session has inserted before."""
        self._rows = rows

    def change_others(self, ends_s: float) -> None:
        """Other columns alone, until then."""
        while time.monotonic() < ends_s:
            self._do("other")
            time.sleep(_REST_S)
        self._close()

    def _do(self, what: str) -> None:
        count = self._dice.choice(_ROWS)
        statement, parameters = self._statement(what, count)
        try:
            if self._con is None:
                self._con = psycopg.connect(self._dsn, autocommit=True, connect_timeout=5)
            changed = self._con.execute(statement, parameters).rowcount
        except psycopg.Error:
            self._close()
            changed = 0
            with self._lock:
                self._outcome.failed_statements += 1
            time.sleep(0.1)
        with self._lock:
            self._outcome.written[what] += changed
        if what == "insert":
            self._rows += count

    def _statement(self, what: str, count: int) -> tuple[str, list[int | str]]:
        if what == "insert":
            ids = [(self._rows + at) * WRITERS + self._number for at in range(count)]
            rows = ", ".join(["(%s, %s)"] * count)
            given = [value for row in ids for value in (row, self._text())]
            return f"INSERT INTO foodlog (id, dish) VALUES {rows} ON CONFLICT DO NOTHING", given
        first = self._dice.randrange(max(1, self._rows * WRITERS))
        some = f"id BETWEEN {first} AND {first + count - 1}"
        if what == "input":
            with self._lock:
                self._outcome.inputs += count - 1  # one text for each row
            return f"UPDATE foodlog SET dish = %s || ' ' || id WHERE {some}", [self._text()]
        if what == "other":
            return f"UPDATE foodlog SET other = other + 1 WHERE {some}", []
        return f"DELETE FROM foodlog WHERE {some}", []

    def _text(self) -> str:
        self._texts += 1
        with self._lock:
            self._outcome.inputs += 1
        return f"dish {self._number}.{self._texts}"

    def _close(self) -> None:
        if self._con is not None:
            self._con.close()
            self._con = None


class Watchers:
    """The processes of `ml-udf score --watch`, started again by whoever kills them."""

    def __init__(self, dsn: str, url: str, log: Path) -> None:
        command = ["score", "--watch", "--postgres", dsn, "--endpoint", url]
        self._command = [sys.executable, "-m", "ml_udf.cli", *command]
        self._log = log.open("ab")
        self._running = [self._start() for _ in range(WATCHERS)]

    def kill(self, number: int) -> None:
        self._running[number].kill()
        self._running[number].wait()
        self._running[number] = self._start()

    def ended(self) -> list[int]:
        """Exit statuses of those that ended by themselves; they are started again."""
        statuses = []
        for number, process in enumerate(self._running):
            if (status := process.poll()) is not None:
                statuses.append(status)
                self._running[number] = self._start()
        return statuses

    def stop(self) -> None:
        for process in self._running:
            process.terminate()
        for process in self._running:
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._log.close()

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log)


@dataclass
class Scene:
    """Everything that runs."""

    server: InferenceServer
    cluster: Sandbox
    dsn: str
    watchers: Watchers
    computed: Computed
    outcome: WatchOutcome
    dice: random.Random
    made: Path
    version: int = 1

    def kill(self, victim: str) -> None:
        """One of them, which starts again."""
        if victim == "worker":
            pids = self.server.worker_pids()
            if not pids:
                return
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.dice.choice(pids), signal.SIGKILL)
        elif victim == "server":
            self.computed.ends_a_life()
            os.kill(self.server.pid, signal.SIGKILL)
            self.server.wait()
            self.server.start()
        elif victim == "database":
            self.cluster.crash()
        else:
            self.watchers.kill(self.dice.randrange(WATCHERS))
        self.outcome.kills[victim] += 1

    def deploy(self) -> None:
        """A new version, which gives other answers."""
        self.computed.total()
        self.version += 1
        self.server.deploy(dish_model(self.made, self.version), FUNCTION)
        self.outcome.deployments += 1

    def look(self) -> None:
        """How far the watch is behind, as the view says."""
        for status in self.watchers.ended():
            self.outcome.wrong.append(f"a watcher ended by itself: {status}")
        with contextlib.suppress(psycopg.Error), psycopg.connect(self.dsn, connect_timeout=5) as con:
            ((rows, seconds),) = con.execute("SELECT lag_rows, lag_s FROM ml_udf.watches").fetchall()
            self.outcome.lag_rows += [] if rows is None else [rows]
            self.outcome.lag_s.append(seconds)

    def value(self, sql: str) -> int:
        with psycopg.connect(self.dsn) as con:
            ((found,),) = con.execute(sql).fetchall()
        return int(found)


def dish_model(made: Path, version: int) -> Path:
    """The function's model: each version gives the class behind the one that the version before gave."""
    at = version % len(CLASSES)
    return write_manifest(
        made,
        f"dish_{version}",
        task="text-classification",
        architecture="hashing",
        input={"form": "text"},
        classes=[*CLASSES[at:], *CLASSES[:at]],
    )


def answer_of(text: str, version: int) -> str:
    """What that version answers."""
    return CLASSES[(CLASSES.index(label_of(text)) + version) % len(CLASSES)]


def watched_under_fire(plan: Plan) -> WatchOutcome:
    """All of it; see above."""
    outcome = WatchOutcome()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ml_udf_watch_")))
        server = stack.enter_context(inference_server(folder / "home", flags=[ANEW]))
        server.deploy(dish_model(folder / "made", 1), FUNCTION)
        kept = {"synchronous_commit": "on"}
        cluster = stack.enter_context(
            sandbox(PostgresServer.find(), settings=kept, batching=None, local=False)
        )
        dsn = cluster.database("stress", url=server.url, functions=[FUNCTION])
        with psycopg.connect(dsn, autocommit=True) as con:
            con.execute(_TABLE)
            con.execute(_WATCH)
        watchers = Watchers(dsn, server.url, folder / "watchers.log")
        stack.callback(watchers.stop)
        dice = random.Random(f"{plan.seed} kills")
        scene = Scene(server, cluster, dsn, watchers, Computed(server), outcome, dice, folder / "made")
        _written_under_fire(scene, plan)
        _check_rows(scene)
        _others_alone(scene, plan)
        _check_rows(scene)
        if "Traceback" in (log := (folder / "watchers.log").read_text()):
            outcome.wrong.append(f"a watcher broke: {log[-2000:]}")
    return outcome


def _written_under_fire(scene: Scene, plan: Plan) -> None:
    outcome, lock = scene.outcome, threading.Lock()
    writers = [Writer(scene.dsn, number, plan, outcome, lock) for number in range(WRITERS)]
    began_s = time.monotonic()
    deploy_at = [began_s + plan.seconds * (n + 1) / (plan.deployments + 1) for n in range(plan.deployments)]

    def deploy_where_due(now_s: float) -> None:
        if deploy_at and now_s >= deploy_at[0]:
            deploy_at.pop(0)
            scene.deploy()

    _together(scene, plan, [writer.write for writer in writers], _VICTIMS, deploy_where_due)
    deploy_where_due(float("inf"))
    last_s = time.monotonic()
    _await_fresh(scene)
    outcome.fresh_after_s = time.monotonic() - last_s
    outcome.rows_left = scene.value("SELECT count(*) FROM foodlog")
    outcome.computed = scene.computed.total()
    outcome.most_computed = (
        outcome.inputs * (1 + outcome.deployments) + sum(outcome.kills.values()) * ASKED_AGAIN
    )
    if outcome.computed > outcome.most_computed:
        outcome.wrong.append(f"{outcome.computed} rows were computed")


def _others_alone(scene: Scene, plan: Plan) -> None:
    outcome, lock = scene.outcome, threading.Lock()
    before, changed = scene.computed.total(), outcome.written["other"]
    ends_s = time.monotonic() + plan.quiet_s
    writers = [Writer(scene.dsn, number, plan, outcome, lock) for number in range(WRITERS)]
    for writer in writers:
        writer.knows(plan.rows // WRITERS)
    changes = [lambda writer=writer: writer.change_others(ends_s) for writer in writers]
    _together(scene, plan, changes, ("watcher", "database"), lambda _: None)
    _await_fresh(scene)
    outcome.other_changes_alone = outcome.written["other"] - changed
    outcome.computed_for_other_columns = scene.computed.total() - before
    if outcome.computed_for_other_columns or not outcome.other_changes_alone:
        outcome.wrong.append(f"{outcome.computed_for_other_columns} rows were computed for another column")


def _together(
    scene: Scene,
    plan: Plan,
    work: Sequence[Callable[[], None]],
    victims: tuple[str, ...],
    also: Callable[[float], None],
) -> None:
    """The work in threads, and until all of it is done kills at random."""
    threads = [threading.Thread(target=each) for each in work]
    for thread in threads:
        thread.start()
    kill_at_s = time.monotonic() + plan.kill_every_s
    while any(thread.is_alive() for thread in threads):
        time.sleep(min(1.0, plan.kill_every_s / 4))
        now_s = time.monotonic()
        also(now_s)
        scene.look()
        if now_s >= kill_at_s:
            scene.kill(scene.dice.choice(victims))
            kill_at_s = time.monotonic() + plan.kill_every_s * scene.dice.uniform(0.5, 1.5)
    for thread in threads:
        thread.join()


def _await_fresh(scene: Scene) -> None:
    """Until nothing is noted, the watch knows the present version, and nothing was noted meanwhile."""
    pending = (
        "SELECT (SELECT count(*) FROM ml_udf._note) + (SELECT count(*) FROM ml_udf._new_note)"
        " + (SELECT count(*) FROM ml_udf._ring_notes())"
        " + (SELECT count(*) FROM ml_udf._watch WHERE id NOT IN (SELECT watch FROM ml_udf._marked)"
        f" OR version IS DISTINCT FROM '{1 + scene.outcome.deployments}')"
    )

    def is_fresh() -> bool:
        scene.look()
        time.sleep(0.2)
        return scene.value(pending) == 0

    wait_until(is_fresh, FRESH_S)


def _check_rows(scene: Scene) -> None:
    """Each row's answer is that of its present input by the present version; no answer is another's."""
    version = 1 + scene.outcome.deployments
    with psycopg.connect(scene.dsn) as con:
        rows = con.execute(
            "SELECT id, dish, value, error, model_version FROM foodlog FULL JOIN dishes USING (id)"
        ).fetchall()
    wrong = [
        row for row in rows if row[1] is None or row[2:] != (answer_of(row[1], version), None, str(version))
    ]
    if wrong:
        scene.outcome.wrong.append(f"{len(wrong)} of {len(rows)} rows have another answer: {wrong[:3]}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.stress.watch", description=__doc__)
    parser.add_argument("--rows", type=int, default=Plan.rows, help="that are inserted")
    parser.add_argument("--seconds", type=float, default=Plan.seconds)
    parser.add_argument("--kill-every-s", type=float, default=Plan.kill_every_s)
    parser.add_argument("--seed", type=int, default=Plan.seed)
    flags = parser.parse_args()
    plan = Plan(flags.rows, flags.seconds, flags.kill_every_s, seed=flags.seed)
    outcome = watched_under_fire(plan)
    outcome.show()
    write_json("stress_watch", {"plan": asdict(plan), **outcome.to_json()})
    return 1 if outcome.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
