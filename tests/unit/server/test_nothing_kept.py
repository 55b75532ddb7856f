"""Nothing of a request is kept once it has ended, however it ended and whatever became of its worker."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import random
import tracemalloc
from collections import Counter
from collections.abc import Iterator

import pytest

from server.errors import ServiceError
from server.serving.calls import Call, PendingReply
from server.serving.in_flight import BatchInFlight
from tests.unit.server.fake_worker import FakeWorker, settle
from tests.unit.server.house import House

ROUNDS = 150
MOST_BYTES_A_ROUND = 400  # the list of moves is not full yet; nine rows of 100 bytes would show


class Chaos:
    """Requests that are answered, cancelled and failed, on workers that die."""

    def __init__(self) -> None:
        self.random = random.Random(1)
        self.worker = FakeWorker()
        self.house = House(self.worker)

    async def run(self, rounds: int) -> None:
        for _ in range(rounds):
            await self._round()

    async def _round(self) -> None:
        pending = [self._ask() for _ in range(self.random.randint(1, 4))]
        waiting = [one for one in pending if one is not None]
        await settle(6)
        chance = self.random.random()
        if chance < 0.2:
            self._die()
        elif chance < 0.35:
            for one in waiting:
                self.house.dispatcher.end(one)
            waiting = []
        elif chance < 0.5 and self.worker.batches:
            self.worker.fail("internal")
        await self._answer_all()
        for one in waiting:
            if one.future.done() and not one.future.cancelled():
                one.future.exception()
            self.house.dispatcher.end(one)
        await self._answer_all()

    def _ask(self) -> PendingReply | None:
        rows = [f"{self.random.random()}" * 6 for _ in range(self.random.randint(1, 6))]
        with contextlib.suppress(ServiceError):
            return self.house.ask(*rows)
        return None

    def _die(self) -> None:
        self.house.residency.worker_down(self.worker)
        while self.worker.batches:
            self.worker.fail()
        self.worker = FakeWorker()
        self.house.residency.worker_up(self.worker)

    async def _answer_all(self) -> None:
        for _ in range(30):
            await settle(3)
            if not self.worker.batches:
                return
            self.worker.answer()


@pytest.fixture
def silent() -> Iterator[None]:
    """Nothing is logged: what pytest keeps of the log for its report is none of ours."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.usefixtures("silent")
def test_requests_that_ended_and_workers_that_died_leave_nothing_behind() -> None:
    async def scenario() -> None:
        others = of_requests()  # what earlier tests of this process left; held, so that no id is used again
        chaos = Chaos()
        await chaos.run(ROUNDS)  # what is filled once: windows, models of latency, caches
        # What leaks grows each time; what happens to be filled meanwhile does not.
        grown = min([await growth(chaos) for _ in range(2)])
        known = set(map(id, others))
        kept = Counter(type(thing).__name__ for thing in of_requests() if id(thing) not in known)
        assert kept["FakeWorker"] == 1
        assert kept.total() == 1, kept
        assert grown < ROUNDS * MOST_BYTES_A_ROUND

    asyncio.run(scenario())


async def growth(chaos: Chaos) -> int:
    """Bytes that are held after more rounds and were not before."""
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    await chaos.run(ROUNDS)
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return grown


_OF_REQUESTS = (Call, PendingReply, BatchInFlight, FakeWorker)


def of_requests() -> list[object]:
    return [thing for thing in gc.get_objects() if type(thing) in _OF_REQUESTS]
