"""The lease: who may hold it when, on both kinds of registry; what a holder does when it cannot renew."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from server.catalog.lease import LEASE_S, Holding, Renew, SeenServer, Take, Wait, decide, tenure
from server.errors import LeaseLost
from server.lease import Lease, has_ended, seen_now
from server.store.database import migrate, open_database
from server.store.leases import LeaseRepository
from server.store.training import TrainingRepository
from tests.waiting import until

FREE = Holding(None, 0, 0.0)


def NEVER(process: str) -> bool:  # noqa: N802  # a constant function
    return False


# ── decisions ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_free_lease_is_taken_by_a_number_above_all_before() -> None:
    assert decide(FREE, "a", 100.0) == Take(100)
    assert decide(Holding(None, 500, 0.0), "a", 100.0) == Take(501)


def test_a_holder_renews_by_its_number_even_late_where_nobody_took_it() -> None:
    assert decide(Holding("a", 7, 105.0), "a", 100.0) == Renew(7)
    assert decide(Holding("a", 7, 105.0), "a", 200.0) == Renew(7)


def test_another_waits_until_it_runs_out_and_not_a_moment_less() -> None:
    held = Holding("a", 7, 105.0)
    assert decide(held, "b", 100.0) == Wait(5.0)
    assert isinstance(decide(held, "b", 104.999), Wait)
    assert decide(held, "b", 105.0) == Take(105)


def test_one_whose_process_has_ended_is_not_waited_for() -> None:
    assert decide(Holding("a", 7, 105.0), "b", 100.0, is_gone=True) == Take(100)


def test_a_holder_stops_by_its_own_clock_before_another_may_begin() -> None:
    asked_s, answered_s = 10.0, 10.4  # the row was written somewhere in between
    mine = tenure(7, asked_s)
    assert mine.holds(asked_s + LEASE_S - 0.51)
    assert not mine.holds(asked_s + LEASE_S - 0.5)
    assert mine.until_s < answered_s + LEASE_S


# ── the row ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def engine(database: Engine) -> Engine:
    return database


def server(name: str, process: str = "") -> SeenServer:
    return SeenServer(name, name, "1", process)


def expire(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("UPDATE leases SET until_s = 0"))


def test_of_two_servers_one_holds_it_and_the_other_takes_over_what_is_given_back(engine: Engine) -> None:
    leases = LeaseRepository(engine)
    first = leases.ask(server("a"), NEVER)
    assert (first.holder, leases.ask(server("b"), NEVER)) == ("a", first)
    leases.leave("b")  # whoever does not hold it gives nothing back
    assert leases.holding()[0].holder == "a"
    leases.leave("a")
    second = leases.ask(server("b"), NEVER)
    assert second.holder == "b"
    assert second.fence > first.fence


def test_the_time_is_the_databases(engine: Engine) -> None:
    leases = LeaseRepository(engine)
    held = leases.ask(server("a"), NEVER)
    _, now_s = leases.holding()
    assert 0 < held.until_s - now_s <= LEASE_S
    expire(engine)
    assert leases.ask(server("b"), NEVER).holder == "b"


def test_servers_are_listed_while_they_live(engine: Engine) -> None:
    leases = LeaseRepository(engine)
    for name in "ab":
        leases.ask(server(name), NEVER)
    seen, held, _ = leases.servers()
    assert ([each.name for each in seen], held.holder) == (["a", "b"], "a")
    began_s = seen[0].started_s
    leases.ask(server("a"), NEVER)
    leases.leave("b")
    seen, _, now_s = leases.servers()
    assert [(each.name, each.started_s) for each in seen] == [("a", began_s)]
    assert began_s <= seen[0].seen_s <= now_s


def test_a_holder_that_was_paused_and_wakes_up_writes_nothing_more(engine: Engine) -> None:
    leases, training = LeaseRepository(engine), TrainingRepository(engine)
    old = leases.ask(server("a"), NEVER).fence
    job = training.add_job("food", "s1", {}).id
    training.set_job(job, "running", "an epoch", fence=old)
    expire(engine)
    new = leases.ask(server("b"), NEVER).fence
    with pytest.raises(LeaseLost):
        training.set_job(job, "done", "by the one that woke up", fence=old)
    assert training.job(job).reason == "an epoch"
    assert training.set_job(job, "done", fence=new).state == "done"


# ── processes ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_process_has_ended_where_that_is_certain_alone() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    mine = seen_now("here:1", "1").process
    its = "/".join([*mine.split("/")[:2], *_stat(child.pid)])
    assert not has_ended(mine)
    assert not has_ended(its)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert has_ended(its)  # a zombie does nothing more
    child.communicate()
    assert has_ended(its)
    assert has_ended(mine + "1")  # its number is another's by now
    for unknown in ("", "x", f"another-machine/{mine.partition('/')[2]}", "a/b/c/d"):
        assert not has_ended(unknown)


def _stat(pid: int) -> tuple[str, str]:
    return str(pid), Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


# ── a server's hold on it ─────────────────────────────────────────────────────────────────────────────


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "registry.db"


@pytest.fixture
def leases(file: Path) -> Iterator[LeaseRepository]:
    engine = open_database(f"sqlite:///{file}", lock_timeout_s=0.05)
    migrate(engine)
    yield LeaseRepository(engine)
    engine.dispose()


def test_a_holder_that_cannot_renew_steps_down_and_goes_on_where_nobody_took_over(
    leases: LeaseRepository, file: Path
) -> None:
    async def scenario() -> None:
        clock = Clock()
        held = Lease(leases, seen_now("a", "1"), clock=clock)
        await held.step()
        assert held.is_held
        fence = held.fence
        with sqlite3.connect(file, isolation_level=None) as other:
            other.execute("BEGIN EXCLUSIVE")
            clock.now_s += LEASE_S - 0.5
            await held.step()
            assert not held.is_held
            assert held.fence == fence  # nobody else can have taken it for certain yet
            other.execute("ROLLBACK")
        other.close()
        await held.step()
        assert held.is_held
        assert held.fence == fence

    asyncio.run(scenario())


def test_a_holder_that_was_overtaken_knows_it_when_it_asks(leases: LeaseRepository) -> None:
    async def scenario() -> None:
        clock = Clock()
        old, new = Lease(leases, seen_now("a", "1"), clock=clock), Lease(leases, seen_now("b", "1"))
        await old.step()
        await new.step()
        assert not new.is_held
        clock.now_s += 60.0  # it was paused
        expire(leases._engine)
        await new.step()
        assert new.is_held
        assert not old.is_held
        await old.step()
        assert old.fence is None

    asyncio.run(scenario())


def test_what_is_given_back_is_taken_at_the_next_look(leases: LeaseRepository) -> None:
    async def scenario() -> None:
        first, second = Lease(leases, seen_now("a", "1")), Lease(leases, seen_now("b", "1"), look_s=0.01)
        await first.start()
        await second.start()
        await first.leave()
        assert not first.is_held
        await until(lambda: second.is_held)
        await first.step()
        assert not first.is_held  # it has left for good
        await first.close()
        await second.close()
        assert leases.servers()[0] == []

    asyncio.run(scenario())


def test_many_that_ask_at_once_are_one_holder(leases: LeaseRepository) -> None:
    async def scenario() -> None:
        held = [Lease(leases, seen_now(str(number), "1")) for number in range(8)]
        await asyncio.gather(*(each.step() for each in held))
        began_s = time.monotonic()
        while not any(each.is_held for each in held) and time.monotonic() - began_s < 10:
            await asyncio.gather(*(each.step() for each in held))  # SQLite was locked
        assert sum(each.is_held for each in held) == 1

    asyncio.run(scenario())
