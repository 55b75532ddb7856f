"""Two training services on one registry and folder: one trains, both take orders, and one takes over."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import text

from server.catalog.lease import SeenServer
from server.errors import LeaseLost, Overloaded
from server.store.database import migrate, open_database
from server.store.leases import LeaseRepository
from server.training.studies.journal import MasterLock, open_journal
from server.training.studies.messages import Assignment
from server.training.studies.study import Master
from tests.unit.training.simulation import spec_of
from tests.unit.training.training_house import FakeTrainer, House, house, on_a_loop, until


class Held:
    """A server's hold on the lease, as the test says."""

    def __init__(self) -> None:
        self.is_held = False
        self.fence: int | None = None


def handed_to(home: Path, server: str) -> int:
    """The lease of the registry is that server's from now on: its fencing number."""
    engine = open_database(f"sqlite:///{home / 'registry.db'}")
    migrate(engine)
    with engine.begin() as connection:
        connection.execute(text("UPDATE leases SET until_s = 0"))
    fence = LeaseRepository(engine).ask(SeenServer(server, server, "1"), lambda process: False).fence
    engine.dispose()
    return fence


@contextlib.asynccontextmanager
async def both(home: Path) -> AsyncIterator[tuple[House, House, Held, Held]]:
    """The first has the lease."""
    first, second = Held(), Held()
    first.is_held, first.fence = True, await asyncio.to_thread(handed_to, home, "a")
    slow = [FakeTrainer(epoch_s=lambda message: 0.01) for _ in range(2)]
    async with house(home, slow[0], lease=first) as one, house(home, slow[1], lease=second) as other:
        yield one, other, first, second


@on_a_loop
async def test_orders_are_taken_by_the_one_that_does_not_train_and_followed_by_the_other(
    tmp_path: Path,
) -> None:
    async with both(tmp_path) as (one, other, _, _):
        job = await other.start(budget="100000 epochs")
        await until(lambda: one.trained(job) >= 3)
        assert (await other.training.pause(job)).state == "paused"
        await until(lambda: one.training._running[job].is_paused)
        await one.training._running[job].rests()
        rested = one.trained(job)
        await other.training.resume(job)
        await until(lambda: one.trained(job) > rested)
        assert (await other.training.cancel(job)).state == "cancelled"
        await one.ended(job, "cancelled")
        assert other.trained(job) == 0
        _, run = await other.training.job(job)
        assert (await run.progress())["resnet"].trials  # what it found is shown where it was not found


@on_a_loop
async def test_a_job_that_has_ended_is_extended_by_the_one_that_does_not_train(tmp_path: Path) -> None:
    async with both(tmp_path) as (one, other, _, _):
        job = await other.start(budget="4 epochs")
        await one.ended(job, "done")
        before = one.trained(job)
        await other.training.extend(job, "8 epochs")
        await until(lambda: one.trained(job) > before)
        await one.ended(job, "done")
        assert other.trained(job) == 0


@on_a_loop
async def test_a_job_whose_server_cannot_renew_its_lease_waits_says_why_and_goes_on(tmp_path: Path) -> None:
    async with both(tmp_path) as (one, _, first, _):
        job = await one.start(budget="100000 epochs")
        await until(lambda: one.trained(job) >= 3)
        run = one.training._running[job]
        assert one.training.trouble(job, run) == ""
        first.is_held = False
        assert "could not be renewed" in one.training.trouble(job, run)
        await run.rests()
        rested = one.trained(job)
        first.is_held = True
        assert one.training.trouble(job, run) == ""
        await until(lambda: one.trained(job) > rested)


@on_a_loop
async def test_who_takes_over_ends_the_job_and_who_was_paused_writes_nothing_more(tmp_path: Path) -> None:
    async with both(tmp_path) as (one, other, first, second):
        job = await one.start(budget="200 epochs")
        await until(lambda: one.trained(job) >= 3)
        # The first does not know it yet, and holds the lock of the journal, as a process that was stopped.
        second.fence, second.is_held = await asyncio.to_thread(handed_to, tmp_path, "b"), True
        await until(lambda: job not in one.training._running)
        trained = one.trained(job)
        first.is_held, first.fence = False, None
        ended = await other.ended(job, "done")
        assert ended.reason == "the budget of epochs is used up"
        assert one.trained(job) == trained
        trials = (await (await other.training.job(job))[1].trials())["resnet"]
        assert [trial.number for trial in trials] == list(range(len(trials)))
        assert {trial.state for trial in trials} <= {"finished", "paused"}


@on_a_loop
async def test_while_the_lease_cannot_be_renewed_nothing_new_is_handed_out(tmp_path: Path) -> None:
    async with both(tmp_path) as (one, _, first, _):
        job = await one.start(budget="100000 epochs", max_epochs=2)
        await until(lambda: one.trained(job) >= 3)
        first.is_held = False
        await until(lambda: not one.training._running[job]._at_work)
        rested = one.trained(job)
        await asyncio.sleep(0.1)
        assert one.trained(job) == rested
        first.is_held = True  # nobody took it: the same number goes on
        await until(lambda: one.trained(job) > rested)
        await one.training.cancel(job)


def test_a_later_lease_takes_a_journal_from_a_paused_master_and_an_earlier_one_never(tmp_path: Path) -> None:
    path = str(tmp_path / "journal")
    paused = MasterLock(path, 5)
    study = Master(spec_of(budget_epochs=10), open_journal(path, paused))
    assert isinstance(study.request("w0", 0.0), Assignment)
    with pytest.raises(Overloaded, match="somebody trains by"):
        MasterLock(path)
    with pytest.raises(Overloaded, match="somebody trains by"):
        MasterLock(path, 5)
    later = MasterLock(path, 6)
    with pytest.raises(LeaseLost):
        study.request("w1", 0.0)
    with pytest.raises(LeaseLost):
        open_journal(path, paused)
    assert Master(spec_of(budget_epochs=10), open_journal(path, later)).trials()[0].worker == "w0"
    paused.end()
    later.end()
    with pytest.raises(LeaseLost):
        MasterLock(path, 5)
    MasterLock(path).end()
