"""Calls of one row that come together and are alike are one submission, and still each their own."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from server.errors import DeadlineExceeded, Overloaded, VersionGone
from server.scheduling.core import Rejection, Scheduler, Submission
from server.serving.calls import PendingReply
from tests.unit.server.fake_worker import FakeWorker, settle
from tests.unit.server.house import House


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> list[Submission]:
    """What the scheduler was given to queue."""
    found: list[Submission] = []
    submit = Scheduler.submit

    def noted(core: Scheduler, now_s: float, submission: Submission) -> Rejection | None:
        found.append(submission)
        return submit(core, now_s, submission)

    monkeypatch.setattr(Scheduler, "submit", noted)
    return found


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scenario())


def rows_of(worker: FakeWorker) -> list[list[bytes]]:
    return [message.rows for message, _ in worker.batches]


def test_rows_of_one_turn_are_one_submission_beside_the_first(submitted: list[Submission]) -> None:
    async def scenario() -> None:
        worker = FakeWorker(answers=True)
        house = House(worker)
        await settle()
        deadline_s = time.monotonic() + 60
        waiting = [house.ask(row, deadline_s=deadline_s - place / 1e6) for place, row in enumerate("abcde")]
        assert house.dispatcher.queue_depth() == {("f", 1): (5, 5)}
        await settle(40)
        assert [(one.rows, one.nbytes) for one in submitted] == [(1, 1), (4, 4)]
        assert submitted[1].deadline_s == deadline_s - 4e-6  # the soonest of them
        assert [house.labels(one) for one in waiting] == [[row] for row in "abcde"]
        assert house.dispatcher.at_rest()
        assert house.dispatcher.queue_depth() == {("f", 1): (0, 0)}

    run(scenario)


@pytest.mark.parametrize(
    "fields",
    [
        {"row_class": "bulk"},
        {"priority": 1},
        {"slo_s": 0.2},
        {"caller": "another"},
        {"members": ("net/1",)},
        {"deadline_s": time.monotonic() + 3600},
        {"turn": "another"},
    ],
)
def test_what_is_unlike_to_the_scheduler_is_by_itself(
    fields: dict[str, Any], submitted: list[Submission]
) -> None:
    async def scenario() -> None:
        house = House(FakeWorker(answers=True))
        await settle()
        waiting = [house.ask("a"), house.ask("b", **fields), house.ask("c"), house.ask("d", "e")]
        await settle(40)
        assert sum(one.rows for one in submitted) == 5
        assert all(one.rows == 1 or one.request_id == waiting[3].request_id for one in submitted)
        assert [house.labels(one) for one in waiting] == [["a"], ["b"], ["c"], ["d", "e"]]

    run(scenario)


@pytest.mark.parametrize("turns", [0, 1])
def test_a_client_that_vanishes_takes_its_own_row_alone(turns: int) -> None:
    async def scenario() -> None:
        house = House()
        waiting = [house.ask(row) for row in "abcdef"]
        for _ in range(turns):
            await settle()
        for place in (1, 3, 5):
            house.dispatcher.end(waiting[place])
        assert house.dispatcher.queue_depth() == {("f", 1): (3, 3)}
        worker = FakeWorker()
        house.residency.worker_up(worker)
        await settle()
        assert rows_of(worker) == [[b"a", b"c", b"e"]]
        worker.answer()
        await settle()
        assert [house.labels(waiting[place]) for place in (0, 2, 4)] == [["a"], ["c"], ["e"]]
        assert house.dispatcher.at_rest()

    run(scenario)


def test_a_full_queue_refuses_each_row_that_is_too_many_at_once() -> None:
    async def scenario() -> None:
        house = House(rows=4)
        for row in "abcd":
            house.ask(row)
        with pytest.raises(Overloaded):
            house.ask("e")
        await settle()
        assert house.dispatcher.queue_depth() == {("f", 1): (4, 4)}
        with pytest.raises(Overloaded):
            house.ask("e")

    run(scenario)


def test_where_there_is_room_for_some_only_these_are_queued() -> None:
    """Two kinds of rows come in one turn, and neither knows of the other's when it is let in."""

    async def scenario() -> None:
        house = House(rows=6)
        ours = [house.ask(row, caller="ours") for row in "abcd"]
        theirs = [house.ask(row, caller="theirs") for row in "efgh"]
        await settle()
        assert house.dispatcher.queue_depth() == {("f", 1): (6, 6)}
        refused = [one for one in (*ours, *theirs) if isinstance(one.outcome, Overloaded)]
        assert len(refused) == 2
        worker = FakeWorker(answers=True)
        house.residency.worker_up(worker)
        await settle(40)
        assert all(one.done for one in (*ours, *theirs))

    run(scenario)


def test_rows_that_cannot_keep_their_deadline_are_each_told_so() -> None:
    async def scenario() -> None:
        house = House(FakeWorker())
        await settle()
        waiting = [house.ask(row, deadline_s=time.monotonic() + 0.03) for row in "abcdefgh"]
        for one in waiting:
            with pytest.raises(DeadlineExceeded):
                await asyncio.wait_for(one.future, 5)
            house.dispatcher.end(one)
        assert house.dispatcher.queue_depth() == {("f", 1): (0, 0)}

    run(scenario)


def test_rows_of_a_worker_that_dies_run_again_each_by_itself() -> None:
    async def scenario() -> None:
        lost, good = FakeWorker("w0"), FakeWorker("w1", answers=True)
        house = House(lost)
        await settle()
        waiting = [house.ask(row) for row in "abc"]
        await settle()
        assert rows_of(lost) == [[b"a", b"b", b"c"]]
        house.lose(lost)
        house.residency.worker_up(good)
        await settle(40)
        assert [house.labels(one) for one in waiting] == [["a"], ["b"], ["c"]]

    run(scenario)


def test_rows_whose_version_goes_before_the_turn_ends_are_told_so() -> None:
    async def scenario() -> None:
        house = House(FakeWorker())
        await settle()
        waiting = [house.ask(row) for row in "abc"]
        house.dispatcher.remove(house.function)
        assert all(isinstance(one.outcome, VersionGone) for one in waiting)
        with pytest.raises(VersionGone):
            house.ask("d")
        await settle()
        for one in waiting:
            house.dispatcher.end(one)
        assert house.dispatcher.at_rest()

    run(scenario)


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_every_row_has_its_own_answer_or_its_error(seed: int) -> None:
    """Rows, ends of clients, answers, faults and deaths of workers, in any order."""

    async def scenario() -> None:
        chance, number = random.Random(seed), 0
        workers = {name: FakeWorker(name) for name in ("w0", "w1")}
        house = House(*workers.values(), rows=30)
        await settle()
        waiting: dict[str, PendingReply] = {}
        for _ in range(120):
            for _ in range(chance.randint(0, 9)):
                number += 1
                callers = {"caller": chance.choice(("", "b"))}
                try:
                    waiting[str(number)] = house.ask(str(number), **callers)
                except Overloaded:
                    continue
            for name in chance.sample(sorted(waiting), min(len(waiting), chance.randint(0, 2))):
                house.dispatcher.end(waiting.pop(name))
            if chance.random() < 0.7:
                await settle(chance.randint(1, 3))
            for name, worker in workers.items():
                if worker.batches and chance.random() < 0.6:
                    worker.answer()
                elif worker.batches and chance.random() < 0.1:
                    house.residency.worker_down(worker)
                    while worker.batches:
                        worker.fail()
                    workers[name] = FakeWorker(name)
                    house.residency.worker_up(workers[name])
        for worker in workers.values():
            worker.answers = True
        for _ in range(200):
            for worker in workers.values():
                while worker.batches:
                    worker.answer()
            await settle()
        for name, one in waiting.items():
            assert one.done, f"row {name} was never answered"
            if isinstance(one.outcome, Overloaded):
                house.dispatcher.end(one)
            elif not one.result.errors:
                assert house.labels(one) == [name]
            else:
                house.dispatcher.end(one)
        assert house.dispatcher.at_rest()
        assert house.dispatcher.queue_depth() == {("f", 1): (0, 0)}

    run(scenario)
