"""The demo itself, tiny: epochs on a handful of small photos, so the answers are poor but must agree.

It is run four times on one folder: stopped by Ctrl-C while it trains, killed there, left in peace, and again.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pytest

from examples.foodlog.circle import CALORIES_FILE, SIMILAR_FILE, TRAYS_FILE
from examples.foodlog.demo import ANOTHER, MODELS
from examples.foodlog.queries import read_queries
from ml_udf.cli.pg_server import PostgresServer, SetupError

TINY = ("--images=100", "--rows=240", "--size=32", "--min-accuracy=0")
EPOCHS = "--epochs=3"
RUN_TIMEOUT_S = 900.0


@dataclass
class Run:
    """A demo that has ended: its output, its exit status, and which of its processes outlived it."""

    output: str
    status: int
    left_behind: set[int]

    def count(self, words: str) -> int:
        return self.output.count(words)


def demo(
    folder: Path,
    *flags: str,
    interrupt_when: Callable[[str], bool] = lambda output: False,
    interrupt_by: signal.Signals = signal.SIGINT,
) -> Run:
    """Run the demo to its end; it is interrupted once `interrupt_when` says so of the output so far."""
    command = [sys.executable, "-m", "examples.foodlog.demo", f"--folder={folder}", *TINY, *flags]
    environment = {**os.environ, "COLUMNS": "160"}
    log = folder.parent / f"{folder.name}.log"
    started: set[int] = set()
    interrupted = False
    end_s = time.monotonic() + RUN_TIMEOUT_S
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    while process.poll() is None:
        started |= descendants(process.pid)
        if not interrupted and interrupt_when(log.read_text(errors="replace")):
            process.send_signal(interrupt_by)
            interrupted = True
        if time.monotonic() > end_s:
            process.kill()
        time.sleep(0.05)
    return Run(log.read_text(), process.returncode, living(started))


def descendants(pid: int) -> set[int]:
    found: set[int] = set()
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found |= {child} | descendants(child)
    return found


def living(pids: set[int]) -> set[int]:
    """Those that still run after a grace; a zombie has ended."""
    end_s = time.monotonic() + 60
    while True:
        left = {pid for pid in pids if not ended(pid)}
        if not left or time.monotonic() > end_s:
            return left
        time.sleep(0.05)


def ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def has_postgres() -> bool:
    try:
        return PostgresServer.find().plpython() is not None
    except SetupError:
        return False


ENGINES = 2 if has_postgres() else 1
JOBS = ENGINES + 2  # and those of calories and trays


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


def epochs_of(folder: Path) -> int:
    """How far the first job is: grows with every epoch that its journal has a verdict on."""
    journal = folder / "home" / "training" / "studies" / "job-1.journal"
    return journal.read_text().count('verdict\\":\\"') if journal.is_file() else 0


@pytest.fixture(scope="module")
def stopped(folder: Path) -> Run:
    """Ended by Ctrl-C when every job has begun, and the first one has two epochs behind it."""

    def is_training(output: str) -> bool:
        return output.count("SELECT ml_udf.train(") == JOBS and epochs_of(folder) > 1

    return demo(folder, EPOCHS, interrupt_when=is_training)


@pytest.fixture(scope="module")
def killed(folder: Path, stopped: Run) -> Run:
    """Killed two epochs later."""
    before = epochs_of(folder)
    return demo(
        folder,
        EPOCHS,
        interrupt_when=lambda output: epochs_of(folder) > before + 1,
        interrupt_by=signal.SIGKILL,
    )


@pytest.fixture(scope="module")
def first(folder: Path, killed: Run) -> Run:
    """The first one that is left in peace."""
    return demo(folder, EPOCHS)


@pytest.fixture(scope="module")
def second(folder: Path, first: Run) -> Run:
    """Asks for more than any model can reach, stays, and is ended by Ctrl-C."""
    flags = (EPOCHS, "--no-postgres", "--min-accuracy=1.01", "--stay")
    return demo(folder, *flags, interrupt_when=lambda output: "until Ctrl-C." in output)


def test_the_demo_succeeds_and_leaves_no_process_behind(first: Run) -> None:
    assert (first.status, first.left_behind) == (0, set()), first.output


def test_every_query_is_asked_and_every_engine_answers_the_same(first: Run) -> None:
    queries = [*read_queries(), *read_queries(CALORIES_FILE)[3:], *read_queries(TRAYS_FILE)[3:]]
    queries += read_queries(SIMILAR_FILE)[1:]
    for query in queries:
        assert f"{query.number}. {query.title}" in first.output, query.title
    assert re.search(r"DuckDB \d+\.\d s", first.output)
    if ENGINES == 2:
        assert first.count("; the same answer") == len(queries)
        assert "named each of them alike" in first.output
    else:
        assert "PostgreSQL is left out" in first.output
    assert "differ" not in first.output


def test_both_engines_make_a_dataset_train_and_deploy_in_sql(stopped: Run, first: Run) -> None:
    # Calories and trays are learned once; the photos' features are those of a network that there is.
    once, features = 2, 1
    assert stopped.count("SELECT ml_udf.create_dataset(") == JOBS
    assert stopped.count("SELECT ml_udf.train(") == JOBS
    assert first.count("SELECT to_json(ml_udf.deploy(") == 4 + (ENGINES == 2) + once + features
    assert first.count("│ done ") == JOBS


def test_training_that_was_interrupted_goes_on_in_the_next_run(stopped: Run, killed: Run, first: Run) -> None:
    assert "Stopped" in stopped.output
    assert "Traceback" not in stopped.output
    assert stopped.status == 130
    assert stopped.left_behind == set()
    assert killed.status == -signal.SIGKILL
    assert killed.left_behind == set(), "the server ends with the demo, however that ends"
    assert "Job 1 has begun that in an earlier run" in first.output
    assert "ml_udf.train(" not in first.output


def test_the_accuracy_of_each_model_and_of_all_together_is_told(first: Run) -> None:
    names = ("name", *MODELS, *([ANOTHER] if ENGINES == 2 else []))
    for name in names:
        assert re.search(rf"udf_food_{name} +│ [01]\.\d\d\d", first.output)
    assert "on 20 photos that no model saw" in first.output
    assert re.search("udf_food_name (beats|is .* behind|is .* alone|names as many)", first.output)


def test_the_function_answers_the_same_without_a_server(first: Run) -> None:
    assert "gave the same answers" in first.output


def test_the_held_out_photos_are_kept_from_training(folder: Path, first: Run) -> None:
    snapshots = folder / "home" / "training" / "datasets" / "food*" / "*.parquet"
    seen = duckdb.execute(
        f"SELECT labels.split, count(DISTINCT image_path) FROM '{snapshots}' AS rows"
        f" JOIN '{folder}/labels.csv' AS labels ON labels.image_path = rows.key GROUP BY labels.split"
    )
    assert seen.fetchall() == [("lesson", 80)]


def test_a_second_run_draws_trains_and_deploys_nothing(second: Run) -> None:
    assert "has them from an earlier run" in second.output
    assert "Job 1 has done that in an earlier run" in second.output
    assert "ml_udf.train(" not in second.output
    assert "ml_udf.deploy(" not in second.output


def test_a_best_model_below_the_threshold_fails_the_run(second: Run) -> None:
    assert "1.01 was asked for" in second.output
    assert second.status == 1


def test_ctrl_c_while_it_stays_ends_every_process(second: Run) -> None:
    assert "Stopping." in second.output
    assert second.left_behind == set()
