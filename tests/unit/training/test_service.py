"""Jobs as orders and workers see them: how they end, stop, go on, and share a worker."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import importlib.util
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from optuna.storages.journal import JournalFileBackend
from sqlalchemy import text, update
from sqlalchemy.orm import Session

from gpu_worker.wire.protocol import TrainEpoch
from server.access.caller import Caller
from server.access.things import Things
from server.access.view import View
from server.errors import BadOption, NoSpace, Overloaded, ServiceError
from server.store.database import open_database
from server.store.tables import JobRow
from server.training.checkpoints.parameters import needed
from server.training.jobs.described import described
from server.training.jobs.spec import JobSpec
from server.training.studies.journal import MasterLock, _Backend
from server.training.studies.study import Master
from server.workers.pool import WorkerInfo
from tests.unit.training.training_house import SPEC, FakeTrainer, House, house, on_a_loop, until

# ── how jobs end ──────────────────────────────────────────────────────────────────────────────────


@on_a_loop
async def test_a_server_that_may_not_import_code_trains_no_architecture_by_its_path(tmp_path: Path) -> None:
    async with house(tmp_path) as it:
        with pytest.raises(BadOption, match="runs code; start the server with --allow-import"):
            await it.training.start({"dataset": "d", "models": ["os:system"]})


@on_a_loop
async def test_a_model_whose_library_is_not_there_is_refused_with_the_command_that_brings_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    async with house(tmp_path) as it:
        with pytest.raises(BadOption, match=r"pip install 'ml_udf\[lightgbm\]'"):
            await it.training.start({"dataset": "t", "models": ["lightgbm"]})


@on_a_loop
async def test_a_job_whose_every_trial_meets_the_same_error_fails_with_it_at_once(tmp_path: Path) -> None:
    broken = FakeTrainer(error=lambda message: "No module named 'sklearn'")
    async with house(tmp_path, broken) as it:
        job = await it.start(budget="300 epochs")
        ended = await it.ended(job, "failed")
        assert ended.reason == "resnet: the same error 3 times: No module named 'sklearn'"
        assert it.trained(job) == 3


@pytest.mark.parametrize(
    ("budget", "metric", "forests"),
    [("5 minutes", "accuracy", 1), ("6 minutes", "accuracy", 8), ("5 minutes", "auc", 1)],
)
@on_a_loop
async def test_a_slow_model_that_is_no_better_is_tuned_where_the_budget_is_long(
    tmp_path: Path, budget: str, metric: str, forests: int
) -> None:
    slow = FakeTrainer(
        score=lambda message: 0.8,
        took_s=lambda message: 0.1 if "forest" in message.trial else 0.01,
    )
    async with house(tmp_path, slow) as it:
        models = ["logistic_regression", "random_forest"]
        job = await it.start(dataset="t", models=models, budget=budget, metric=metric)
        await it.ended(job, "done")
        _, run = await it.training.job(job)
        trials = {model: len(records) for model, records in (await run.trials()).items()}
        assert trials["random_forest"] == forests
        assert trials["logistic_regression"] >= 4


@on_a_loop
async def test_small_tables_speak_against_no_model_that_takes_seconds(tmp_path: Path) -> None:
    forest = FakeTrainer(score=lambda message: 0.9 if "forest" in message.trial else 0.6)
    async with house(tmp_path, forest) as it:
        for _ in range(3):
            job = await it.start(dataset="t", models=[], budget="6 epochs")
            await it.ended(job, "done")
            _, run = await it.training.job(job)
            models = set(await run.trials())
            assert models == {"logistic_regression", "hist_gradient_boosting", "random_forest"}


@on_a_loop
async def test_a_budget_of_time_ends_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    """Its epochs say that they take no time at all; the second model's first would take a minute."""
    worker = FakeTrainer(
        epoch_s=lambda message: 60.0 if "vgg" in message.trial else 0.05,
        score=lambda message: 0.5 + min(message.epoch, 20) / 100,
    )
    async with house(tmp_path, worker) as it:
        began_s = time.monotonic()
        job = await it.start(models=["resnet", "vgg"], budget="2 seconds")
        ended = await it.ended(job, "done")
        assert time.monotonic() - began_s < 4
        assert "the budget of time is used up" in ended.reason
        _, run = await it.training.job(job)
        studies = await run.progress()
        assert studies["resnet"].best_checkpoint is not None
        assert studies["vgg"].epochs_used <= 1
        assert studies["resnet"].seconds_used >= 0.05, "what passes is charged, whatever the worker says"


@on_a_loop
async def test_a_trial_that_the_budget_interrupts_leaves_its_best_epoch(tmp_path: Path) -> None:
    worker = FakeTrainer(epoch_s=lambda message: 60.0 if message.epoch == 3 else 0.02)
    async with house(tmp_path, worker) as it:
        job = await it.start(models=["resnet"], budget="1 second", policy="study")
        await it.ended(job, "done")
        _, run = await it.training.job(job)
        ((trial,),) = (await run.trials()).values()
        assert trial.state == "finished"
        assert [checkpoint.epoch for checkpoint in trial.checkpoints][-1] == 2


@on_a_loop
async def test_a_job_that_has_no_model_when_its_time_is_over_trains_for_one_epoch(tmp_path: Path) -> None:
    worker = FakeTrainer(epoch_s=lambda message: 0.6)
    async with house(tmp_path, worker) as it:
        job = await it.start(models=["resnet"], budget="0.1 seconds")
        await it.ended(job, "done")
        _, run = await it.training.job(job)
        assert (await run.progress())["resnet"].epochs_used == 1


@on_a_loop
async def test_a_job_without_a_single_model_is_not_done(tmp_path: Path) -> None:
    diverging = FakeTrainer(score=lambda message: float("nan") if "/0" in message.trial else float("inf"))
    async with house(tmp_path, diverging) as it:
        ended = await it.ended(await it.start(budget="2 epochs"), "failed")
        assert "its score in epoch 1 is" in ended.reason


@on_a_loop
async def test_a_trial_whose_loss_is_no_number_ends_though_its_score_is_one(tmp_path: Path) -> None:
    diverging = FakeTrainer(loss=lambda message: float("nan") if "/0" in message.trial else 1.0)
    async with house(tmp_path, diverging) as it:
        job = await it.start(budget="20 epochs")
        await it.ended(job, "done")
        asked = [message for message in diverging.asked if isinstance(message, TrainEpoch)]
        assert sum(message.trial.endswith("/0") for message in asked) == 1
        _, run = await it.training.job(job)
        first, *others = (await run.trials())["resnet"]
        assert (first.state, first.reason) == ("failed", "its loss in epoch 1 is nan")
        assert any(trial.best_checkpoint for trial in others)


@on_a_loop
async def test_an_error_of_one_model_leaves_the_others_their_job_and_is_told(tmp_path: Path) -> None:
    half = FakeTrainer(error=lambda message: "no such layer" if "vgg" in message.trial else None)
    async with house(tmp_path, half) as it:
        ended = await it.ended(await it.start(models=["vgg", "resnet"], budget="20 epochs"), "done")
        assert "vgg: the same error 3 times: no such layer" in ended.reason


@on_a_loop
async def test_a_job_that_an_error_ended_is_tried_again_when_it_is_extended(tmp_path: Path) -> None:
    worker = FakeTrainer(error=lambda message: "no sklearn")
    async with house(tmp_path, worker) as it:
        job = await it.start(budget="10 epochs")
        await it.ended(job, "failed")
        worker.error = lambda message: None
        await it.training.extend(job, 20)
        await it.ended(job, "done")


# ── a worker that hangs ───────────────────────────────────────────────────────────────────────────


@on_a_loop
async def test_a_hung_epoch_is_seen_its_process_ended_and_its_trial_trained_by_another(
    tmp_path: Path,
) -> None:
    hung: list[str] = []

    def hangs(message: TrainEpoch) -> bool:
        if message.epoch == 2 and not hung:
            hung.append(f"{message.trial} {message.id}")
        return hung == [f"{message.trial} {message.id}"]

    worker = FakeTrainer(hangs=hangs)
    async with house(tmp_path, worker, lease_s=0.3) as it:
        job = await it.start(budget="12 epochs", policy="study")
        await it.ended(job, "done")
        _, run = await it.training.job(job)
        trials = (await run.trials())["resnet"]
        assert hung[0].startswith(f"{job}/resnet/{trials[0].number} ")
        assert "status -9" in trials[0].reason
        assert trials[0].attempt == 2
        assert not worker.killed, "serving goes on"


@on_a_loop
async def test_a_question_does_not_wait_behind_an_epoch_while_another_worker_is_free(tmp_path: Path) -> None:
    busy, free = FakeTrainer("w0", epoch_s=lambda message: 60.0), FakeTrainer("w1")
    async with house(tmp_path, busy) as it:
        job = await it.start(budget="1 epochs")
        await until(lambda: busy.asked)
        it.trainers.worker_up(free)

        async def is_asked() -> bool:
            return await it.trainers.anyone() is free

        await until(is_asked)
        await it.training.cancel(job)


@on_a_loop
async def test_a_job_of_photos_is_worked_on_also_where_they_are_not_seen(tmp_path: Path) -> None:
    far = FakeTrainer("w0", info=WorkerInfo("cpu", "fake", 0, sees_pictures=False))
    near = FakeTrainer("w1")
    async with house(tmp_path, far, near) as it:
        job = await it.start(budget="6 epochs")
        await it.ended(job, "done")
        assert far.asked
        assert near.asked


@on_a_loop
async def test_a_slow_epoch_whose_steps_rise_keeps_its_trial(tmp_path: Path) -> None:
    worker = FakeTrainer(epoch_s=lambda message: 1.2 if message.epoch == 2 else 0.001)
    async with house(tmp_path, worker, lease_s=0.3) as it:
        job = await it.start(budget="4 epochs", policy="study")
        await it.ended(job, "done")
        _, run = await it.training.job(job)
        assert [trial.attempt for trial in (await run.trials())["resnet"]] == [1]


@on_a_loop
async def test_a_training_process_that_says_nothing_any_more_counts_as_hung(tmp_path: Path) -> None:
    worker = FakeTrainer(hangs=lambda message: not worker.ended)
    worker.silent = True
    async with house(tmp_path, worker, lease_s=0.3) as it:
        job = await it.start(budget="6 epochs", policy="study")
        await until(lambda: worker.ended)
        worker.silent = False
        await it.ended(job, "done")


@on_a_loop
async def test_an_epoch_that_waits_for_another_message_of_the_process_is_not_hung(tmp_path: Path) -> None:
    worker = FakeTrainer(epoch_s=lambda message: 1.2 if message.epoch == 2 else 0.001, evaluates=True)
    async with house(tmp_path, worker, lease_s=0.3) as it:
        job = await it.start(budget="3 epochs", policy="study")
        await it.ended(job, "done")
        assert worker.ended == 0


@on_a_loop
async def test_a_worker_that_cannot_end_its_training_process_is_ended_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.training.jobs.run._END_S", 0.3)
    stuck = FakeTrainer(hangs=lambda message: message.epoch == 2, ends=False)
    async with house(tmp_path, stuck, lease_s=0.2) as it:
        stuck.on_kill = lambda: it.trainers.worker_down(stuck)
        job = await it.start(budget="12 epochs", policy="study")
        await until(lambda: stuck.killed)
        it.trainers.worker_up(FakeTrainer())
        await it.ended(job, "done")


# ── orders ────────────────────────────────────────────────────────────────────────────────────────


async def lost(it: House, job: int) -> set[str]:
    """The checkpoints that a job's records need, and whose files are not there."""
    _, run = await it.training.job(job)
    return needed((await run.trials())["resnet"]) - it.checkpoints(job)


@pytest.mark.parametrize("policy", ["study", "costudy", "branch"])
@on_a_loop
async def test_a_cancelled_job_keeps_the_best_of_the_trial_under_way(tmp_path: Path, policy: str) -> None:
    best_at_2 = FakeTrainer(
        epoch_s=lambda message: 0.02, score=lambda message: 0.9 if message.epoch == 2 else 0.5
    )
    async with house(tmp_path, best_at_2) as it:
        job = await it.start(budget="99 epochs", policy=policy)
        await until(lambda: it.trained(job) >= 4)
        cancelled = await it.training.cancel(job)
        assert cancelled.state == "cancelled"
        await it.ended(job, "cancelled")
        _, run = await it.training.job(job)
        (study,) = (await run.progress()).values()
        assert study.best_score == 0.9
        assert await lost(it, job) == set()


@pytest.mark.parametrize("moment", range(6))
@on_a_loop
async def test_cancel_and_extend_at_once_leave_one_master_and_every_checkpoint_that_is_recorded(
    tmp_path: Path, moment: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    masters: list[Master] = []
    report = Master.report

    def reported(self: Master, *args: Any) -> Any:
        if self not in masters:
            masters.append(self)
        assert self is masters[-1], "a master of before speaks after its successor"
        return report(self, *args)

    monkeypatch.setattr(Master, "report", reported)
    crew = [FakeTrainer(f"w{place}", epoch_s=lambda message: 0.01) for place in range(3)]
    async with house(tmp_path, *crew) as it:
        job = await it.start(budget="60 epochs")
        await until(lambda: it.trained(job) >= 8 + 3 * moment)
        first = asyncio.create_task(it.training.cancel(job))
        for budget in (90, 90):
            with contextlib.suppress(Overloaded, BadOption):
                await it.training.extend(job, budget)
        await first
        with contextlib.suppress(BadOption):
            await it.training.extend(job, 90)
        await it.ended(job, "done")
        _, run = await it.training.job(job)
        trials = (await run.trials())["resnet"]
        assert sum(trial.charged for trial in trials) == 90
        (study,) = (await run.progress()).values()
        assert study.best_checkpoint in it.checkpoints(job)
        assert await lost(it, job) == set()


def test_a_journal_has_one_master_at_a_time(tmp_path: Path) -> None:
    journal = str(tmp_path / "journal")
    first = MasterLock(journal)
    with pytest.raises(ServiceError, match="somebody trains by"):
        MasterLock(journal)
    first.end()
    MasterLock(journal).end()


@on_a_loop
async def test_a_paused_table_begins_its_trial_again_and_its_budget_is_whole(tmp_path: Path) -> None:
    worker = FakeTrainer(epoch_s=lambda message: 0.01)
    async with house(tmp_path, worker) as it:
        job = await it.start(dataset="t", models=["random_forest"], budget="20 epochs", max_epochs=20)
        await until(lambda: it.trained(job) >= 5)
        assert (await it.training.pause(job)).state == "paused"
        _, run = await it.training.job(job)
        await run.rests()
        (study,) = (await run.progress()).values()
        assert study.epochs_used == 0
        await it.training.resume(job)
        await it.ended(job, "done")
        _, run = await it.training.job(job)
        (trial,) = (await run.trials())["random_forest"][:1]
        assert len(trial.scores) == trial.charged


# ── storage that fails ────────────────────────────────────────────────────────────────────────────


class FullDisk:
    """Journals that cannot be written while `full`; half of each line gets there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = False
        self.refused = 0
        append = _Backend.append_logs

        def appended(backend: _Backend, logs: list[dict[str, Any]]) -> None:
            if self.full:
                self.refused += 1
                raise OSError(errno.ENOSPC, "No space left on device")
            append(backend, logs)

        monkeypatch.setattr(_Backend, "append_logs", appended)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FullDisk:
    return FullDisk(monkeypatch)


@pytest.mark.parametrize("policy", ["study", "branch"])
@on_a_loop
async def test_a_full_disk_stops_no_job_for_good_and_the_job_says_what_it_waits_for(
    tmp_path: Path, disk: FullDisk, policy: str
) -> None:
    async with house(tmp_path, FakeTrainer("w0"), FakeTrainer("w1"), lease_s=0.5) as it:
        job = await it.start(budget="60 epochs", policy=policy)
        await until(lambda: it.trained(job) >= 5)
        disk.full = True
        await until(lambda: disk.refused >= 3)
        known, run = await it.training.job(job)
        assert known.state == "running"
        assert "No space left" in run.trouble
        await asyncio.sleep(1.0)  # longer than a lease
        disk.full = False
        await it.ended(job, "done")
        trials = (await run.trials())["resnet"]
        assert sum(trial.charged for trial in trials) == 60
        assert {trial.attempt for trial in trials} == {1}, "no trial was lost"
        assert run.trouble == ""
        other = await it.start(budget="5 epochs")
        await it.ended(other, "done")


@on_a_loop
async def test_checkpoints_that_find_no_space_are_asked_for_again(tmp_path: Path) -> None:
    worker = FakeTrainer(full=True)
    async with house(tmp_path, worker) as it:
        job = await it.start(budget="10 epochs")
        _, run = await it.training.job(job)
        await until(lambda: run.trouble)
        assert run.trouble == "no space is left for checkpoints"
        worker.full = False
        await it.ended(job, "done")
        assert {trial.attempt for trial in (await run.trials())["resnet"]} == {1}


@pytest.mark.parametrize("order", ["pause", "cancel"])
@on_a_loop
async def test_an_order_that_crosses_a_jobs_end_leaves_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    async with house(tmp_path) as it:
        job = await it.start(budget="4 epochs")
        await it.ended(job, "done")
        running = replace(it.repository.job(job), state="running")
        read = it.repository.job
        monkeypatch.setattr(it.repository, "job", lambda number: running)  # as the order has read it
        if order == "pause":
            with pytest.raises(BadOption, match=f"job {job} is done; only a job that runs can be paused"):
                await it.training.pause(job)
        else:
            assert (await it.training.cancel(job)).state == "done"
        assert read(job).state == "done"


@pytest.mark.parametrize("is_cancelled", [False, True])
@on_a_loop
async def test_epochs_whose_rows_find_no_space_are_asked_for_again(
    tmp_path: Path, is_cancelled: bool
) -> None:
    worker = FakeTrainer(full_of_rows=True)
    async with house(tmp_path, worker) as it:
        job = await it.start(budget="10 epochs")
        _, run = await it.training.job(job)
        await until(lambda: it.trained(job) > 2)
        assert run.trouble == "no space is left for what trials read"
        if is_cancelled:
            await it.training.cancel(job)
            await it.ended(job, "cancelled")
            return
        worker.full_of_rows = False
        await it.ended(job, "done")
        assert {trial.attempt for trial in (await run.trials())["resnet"]} == {1}


@on_a_loop
async def test_a_job_begun_on_a_full_disk_begins_once_there_is_space(tmp_path: Path, disk: FullDisk) -> None:
    async with house(tmp_path) as it:
        disk.full = True
        job = await it.start(budget="5 epochs")
        assert "No space left" in it.training.troubles[job]
        disk.full = False
        await it.ended(job, "done")
        assert it.training.troubles == {}


class Unwritable:
    """A registry that refuses to note what becomes of jobs while `on`."""

    def __init__(self, it: House, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
        self.on = False
        self.refused = 0
        set_job = it.repository.set_job

        def noted(*args: Any, **kwargs: Any) -> Any:
            if self.on:
                self.refused += 1
                raise error
            return set_job(*args, **kwargs)

        monkeypatch.setattr(it.repository, "set_job", noted)


REFUSALS = [
    OSError(errno.ENOSPC, "No space left on device"),
    NoSpace("no space left for the registry"),
    Overloaded("the registry is locked"),
]


@pytest.mark.parametrize("error", REFUSALS, ids=["full", "registry full", "locked"])
@on_a_loop
async def test_an_order_that_cannot_be_stored_is_refused_and_the_job_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    worker = FakeTrainer(epoch_s=lambda message: 0.01)
    async with house(tmp_path, worker) as it:
        job = await it.start(budget="90 epochs")
        registry = Unwritable(it, monkeypatch, error)
        registry.on = True
        for order in (it.training.cancel, it.training.pause):
            with pytest.raises(type(error)):
                await order(job)
        before = it.trained(job)
        await until(lambda: it.trained(job) >= before + 3)
        registry.on = False
        assert (await it.training.pause(job)).state == "paused"
        assert (await it.training.cancel(job)).state == "cancelled"
        await it.ended(job, "cancelled")
        before = it.trained(job)
        await asyncio.sleep(0.3)
        assert it.trained(job) == before, "what was cancelled trains no more"


@pytest.mark.parametrize("error", REFUSALS, ids=["full", "registry full", "locked"])
@on_a_loop
async def test_an_end_that_cannot_be_stored_is_stored_later_and_other_jobs_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async with house(tmp_path) as it:
        registry = Unwritable(it, monkeypatch, error)
        registry.on = True
        job = await it.start(budget="3 epochs")
        await until(lambda: registry.refused >= 2)
        known, run = await it.training.job(job)
        assert known.state == "running"
        assert "it is done, which cannot be stored yet" in run.trouble
        assert (await it.training.cancel(job)).state == "running", "its end is being stored"
        other = await it.start(budget="5 epochs")
        await until(lambda: it.trained(other) >= 5)
        registry.on = False
        await it.ended(job, "done")
        await it.ended(other, "done")


@on_a_loop
async def test_a_registry_locked_by_another_process_fails_no_job(tmp_path: Path) -> None:
    engine = open_database(f"sqlite:///{tmp_path / 'registry.db'}")
    async with house(tmp_path, engine=engine) as it:
        job = await it.start(budget="20 epochs")
        other = open_database(f"sqlite:///{tmp_path / 'registry.db'}")
        with other.connect() as connection:
            connection.execute(text("UPDATE jobs SET reason = reason"))
            await until(lambda: it.trained(job) >= 20)
            await asyncio.sleep(2.0)
            connection.rollback()
        other.dispose()
        await it.ended(job, "done")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of one megabyte."""
    where = tmp_path / "small"
    where.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(where)]
    mounted = subprocess.run(command, capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no filesystem may be mounted here: {mounted.stderr.decode()}")
    yield where
    subprocess.run(["umount", "-l", str(where)], check=True)


@on_a_loop
async def test_a_job_outlives_a_filesystem_that_is_really_full(small_disk: Path) -> None:
    worker = FakeTrainer(epoch_s=lambda message: 0.005)
    async with house(small_disk, worker) as it:
        job = await it.start(budget="60 epochs", policy="study")
        await until(lambda: it.trained(job) >= 10)
        ballast = small_disk / "ballast"
        with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"x" * 4096)
        _, run = await it.training.job(job)
        await until(lambda: run.trouble or it.trained(job) >= 60)
        ballast.unlink()
        await it.ended(job, "done")
        assert sum(trial.charged for trial in (await run.trials())["resnet"]) == 60
    async with house(small_disk) as it:
        _, run = await it.training.job(job)
        assert sum(trial.charged for trial in (await run.trials())["resnet"]) == 60, "the journal is whole"


def test_a_write_that_fails_half_way_leaves_the_journal_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from server.training.studies.journal import open_journal
    from tests.unit.training.simulation import run, spec_of

    journal = tmp_path / "journal"
    run(Master(spec_of(budget_epochs=10), open_journal(str(journal))))
    before = journal.read_bytes()
    master = Master(spec_of(budget_epochs=20), open_journal(str(journal)))
    before = journal.read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
        with pytest.raises(OSError, match="full"):
            master.request("w", 0.0)
    assert journal.read_bytes() == before
    assert issubclass(_Backend, JournalFileBackend)
    run(master)
    assert Master(spec_of(budget_epochs=20), open_journal(str(journal))).progress().epochs_used == 20


# ── shares of a worker ────────────────────────────────────────────────────────────────────────────


@on_a_loop
async def test_a_small_job_does_not_wait_for_a_big_one_beside_it(tmp_path: Path) -> None:
    worker = FakeTrainer(epoch_s=lambda message: 0.3 if "resnet" in message.trial else 0.01)
    async with house(tmp_path, worker) as it:
        big = await it.start(budget="2000 epochs", policy="study", max_epochs=500, patience=500)
        await until(lambda: it.trained(big) >= 3)
        began_s = time.monotonic()
        small = await it.start(dataset="t", models=["random_forest"], budget="60 epochs")
        await it.ended(small, "done")
        # Of 0.6 s of its own: one epoch of the big one, as much again, and what the journal takes.
        assert time.monotonic() - began_s < 6.0
        assert it.trained(big) >= 4, "and the big one goes on"
        await it.training.cancel(big)


# ── lists ─────────────────────────────────────────────────────────────────────────────────────────


def files_of(folder: Path) -> dict[str, tuple[int, int]]:
    """What lies there, and when it was changed."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.stat().st_size)
        for path in folder.rglob("*")
    }


@on_a_loop
async def test_listing_jobs_opens_no_ended_jobs_journal_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house(tmp_path) as it:
        jobs = [await it.start(budget="4 epochs", seed=seed) for seed in range(3)]
        for job in jobs:
            await it.ended(job, "done")
    async with house(tmp_path) as it:
        before = files_of(it.folder)
        for module in ("run.open_journal", "run.read_journal"):
            monkeypatch.setattr(
                f"server.training.jobs.{module}", lambda path: pytest.fail(f"{path} was opened to list jobs")
            )
        listed = await it.training.jobs()
        assert [job.id for job, _ in listed] == jobs
        assert {job.found["studies"]["resnet"]["epochs_used"] for job, _ in listed if job.found} == {4}
        assert [job.id for job, _ in await it.training.jobs(after=jobs[0], limit=1)] == [jobs[1]]
        monkeypatch.undo()
        for job in jobs:
            _, run = await it.training.job(job)
            assert (await run.progress())["resnet"].epochs_used == 4
        assert files_of(it.folder) == before, "to look at trials writes nothing either"


@on_a_loop
async def test_looking_at_a_job_of_another_home_makes_no_journal(tmp_path: Path) -> None:
    async with house(tmp_path) as it:
        job = await it.start(budget="4 epochs")
        await it.ended(job, "done")
        (it.folder / "studies" / f"job-{job}.journal").unlink()
    async with house(tmp_path) as it:
        _, run = await it.training.job(job)
        assert (await run.trials()) == {"resnet": []}
        assert not (it.folder / "studies" / f"job-{job}.journal").exists()


@pytest.mark.parametrize(
    "damage", ["null\n", "{}\n", "[]\n", '{"op_code": 99, "worker_id": "w"}\n', "\0\0\n", "\xff\n"]
)
@on_a_loop
async def test_a_job_whose_journal_is_damaged_fails_alone_and_says_which(tmp_path: Path, damage: str) -> None:
    async with house(tmp_path, FakeTrainer(epoch_s=lambda message: 0.02)) as it:
        damaged = await it.start(budget="1000 epochs")
        other = await it.start(budget="1000 epochs")
        await until(lambda: it.trained(damaged) and it.trained(other))
    journal = it.folder / "studies" / f"job-{damaged}.journal"
    with journal.open("ab") as file:
        file.write(damage.encode("latin-1"))
    async with house(tmp_path) as it:
        assert it.training.runs(other)
        found = it.repository.job(damaged)
        assert found.state == "failed"
        assert f"the job's records, {journal}, are damaged" in found.reason
        with pytest.raises(ServiceError, match=f"the studies of job {damaged} cannot be read"):
            await it.training.job(damaged)
        told = await described(it.training, *await it.training.shown(damaged))
        assert (told["state"], told["reason"]) == ("failed", found.reason)


@pytest.mark.parametrize("damage", ["emptied", "removed", "half a line"])
@on_a_loop
async def test_a_job_whose_journal_is_gone_says_so_and_keeps_its_checkpoints(
    tmp_path: Path, damage: str
) -> None:
    async with house(tmp_path, FakeTrainer(epoch_s=lambda message: 0.02)) as it:
        job = await it.start(budget="1000 epochs")
        other = await it.start(budget="1000 epochs")
        kept = it.folder / "checkpoints" / f"job-{job}"
        await until(lambda: it.trained(other) and any(kept.glob("*.safetensors")))
    journal = it.folder / "studies" / f"job-{job}.journal"
    before = {path.name for path in kept.iterdir()}
    if damage == "removed":
        journal.unlink()
    else:
        journal.write_text("" if damage == "emptied" else '{"op_code"')
    async with house(tmp_path) as it:
        assert it.training.runs(other)
        found = it.repository.job(job)
        assert found.state == "failed"
        assert f"the job's records, {journal}, are gone, and it has trained already" in found.reason
        told = await described(it.training, *await it.training.shown(job))
        assert (told["state"], told["reason"]) == ("failed", found.reason)
        with pytest.raises(ValueError, match="are gone"):
            await it.training.extend(job, "2000 epochs")
    assert {path.name for path in kept.iterdir()} == before


@on_a_loop
async def test_a_job_whose_snapshot_cannot_be_read_fails_alone(tmp_path: Path) -> None:
    async with house(tmp_path, FakeTrainer(epoch_s=lambda message: 0.02)) as it:
        damaged = await it.start(budget="1000 epochs")
        other = await it.start(dataset="t", models=["random_forest"], budget="1000 epochs")
        await until(lambda: it.trained(damaged) and it.trained(other))
        it.repository.add_snapshot("d", {**SPEC, "name": "d"}, {"id": "s9"})
        with Session(it.repository._engine) as session:
            session.execute(update(JobRow).where(JobRow.id == damaged).values(snapshot="s9"))
            session.commit()
    async with house(tmp_path) as it:
        assert it.training.runs(other)
        found = it.repository.job(damaged)
        assert (found.state, found.reason) == ("failed", "it cannot be read: KeyError: 'file'")


@on_a_loop
async def test_a_job_whose_specification_is_damaged_fails_alone_and_is_shown(tmp_path: Path) -> None:
    async with house(tmp_path, FakeTrainer(epoch_s=lambda message: 0.02)) as it:
        damaged = await it.start(budget="1000 epochs")
        other = await it.start(budget="1000 epochs")
        await until(lambda: it.trained(damaged) and it.trained(other))
        with it.repository._engine.begin() as connection:
            connection.execute(text("UPDATE jobs SET spec = '{' WHERE id = :job"), {"job": damaged})
    async with house(tmp_path) as it:
        assert it.training.runs(other)
        found = it.repository.job(damaged)
        assert found.state == "failed"
        assert found.reason.startswith(f"the specification of job {damaged} is damaged in the registry (")
        shown = [await described(it.training, *known) for known in await it.training.jobs()]
        assert [(told["id"], told["state"]) for told in shown] == [(damaged, "failed"), (other, "running")]
        assert shown[0]["reason"] == found.reason
        with pytest.raises(ServiceError, match="is damaged in the registry"):
            await it.training.extend(damaged, "2000 epochs")


@on_a_loop
async def test_a_job_for_a_task_of_a_newer_release_is_listed(tmp_path: Path) -> None:
    async with house(tmp_path) as it:
        known = it.repository.add_job(
            "d", "s1", {**JobSpec("d", models=("resnet",)).as_json(), "task": "new"}
        )
        ended = it.repository.set_job(known.id, "done", found={"studies": {}})
        told = await described(it.training, ended, None)
    assert (told["task"], told["state"], told["metric"], told["best_score"]) == ("new", "done", None, None)


@on_a_loop
async def test_a_server_that_starts_again_goes_on_with_the_jobs_that_ran(tmp_path: Path) -> None:
    async with house(tmp_path, FakeTrainer(epoch_s=lambda message: 0.01)) as it:
        job = await it.start(budget="40 epochs")
        await until(lambda: it.trained(job) >= 10)
    async with house(tmp_path) as it:
        await it.ended(job, "done")
        _, run = await it.training.job(job)
        trials = (await run.trials())["resnet"]
        assert sum(trial.charged for trial in trials) == 40
        assert {trial.attempt for trial in trials} == {1}


@pytest.mark.parametrize("how", ["lost", "restored from an older copy"])
@on_a_loop
async def test_a_job_takes_nothing_over_from_one_that_a_lost_registry_gave_its_number(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    registry, copy = tmp_path / "registry.db", tmp_path / "copy.db"
    async with house(tmp_path) as it:
        first = await it.start(budget="10 epochs")
        await it.ended(first, "done")
        backed_up(registry, copy)
        last = await it.start(budget="10 epochs")
        await it.ended(last, "done")
        left = it.checkpoints(last)
    journal = tmp_path / "training" / "studies" / f"job-{last}.journal"
    before = journal.read_bytes()
    replaced(registry, None if how == "lost" else copy)
    async with house(tmp_path) as it:
        job = await it.start(budget="10 epochs")
        assert job == last + 1
        await it.ended(job, "done")
        assert it.trained(job) == 10
        assert (journal.read_bytes(), it.checkpoints(last)) == (before, left)
        assert f"numbered after them job={job} last={last}" in caplog.text
        caplog.clear()
        assert await it.start(budget="10 epochs") == job + 1
        assert "numbered after them" not in caplog.text, "once it is known"


def backed_up(registry: Path, copy: Path) -> None:
    with (
        contextlib.closing(sqlite3.connect(registry)) as source,
        contextlib.closing(sqlite3.connect(copy)) as to,
    ):
        source.backup(to)


def replaced(registry: Path, copy: Path | None) -> None:
    for path in registry.parent.glob(f"{registry.name}*"):
        path.unlink()
    if copy is not None:
        copy.rename(registry)


@pytest.mark.parametrize(("most", "seen"), [(1, 1), (0, 2)])
@on_a_loop
async def test_no_more_epochs_of_a_tokens_jobs_run_at_a_time_than_it_may_have(
    tmp_path: Path, most: int, seen: int
) -> None:
    crew = [FakeTrainer(name, epoch_s=lambda message: 0.1) for name in ("w1", "w2")]
    async with house(tmp_path, *crew) as it:
        it.training._most_epochs = lambda owner: most if owner == "team" else 0
        view = View(Caller("team"), Things())
        form = {"dataset": "d", "models": ["resnet"], "budget": "6 epochs"}
        jobs = [(await it.training.start(form, view)).id for _ in range(2)]
        at_a_time = 0
        while any(it.training.runs(job) for job in jobs):
            at_a_time = max(at_a_time, sum(bool(worker._under_way) for worker in crew))
            await asyncio.sleep(0.005)
        assert at_a_time == seen
        for job in jobs:
            await it.ended(job, "done")
        await until(lambda: not it.training._epochs)
