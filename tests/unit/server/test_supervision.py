"""Background tasks: none dies unseen, and all of the server's are watched."""

from __future__ import annotations

import ast
import asyncio
import logging
import signal
from pathlib import Path
from typing import cast

import pytest

import server
from server.app import create_app
from server.catalog.catalog import Catalog
from server.settings import Settings
from server.store.training import TrainingRepository
from server.supervision import Backoff, Supervisor
from server.training.checkpoints.parameters import ParameterStore
from server.training.jobs.service import Training
from server.training.trainers import Trainers
from server.workers.local import LocalPool
from server.workers.pool import WorkerListener
from tests.unit.server.fake_worker import FakeWorker

HURRIED = Backoff(pause_first_s=0.001, pause_most_s=0.002, steady_s=60.0, most_failures=3)

# Where a task is made without the supervisor, and why it needs none.
UNWATCHED = {
    "supervision.py": "the supervisor itself",
    "administration/endings.py": "awaited, or cancelled, where it is made, beside a token's end",
    "http/connection.py": "the framework's part of a request: what it raises becomes a reply",
    "http/listener.py": "the drain: what it raises is logged, and the server ends whatever comes",
    "http/disconnects.py": "awaited where it is made, beside its client's leaving",
    "serving/pipelines/calls.py": "a group that is awaited where it is made: what one raises ends the others",
    "serving/feedback.py": "awaited, or cancelled, where it is made, beside the part that is kept",
    "workers/device_host.py": "of a process of its own, on a node: awaited where they are made",
    "training/jobs/run.py": "awaited where it is made, so that a lease can be renewed meanwhile",
    "training/datasets/datasets.py": "awaited where it is made, by a thread",
    "training/variants/orders.py": "awaited, or cancelled, where it is made, beside rows that come first",
    "training/jobs/service.py": "a wait that is awaited, or cancelled, where it is made",
}


class Failing:
    """Work that fails as often as said, and then runs until it is cancelled."""

    def __init__(self, failures: int, error: BaseException | None = None) -> None:
        self.failures = failures
        self.error = error or RuntimeError("a bug")
        self.begun = 0
        self.runs = asyncio.Event()

    async def __call__(self) -> None:
        self.begun += 1
        if self.begun <= self.failures:
            raise self.error
        self.runs.set()
        await asyncio.Event().wait()


@pytest.mark.parametrize("error", [RuntimeError("a bug"), asyncio.CancelledError()])
def test_work_that_must_always_run_begins_again_whatever_it_dies_of(error: BaseException) -> None:
    async def scenario() -> None:
        supervisor = Supervisor(backoff=HURRIED)
        tasks, work = supervisor.tasks(), Failing(5, error)
        tasks.always("chore", work)
        await asyncio.wait_for(work.runs.wait(), 5)
        assert work.begun == 6
        assert (supervisor.failures["chore"], supervisor.running["chore"]) == (5, 1)
        await asyncio.wait_for(tasks.close(), 5)
        assert supervisor.running["chore"] == 0

    asyncio.run(scenario())


def test_work_that_returns_is_over() -> None:
    async def scenario() -> None:
        supervisor, done = Supervisor(), []

        async def work() -> None:
            done.append(1)

        await asyncio.wait_for(supervisor.tasks().always("chore", work), 5)
        assert (done, supervisor.failures.total()) == ([1], 0)

    asyncio.run(scenario())


def test_a_failure_is_logged_with_its_cause(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        supervisor = Supervisor()
        task = supervisor.tasks().once("spread", Failing(1)(), "spread net/1")
        await asyncio.wait({task}, timeout=5)
        await asyncio.sleep(0)
        assert supervisor.failures == {"spread": 1}

    with caplog.at_level(logging.ERROR):
        asyncio.run(scenario())
    (record,) = caplog.records
    assert "spread net/1" in record.getMessage()
    assert record.exc_info is not None
    assert "a bug" in str(record.exc_info[1])


def test_the_server_ends_when_what_nothing_is_served_without_keeps_failing() -> None:
    async def scenario() -> None:
        told: list[str] = []
        supervisor = Supervisor(told.append, HURRIED)
        tasks, vital, other = supervisor.tasks(), Failing(1000), Failing(10)
        await asyncio.wait_for(tasks.always("worker", vital, "supervise w0", vital=True), 5)
        assert vital.begun == 3
        assert "supervise w0 failed 3 times in a row" in told[0]
        tasks.always("chore", other)
        await asyncio.wait_for(other.runs.wait(), 5)
        assert len(told) == 1
        await tasks.close()

    asyncio.run(scenario())


def test_failures_with_steady_work_between_them_do_not_add_up() -> None:
    async def scenario() -> None:
        told: list[str] = []
        supervisor = Supervisor(told.append, Backoff(0.001, 0.002, steady_s=0.0, most_failures=3))
        tasks, work = supervisor.tasks(), Failing(10)
        tasks.always("worker", work, vital=True)
        await asyncio.wait_for(work.runs.wait(), 5)
        assert told == []
        await tasks.close()

    asyncio.run(scenario())


def test_closing_ends_the_tasks_of_their_owner_alone() -> None:
    async def scenario() -> None:
        supervisor = Supervisor()
        mine, others, work = supervisor.tasks(), supervisor.tasks(), Failing(0)
        other = others.always("chore", work)
        mine.once("chore", asyncio.sleep(1000))
        await asyncio.wait_for(work.runs.wait(), 5)
        await asyncio.wait_for(mine.close(), 5)
        assert not other.done()
        await others.close()

    asyncio.run(scenario())


@pytest.mark.usefixtures("expected_callback_errors")
def test_a_callback_that_raises_is_counted(expected_callback_errors: list[object]) -> None:
    async def scenario() -> None:
        supervisor = Supervisor()
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(supervisor.callback_failed)
        loop.call_soon(lambda: 1 / 0)
        await asyncio.sleep(0.001)
        assert supervisor.failures == {"callback": 1}

    asyncio.run(scenario())
    assert len(expected_callback_errors) == 1
    expected_callback_errors.clear()


def test_every_task_of_the_server_is_watched() -> None:
    root = Path(server.__file__).parent
    made = {str(path.relative_to(root)) for path in root.rglob("*.py") if _makes_a_task(path)}
    assert made == set(UNWATCHED)


def _makes_a_task(path: Path) -> bool:
    return _names(path, {"create_task", "ensure_future", "TaskGroup", "run_coroutine_threadsafe"})


def _names(path: Path, names: set[str]) -> bool:
    """Whether the module uses any of them: as an attribute, by itself, or in an import."""
    return any(
        not names.isdisjoint(getattr(node, field, None) for field in ("attr", "id", "name"))
        for node in ast.walk(ast.parse(path.read_text()))
    )


def test_no_wait_of_the_server_can_lose_a_cancel() -> None:
    """`asyncio.wait_for` drops one that comes just as what it awaits is over; `asyncio.timeout` does not."""
    root = Path(server.__file__).parent
    losing = [str(path.relative_to(root)) for path in root.rglob("*.py") if _names(path, {"wait_for"})]
    assert losing == []


def test_a_server_that_cannot_go_on_stops_as_if_told_to(tmp_path: Path) -> None:
    app, signals = create_app(Settings(home=tmp_path)), list[int]()
    before = signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))
    try:
        app.end("supervise w0 failed 10 times in a row")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (signals, app.ended_by) == ([signal.SIGTERM], "supervise w0 failed 10 times in a row")


def test_the_life_of_workers_goes_on_after_a_bug_in_the_watch_over_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lives = Failing(3)

    async def scenario() -> None:
        supervisor = Supervisor(backoff=Backoff(0.001, 0.002))
        monkeypatch.setattr(LocalPool, "_supervise", lambda *_: lives())
        pool = LocalPool(1, lambda index, fd: [], tasks=supervisor.tasks())
        await pool.start(cast(WorkerListener, object()))
        await asyncio.wait_for(lives.runs.wait(), 5)
        assert supervisor.failures == {"worker": 3}
        await pool.close()

    asyncio.run(scenario())


def test_training_goes_on_after_a_bug_in_its_work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    work = Failing(3)

    async def scenario() -> None:
        supervisor = Supervisor(backoff=Backoff(0.001, 0.002))
        monkeypatch.setattr(Training, "_work", lambda *_: work())
        trainers = Trainers(cast(WorkerListener, Quiet()), 1.0)
        training = Training(
            cast(TrainingRepository, None),
            tmp_path,
            cast(ParameterStore, None),
            trainers,
            cast(Catalog, None),
            supervisor.tasks(),
        )
        trainers.worker_up(FakeWorker())
        await asyncio.wait_for(work.runs.wait(), 5)
        assert supervisor.failures == {"train": 3}
        await training.close()

    asyncio.run(scenario())


class Quiet:
    def worker_up(self, worker: object) -> None:
        pass
