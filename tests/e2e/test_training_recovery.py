"""What becomes of a training job when a process dies under it, and when it is cancelled or extended."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import psycopg
import pyarrow as pa
import pytest

from ml_udf.cli.pg_sandbox import sandbox
from ml_udf.cli.pg_server import PostgresServer, SetupError
from ml_udf.client import Client
from ml_udf.errors import BadOption, Overloaded, UnknownFunction
from ml_udf.training import TrainingCalls
from tests.inference_server import InferenceServer, inference_server
from tests.training_data import draw_photos
from tests.worker_forks import TRIAL, is_process_of

Answered = TypeVar("Answered")
PATIENCE_S = 600.0  # trials are niced: beside other work they take their time


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("photos")


@pytest.fixture(scope="module")
def labelled(photos: Path) -> list[tuple[str, str]]:
    return draw_photos(photos, 200)


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, photos: Path, labelled: list[tuple[str, str]]
) -> Iterator[InferenceServer]:
    with inference_server(tmp_path_factory.mktemp("home"), media_roots=[photos]) as running:
        with calling(running) as calls:
            push(calls, labelled)
        yield running


def push(calls: TrainingCalls, labelled: list[tuple[str, str]]) -> None:
    sink = io.BytesIO()
    table = pa.table({"path": [path for path, _ in labelled], "label": [label for _, label in labelled]})
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    dataset = {"name": "food", "query": "SELECT path, label FROM t", "target": "label", "key": "path"}
    calls.push(dataset, [sink.getvalue()])


@contextlib.contextmanager
def calling(server: InferenceServer) -> Iterator[TrainingCalls]:
    client = Client(server.url)
    try:
        yield TrainingCalls(client)
    finally:
        client.close()


@pytest.fixture
def calls(server: InferenceServer) -> Iterator[TrainingCalls]:
    with calling(server) as made:
        yield made


def begin(calls: TrainingCalls, budget: int = 24, **more: Any) -> int:
    job = {"dataset": "food", "models": ["resnet"], "budget": budget, "max_epochs": 6, "size": 32, **more}
    return int(calls.train(job)["id"])


def wait_until(calls: TrainingCalls, job: int, reached: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    deadline_s = time.monotonic() + PATIENCE_S
    while not reached(found := calls.job(job)):
        assert time.monotonic() < deadline_s, found
        time.sleep(0.05)
    return found


def is_over(job: dict[str, Any]) -> bool:
    return bool(job["state"] != "running")


def trainers(server: InferenceServer) -> list[int]:
    """The training processes of the server's workers."""
    found = []
    for worker in server.worker_pids():
        for child in Path(f"/proc/{worker}/task/{worker}/children").read_text().split():
            if is_process_of(int(child), TRIAL):
                found.append(int(child))
    return found


def assert_whole(calls: TrainingCalls, job: int, budget: int) -> None:
    """No trial is lost or finished twice; the budget was charged with what was lost, and not more."""
    trials = calls.trials(job)
    assert [trial["trial"] for trial in trials] == list(range(len(trials)))
    ended = [(trial["state"], trial["reason"]) for trial in trials]
    assert {state for state, _ in ended} <= {"finished", "paused"}, ended
    assert sum(trial["charged"] for trial in trials) == budget
    finished = [trial for trial in trials if trial["state"] == "finished"]
    assert all(trial["checkpoint"] for trial in finished)
    assert calls.job(job)["best_score"] == max(trial["best_score"] for trial in finished)


@pytest.mark.parametrize("victim", ["worker", "trainer"])
def test_a_killed_process_costs_epochs_and_no_trial(
    server: InferenceServer, calls: TrainingCalls, victim: str
):
    job = begin(calls, policy="branch")
    wait_until(calls, job, lambda found: found["epochs_used"] >= 3)
    killed = server.worker_pids() if victim == "worker" else trainers(server)
    assert killed
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    assert wait_until(calls, job, is_over)["state"] == "done"
    assert_whole(calls, job, 24)


def test_a_killed_server_goes_on_with_its_jobs_when_it_starts_again(server: InferenceServer):
    with calling(server) as calls:
        job = begin(calls, budget=30, policy="branch")
        before = wait_until(calls, job, lambda found: found["epochs_used"] >= 5)
    os.kill(server.pid, signal.SIGKILL)
    server.stop()
    server.start()
    with calling(server) as calls:
        again = calls.job(job)
        assert again["state"] == "running"
        assert again["epochs_used"] >= before["epochs_used"]
        assert wait_until(calls, job, is_over)["state"] == "done"
        assert_whole(calls, job, 30)
        assert calls.deploy(job, "udf_after")["version"] == 1


@pytest.mark.parametrize("policy", ["branch", "study"])
def test_a_server_that_is_stopped_loses_no_epoch(server: InferenceServer, policy: str):
    with calling(server) as calls:
        job = begin(calls, policy=policy)
        wait_until(calls, job, lambda found: found["epochs_used"] >= 3)
    server.stop()
    server.start()
    with calling(server) as calls:
        assert wait_until(calls, job, is_over)["state"] == "done"
        assert_whole(calls, job, 24)
        assert sum(trial["epochs"] for trial in calls.trials(job)) == 24


def test_a_job_whose_checkpoints_are_archived_needs_none_of_the_copies_in_its_home(
    tmp_path: Path, photos: Path, labelled: list[tuple[str, str]]
):
    archive, home = tmp_path / "archive", tmp_path / "home"
    with (
        inference_server(home, media_roots=[photos], flags=[f"--parameters-url=file://{archive}"]) as server,
        calling(server) as calls,
    ):
        push(calls, labelled)
        job = begin(calls, policy="branch")

        def over_without_copies(found: dict[str, Any]) -> bool:
            for kept in archive.glob("job-*/*"):
                copy = home / "training" / "checkpoints" / kept.parent.name / kept.name
                # One that was fetched a moment ago is in hand, and the store itself leaves it alone.
                if copy.exists() and copy.stat().st_mtime < time.time() - 2.0:
                    copy.unlink(missing_ok=True)
            return is_over(found)

        assert wait_until(calls, job, over_without_copies)["state"] == "done"
        assert_whole(calls, job, 24)
        assert calls.deploy(job, "udf_archived")["version"] == 1
        archived = {path.name for path in (archive / f"job-{job}").iterdir()}
        fetched = (home / "training" / "checkpoints" / f"job-{job}").iterdir()
        assert {path.name for path in fetched} <= archived


def test_an_archive_that_fails_fails_the_job_with_its_words_and_the_job_can_go_on(
    tmp_path: Path, photos: Path, labelled: list[tuple[str, str]]
):
    archive = tmp_path / "archive"
    archive.write_text("a file where the folder should be")
    with (
        inference_server(
            tmp_path / "home", media_roots=[photos], flags=[f"--parameters-url=file://{archive}"]
        ) as server,
        calling(server) as calls,
    ):
        push(calls, labelled)
        job = begin(calls, budget=6)
        failed = wait_until(calls, job, is_over)
        assert failed["state"] == "failed"
        assert f"could not be kept in file://{archive}" in failed["reason"]
        archive.unlink()
        calls.extend(job, 12)
        assert wait_until(calls, job, is_over)["state"] == "done"
        assert calls.deploy(job, "udf_after_all")["version"] == 1


def insisting(ask: Callable[[], Answered]) -> Answered:
    """What is asked once more where the registry went away in the middle of it: the caller is told so."""
    for _ in range(20):
        with contextlib.suppress(Overloaded):
            return ask()
    return ask()


def test_a_registry_that_cuts_every_connection_ten_times_a_second_costs_a_job_nothing(
    tmp_path: Path, photos: Path, labelled: list[tuple[str, str]]
):
    try:
        postgres = PostgresServer.find()
    except SetupError as error:
        pytest.skip(error.message)
    over = threading.Event()
    cut = 0

    def cut_connections() -> None:
        nonlocal cut
        with psycopg.connect(cluster.dsn(), autocommit=True) as admin:
            while not over.wait(0.1):
                cut += admin.execute(
                    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
                    " WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
                ).fetchall()[0][0]

    with (
        sandbox(postgres) as cluster,
        inference_server(
            tmp_path / "home", media_roots=[photos], flags=[f"--database-url={cluster.dsn()}"]
        ) as server,
        calling(server) as calls,
    ):
        cutting = threading.Thread(target=cut_connections)
        cutting.start()
        try:
            insisting(lambda: push(calls, labelled))
            job = insisting(lambda: begin(calls, budget=12))
            assert wait_until(calls, job, is_over)["state"] == "done"
        finally:
            over.set()
            cutting.join()
        assert cut >= 3
        assert_whole(calls, job, 12)


def test_a_cancelled_job_stops_soon_and_keeps_what_it_found(calls: TrainingCalls):
    job = begin(calls, budget=2_000, max_epochs=4, policy="study")
    wait_until(calls, job, lambda found: found["best_score"] is not None)
    assert calls.cancel(job)["state"] == "cancelled"
    used = calls.job(job)["epochs_used"]
    time.sleep(1.0)
    assert calls.job(job)["epochs_used"] <= used + 1
    assert calls.deploy(job, "udf_cancelled")["test_rows"] > 0
    with pytest.raises(BadOption, match="give it as much or more in all"):
        calls.extend(job, 10)


def test_a_finished_job_goes_on_with_a_larger_budget(calls: TrainingCalls):
    job = begin(calls, budget=6, max_epochs=3, policy="study")
    wait_until(calls, job, is_over)
    calls.extend(job, 12)
    assert wait_until(calls, job, is_over)["epochs_used"] == 12


def test_the_same_seed_gives_the_same_checkpoints(calls: TrainingCalls):
    twins = []
    for _ in range(2):
        job = begin(calls, budget=9, policy="costudy", seed=7)
        wait_until(calls, job, is_over)
        twins.append([(trial["knobs"], trial["score"], trial["checkpoint"]) for trial in calls.trials(job)])
    assert twins[0] == twins[1]
    assert any(checkpoint for _, _, checkpoint in twins[0])


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ({"models": ["alexnet"]}, "'models' must name some of"),
        ({"budget": "a lot"}, "'200 epochs'"),
        ({"budget": 0}, "'budget' must be"),
        ({"policy": "hope"}, "'policy' must be one of"),
        ({"advisor": "me"}, "'advisor' must be one of"),
        ({"task": "poetry"}, "is for image-classification"),
        ({"surprise": 1}, "no field 'surprise'"),
        ({"knobs": [{"name": "learning_rate", "dtype": "float", "min": 2, "max": 1}]}, "is empty"),
    ],
)
def test_a_job_that_cannot_be_is_refused_by_name(calls: TrainingCalls, job: dict[str, Any], message: str):
    with pytest.raises(BadOption, match=message):
        calls.train({"dataset": "food", **job})


def test_what_is_not_there_is_refused_by_name(calls: TrainingCalls):
    with pytest.raises(UnknownFunction, match="no dataset 'drinks'"):
        calls.train({"dataset": "drinks"})
    with pytest.raises(UnknownFunction, match="no job 999"):
        calls.deploy(999, "udf_food")
