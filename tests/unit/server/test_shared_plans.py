"""Requests that share a call of a function that follows plans: each row has its own plan, and its own end."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest

from server.errors import DeadlineExceeded
from server.http.body import ClientGone
from server.serving.calls import Call, Reply
from server.serving.shared_calls import RowsOver, SharedCall, may_share
from tests.unit.server.fake_worker import FakeWorker, settle
from tests.unit.server.test_plans import PRICE, Planned, answer, answered, planned, runs, worker

__all__ = ["worker"]  # a fixture

SURE = {"sure": 0.999, "unsure": 0.34}


class Shared:
    """Rows of one shared call, and how each ended."""

    def __init__(self, served: Planned, *rows: str, **fields: Any) -> None:
        data = [row.encode() for row in rows]
        call = Call(served.function, "text", data, sum(map(len, data)), **fields)
        self.dispatcher = served.house.dispatcher
        self.outcomes: dict[int, Reply | BaseException] = {}
        self.began_s = time.monotonic()
        pending = self.dispatcher.begin_shared(call)
        assert pending is not None
        self.pending = pending
        pending.listen(self._heard, None)

    @property
    def done(self) -> bool:
        return self.pending.done

    def leave(self, row: int) -> None:
        self.dispatcher.leave_shared(self.pending, row)

    def who(self) -> dict[int, str]:
        """By row that has an answer, the members that gave it."""
        return {
            row: outcome.answered_by[0][2]
            for row, outcome in sorted(self.outcomes.items())
            if isinstance(outcome, Reply)
        }

    def _heard(self, pending: SharedCall, _: None) -> None:
        over = pending.take_over()
        for row, outcome in self._each(over):
            assert row not in self.outcomes, "each ends once"
            self.outcomes[row] = outcome
        if pending.done:
            self.dispatcher.end_shared(pending)

    @staticmethod
    def _each(over: list[RowsOver]) -> Iterator[tuple[int, Reply | BaseException]]:
        for part in over:
            for at, row in enumerate(part.places):
                yield row, part.outcome if isinstance(part.outcome, BaseException) else part.outcome.row(at)


def test_they_may_share_whatever_the_policy_unless_a_member_may_be_left_out() -> None:
    for select in ("value", "gear", "async", "exp3"):
        assert may_share(Call(planned(select), "text", [b"a"], 1))
    assert not may_share(Call(planned(late_members="leave_out"), "text", [b"a"], 1))


@runs
async def test_each_is_answered_by_as_many_members_as_it_would_be_by_itself(worker: FakeWorker) -> None:
    served = Planned(worker)
    await served.start()
    served.follow(PRICE)
    alone = {}
    for row in SURE:
        pending = served.ask(row)
        await answered(worker, pending, SURE)
        alone[row] = pending.future.result()
        served.house.dispatcher.end(pending)
    rows = ["sure", "unsure", "unsure", "sure"]
    shared = Shared(served, *rows)
    await answered(worker, shared, SURE)
    await settle()
    for place, row in enumerate(rows):
        reply, by_itself = shared.outcomes[place], alone[row]
        assert isinstance(reply, Reply)
        assert reply.answered_by == by_itself.answered_by
        for name, column in by_itself.columns.items():
            assert reply.columns[name].data == column.data
    assert len(shared.who()[0]) < len(shared.who()[1])
    assert served.house.dispatcher.queue_depth()["plan", 1] == (0, 0)
    assert served.house.dispatcher.at_rest()


@runs
async def test_who_goes_is_asked_of_no_further_member_and_the_others_are_answered(worker: FakeWorker) -> None:
    served = Planned(worker)
    await served.start()
    served.follow(PRICE)
    shared = Shared(served, *["unsure"] * 4)
    await settle()
    answer(worker, SURE)  # a first member of all four
    shared.leave(1)
    shared.leave(2)
    await settle()
    assert len(worker.batches) == 1
    asked = await answered(worker, shared, SURE)
    assert asked
    await settle()
    assert sorted(shared.who()) == [0, 3]
    assert isinstance(shared.outcomes[1], ClientGone)
    assert served.house.dispatcher.queue_depth()["plan", 1] == (0, 0)


@runs
async def test_with_the_last_that_goes_the_call_leaves_the_pool_and_the_worker(worker: FakeWorker) -> None:
    served = Planned(worker)
    await served.start()
    shared = Shared(served, "a", "b")
    await settle()
    shared.leave(0)
    assert not worker.cancelled
    shared.leave(1)
    await settle()
    assert worker.cancelled
    assert shared.done
    assert served.house.dispatcher.queue_depth()["plan", 1] == (0, 0)
    assert served.house.dispatcher.at_rest()


@runs
async def test_at_the_goal_each_is_answered_by_those_that_came(worker: FakeWorker) -> None:
    served = Planned(worker, slo_ms=100.0, select="gear")
    await served.start()
    shared = Shared(served, "unsure", "unsure")
    await settle()
    first = answer(worker, SURE).removesuffix("/1")
    await asyncio.sleep(0.2)
    assert shared.who() == {0: first, 1: first}
    assert served.house.metrics.of(served.function).goal_rows == 2


@runs
async def test_without_any_answer_each_hears_at_its_deadline(worker: FakeWorker) -> None:
    served = Planned(worker, slo_ms=20.0)
    await served.start()
    shared = Shared(served, "a", "b", deadline_s=time.monotonic() + 0.1)
    await asyncio.sleep(0.2)
    assert {type(outcome) for outcome in shared.outcomes.values()} == {DeadlineExceeded}
    assert len(shared.outcomes) == 2
    assert served.house.dispatcher.at_rest()


@pytest.mark.parametrize("select", ["value", "exp3", "all"])
@pytest.mark.parametrize("seed", range(3))
@runs
async def test_whatever_happens_each_that_stays_has_one_answer(
    worker: FakeWorker, seed: int, select: str
) -> None:
    """Calls, alone and shared, of clients that stay or go, on workers that answer or die, in any order."""
    chance = random.Random(seed)
    workers = {"w0": worker, "w1": FakeWorker("w1", info=worker.info)}
    served = Planned(*workers.values(), select=select, slo_ms=2000.0)
    await served.start()
    sure = {str(number): chance.choice([0.34, 0.6, 0.999]) for number in range(12)}
    asked: list[Shared] = []
    gone: dict[Shared, set[int]] = {}
    for _ in range(60):
        shared = Shared(served, *[str(chance.randrange(12)) for _ in range(chance.randint(2, 9))])
        asked.append(shared)
        gone[shared] = set()
        for other in chance.sample(asked, min(len(asked), 2)):
            if not other.done and chance.random() < 0.5:
                row = chance.randrange(len(other.pending.call.rows))
                if row not in other.outcomes:
                    other.leave(row)
                    gone[other].add(row)
        if chance.random() < 0.7:
            await settle(chance.randint(1, 3))
        for name, each in workers.items():
            if each.batches and chance.random() < 0.7:
                answer(each, sure)
            elif each.batches and chance.random() < 0.05:
                served.house.residency.worker_down(each)
                while each.batches:
                    each.fail()
                workers[name] = FakeWorker(name, info=worker.info)
                served.house.residency.worker_up(workers[name])
    give_up_s = time.monotonic() + 20
    while not all(each.done for each in asked) and time.monotonic() < give_up_s:
        for each in workers.values():
            while each.batches:
                answer(each, sure)
        await asyncio.sleep(0.002)
    await settle()
    for shared in asked:
        assert shared.outcomes.keys() == set(range(len(shared.pending.call.rows)))
        for row, outcome in shared.outcomes.items():
            if isinstance(outcome, ClientGone):
                assert row in gone[shared]
                continue
            assert isinstance(outcome, Reply)
            assert outcome.rows == 1
            if outcome.errors:  # workers died under it twice
                assert "of this one alone" in outcome.errors[0].message
            else:
                assert outcome.answered_by[0][2]
    assert served.house.dispatcher.at_rest()
    assert served.house.dispatcher.queue_depth()["plan", 1] == (0, 0)
