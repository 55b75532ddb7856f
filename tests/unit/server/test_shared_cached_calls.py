"""Shared calls ask the answer cache too: what is kept waits for nothing, and each row is computed once."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from server.errors import ServiceError
from server.http.body import ClientGone
from server.serving.calls import Reply
from server.serving.shared_calls import SharedCall
from tests.answers import labels_of
from tests.unit.server.fake_worker import FakeWorker, settle
from tests.unit.server.test_cached_calls import CachedHouse, rows_of, runs, store

__all__ = ["store"]  # a fixture

pytestmark = pytest.mark.usefixtures("store")


class Clients:
    """Of one shared call: what each has heard."""

    def __init__(self, house: CachedHouse, *rows: str, **fields: Any) -> None:
        self.house = house
        self.heard: dict[int, str | BaseException] = {}
        call = house.call(*rows, **fields)
        pending = house.cached.begin_shared(call)
        assert pending is not None
        self.pending: SharedCall = pending
        pending.listen(self._tell, None)

    def leave(self, place: int) -> None:
        self.house.cached.leave_shared(self.pending, place)

    def _tell(self, pending: SharedCall, _: None) -> None:
        for over in pending.take_over():
            for at, place in enumerate(over.places):
                assert place not in self.heard, "each hears once"
                self.heard[place] = _said(over.outcome, at)
        if pending.done:
            self.house.cached.end_shared(pending)


def _said(outcome: Reply | BaseException, at: int) -> str | BaseException:
    return outcome if isinstance(outcome, BaseException) else list(labels_of(outcome))[at]


async def is_at_rest(house: CachedHouse) -> bool:
    await asyncio.wait_for(house.cached.drained(), 5)
    return house.dispatcher.at_rest() and not len(house.cached._flights)


@runs
async def test_what_is_kept_is_answered_at_once_and_the_rest_is_computed_and_kept() -> None:
    worker = FakeWorker(answers=True)
    house = CachedHouse(worker)
    await settle()
    await house.asked("b", "d")
    worker.answers = False
    clients = Clients(house, "a", "b", "c", "d")
    await settle()
    assert clients.heard == {1: "b", 3: "d"}
    assert rows_of(worker) == [[b"a", b"c"]]
    worker.answer()
    await settle()
    assert clients.heard == {0: "a", 1: "b", 2: "c", 3: "d"}
    assert house.counts == (2, 0, 4)
    counts = house.metrics.of(house.function).cache
    assert (counts.hit_calls, counts.miss_calls) == (2, 1 + 2)
    again = Clients(house, "c", "a")
    await settle()
    assert again.heard == {0: "c", 1: "a"}
    assert rows_of(worker) == []
    assert await is_at_rest(house)


@runs
async def test_rows_that_somebody_computes_already_are_not_computed_again() -> None:
    worker = FakeWorker()
    house = CachedHouse(worker)
    await settle()
    first = Clients(house, "a", "b")
    alone = house.begin("c")
    second = Clients(house, "c", "a", "d", "d")
    await settle()
    assert sorted(row for rows in rows_of(worker) for row in rows) == [b"a", b"b", b"c", b"d"]
    while worker.batches:
        worker.answer()
        await settle()
    await settle()
    assert first.heard == {0: "a", 1: "b"}
    assert second.heard == {0: "c", 1: "a", 2: "d", 3: "d"}
    assert list(labels_of(alone.future.result())) == ["c"]
    assert await is_at_rest(house)


@runs
async def test_who_waits_for_a_shared_row_is_answered_whatever_becomes_of_its_client() -> None:
    worker = FakeWorker()
    house = CachedHouse(worker)
    clients = Clients(house, "a", "b")
    other = house.begin("a")
    late = Clients(house, "b", "x")
    clients.leave(0)
    clients.leave(1)
    await settle()
    assert all(isinstance(clients.heard[place], ClientGone) for place in (0, 1))
    worker.answers = True
    while worker.batches:
        worker.answer()
    await settle(40)
    assert list(labels_of(other.future.result())) == ["a"]
    assert late.heard == {0: "b", 1: "x"}
    assert await is_at_rest(house)


@runs
async def test_a_client_that_waits_for_anothers_row_may_go() -> None:
    worker = FakeWorker()
    house = CachedHouse(worker)
    alone = house.begin("a")
    clients = Clients(house, "a", "b")
    clients.leave(0)
    await settle()
    assert isinstance(clients.heard[0], ClientGone)
    while worker.batches:
        worker.answer()
        await settle()
    assert clients.heard[1] == "b"
    assert list(labels_of(alone.future.result())) == ["a"]
    assert await is_at_rest(house)


@runs
async def test_a_batch_that_fails_costs_its_own_rows_alone_and_nothing_of_it_is_kept() -> None:
    worker = FakeWorker()
    house = CachedHouse(worker)
    await settle()
    clients = Clients(house, *"abcdefgh")
    waiting = house.begin("a")
    await settle()
    assert [len(rows) for rows in rows_of(worker)] == [4, 4]
    worker.fail(code="internal", message="its network broke")
    worker.answer()
    await settle()
    assert all(isinstance(clients.heard[place], ServiceError) for place in range(4))
    assert [clients.heard[place] for place in range(4, 8)] == ["e", "f", "g", "h"]
    assert len(house.cached.store) == 4
    worker.answer()  # who waited for a row of it asks for itself
    await settle()
    assert list(labels_of(waiting.future.result())) == ["a"]
    assert await is_at_rest(house)


@runs
async def test_a_row_at_fault_is_not_kept_and_its_neighbours_are() -> None:
    worker = FakeWorker()
    house = CachedHouse(worker)
    await settle()
    heard: list[tuple[list[int], dict[int, str]]] = []
    pending = house.cached.begin_shared(house.call("a", "b", "c"))
    assert pending is not None

    def tell(one: SharedCall, _: None) -> None:
        for over in one.take_over():
            assert isinstance(over.outcome, Reply)
            errors = {row: error.code for row, error in over.outcome.errors.items()}
            heard.append((list(over.places), errors))
        if one.done:
            house.cached.end_shared(one)

    pending.listen(tell, None)
    await settle()
    worker.answer(errors=(1,))
    await settle()
    assert heard == [([0, 1, 2], {1: "input_invalid"})]
    assert len(house.cached.store) == 2
    assert await is_at_rest(house)


@runs
async def test_paths_and_much_at_once_come_one_by_one_and_what_is_not_kept_is_shared_all_the_same() -> None:
    house = CachedHouse(FakeWorker(answers=True))
    await settle()
    assert house.cached.begin_shared(house.call("x" * (3 << 20), "b")) is None
    clients = Clients(house, "a", "b", answer_cache=False)
    await settle(20)
    assert clients.heard == {0: "a", 1: "b"}
    assert house.counts == (0, 0, 0)
    assert len(house.cached.store) == 0
    assert await is_at_rest(house)


@pytest.mark.parametrize("seed", range(4))
def test_whatever_happens_every_row_has_its_own_answer_once(seed: int) -> None:
    async def scenario() -> None:
        chance = random.Random(seed)
        workers = {name: FakeWorker(name) for name in ("w0", "w1")}
        house = CachedHouse(*workers.values(), rows=400, nbytes=1 << 12)
        await settle()
        asked: list[tuple[Clients, list[str], set[int]]] = []
        for _ in range(100):
            rows = [str(chance.randint(0, 60)) for _ in range(chance.randint(1, 9))]
            clients = Clients(house, *rows)
            asked.append((clients, rows, set(range(len(rows)))))
            if chance.random() < 0.4:
                house.begin(*chance.choices(rows, k=2))
            for clients, _, there in chance.sample(asked, min(len(asked), 2)):
                waiting = sorted(there - clients.heard.keys())
                if waiting and chance.random() < 0.5:
                    gone = chance.choice(waiting)
                    clients.leave(gone)
                    there.discard(gone)
            if chance.random() < 0.7:
                await settle(chance.randint(1, 3))
            if chance.random() < 0.2:  # rows that a worker refused wait for as long as that
                await asyncio.sleep(0.03 * chance.random())
            for worker in workers.values():
                if worker.batches and chance.random() < 0.1:
                    worker.fail(code="overloaded", message="no room")
                elif worker.batches and chance.random() < 0.6:
                    worker.answer()
        for _ in range(300):
            for worker in workers.values():
                while worker.batches:
                    worker.answer()
            await settle()
            if not worker.batches and house.dispatcher.at_rest():
                break
            await asyncio.sleep(0.001)
        for clients, rows, there in asked:
            assert {place: clients.heard.get(place) for place in there} == {
                place: rows[place] for place in there
            }
        assert await is_at_rest(house)

    asyncio.run(scenario())
