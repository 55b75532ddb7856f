"""Rows, workers and loads come, go and fail in any order: each call has one end, and the map is true."""

from __future__ import annotations

import asyncio
import random

import pytest

from server.catalog.functions import Function
from server.errors import Overloaded, ServiceError
from server.http.body import ClientGone
from server.placement.policies.by_name import placement_named
from server.placement.policy import Capacity
from server.placement.residency import Residency
from server.serving.calls import PendingReply, Reply
from tests.answers import labels_of
from tests.unit.server.fake_worker import FakeWorker, settle
from tests.unit.server.house import House
from tests.unit.server.served import function, text_model
from tests.waiting import until

WORKERS = ("w0", "w1")
MEMBERS = {"fa": "a", "fb": "b", "fc": "c", "both": "ab"}
REFUSALS = ("overloaded", "cancelled")


def served(name: str) -> Function:
    members = [text_model(member) for member in MEMBERS[name]]
    return function(*members, name=name, slo_ms=50.0, max_batch=4, batch_sizes=(1, 4))


class Course:
    """Four functions on up to two workers, each with room for some models."""

    def __init__(self, seed: int, policy: str) -> None:
        self.chance = random.Random(seed)
        self.house = House()
        self.residency = self.house.residency = Residency(
            self.house.dispatcher,
            lambda worker: Capacity(max_models=self.room),
            lambda *_: None,
            policy=placement_named(policy),
            workers=len(WORKERS),
            check_every_s=0,
        )
        self.house.dispatcher.residency = self.residency
        self.room = self.chance.choice([1, 2])
        self.house.dispatcher.remove(self.house.function)
        self.functions = [served(name) for name in MEMBERS]
        for each in self.functions:
            self.house.dispatcher.configure(each)
        self.workers: dict[str, FakeWorker] = {}
        self.calls: list[tuple[PendingReply, list[str]]] = []
        self.heard: dict[int, Reply | BaseException | None] = {}

    def ask(self, one: Function) -> None:
        rows = [f"{len(self.calls)}-{row}" for row in range(self.chance.randint(1, 5))]
        pending = self.house.ask(*rows, function=one)
        pending.listen(self.over, None)
        self.calls.append((pending, rows))

    def over(self, pending: PendingReply, _: None) -> None:
        assert pending.request_id not in self.heard, "each hears once"
        self.heard[pending.request_id] = pending.outcome
        self.house.dispatcher.end(pending)

    def step(self) -> None:
        """Something happens."""
        chance, drawn = self.chance, self.chance.random()
        name = chance.choice(WORKERS)
        worker = self.workers.get(name)
        under_way = [pending for pending, _ in self.calls if not pending.done]
        if drawn < 0.4:
            self.ask(chance.choice(self.functions))
        elif drawn < 0.6 and under_way:
            chance.choice(under_way).fail(ClientGone())
        elif drawn < 0.7 and worker is None:
            worker = self.workers[name] = FakeWorker(name)
            self.residency.worker_up(worker)
        elif drawn < 0.73 and worker is not None:
            self.house.dispatcher.retire(name) if chance.random() < 0.5 else self.house.dispatcher.readmit(
                name
            )
        elif drawn < 0.78 and worker is not None:
            key = f"{chance.choice('abc')}/1"
            if worker.unloadable.pop(key, None) is None:
                worker.unloadable[key] = chance.choice(["internal", "overloaded"])
        elif drawn < 0.82 and worker is not None:
            self.die(worker)
        elif worker is not None and worker.batches:
            worker.fail(chance.choice(REFUSALS), "no room") if chance.random() < 0.2 else self.work(worker)

    def die(self, worker: FakeWorker) -> None:
        del self.workers[worker.name]
        self.residency.worker_down(worker)
        while worker.batches:
            worker.fail()

    def work(self, worker: FakeWorker) -> None:
        missing = [key for key in worker.batches[0][0].models if key not in worker.resident]
        if missing:
            worker.fail("unknown_function", "it is not here", missing=missing)
        else:
            worker.answer()

    def is_at_rest(self) -> bool:
        for worker in self.workers.values():
            while worker.batches:
                self.work(worker)
        return self.house.dispatcher.at_rest()

    def is_true(self) -> bool:
        """Whether what is believed of the workers is what they hold."""
        truth = {name: sorted(worker.resident) for name, worker in self.workers.items()}
        return self.residency.resident() == truth

    async def end(self) -> None:
        """From now on everything goes well."""
        for name in WORKERS:
            self.house.dispatcher.readmit(name)
            if name not in self.workers:
                self.workers[name] = FakeWorker(name)
                self.residency.worker_up(self.workers[name])
            self.workers[name].unloadable.clear()
        await until(self.is_at_rest)
        for one in self.functions:
            self.ask(one)
            await until(self.is_at_rest)
            assert isinstance(self.heard[self.calls[-1][0].request_id], Reply)


def said(outcome: Reply) -> list[str]:
    """Labels; where workers died under a row, again and alone, that."""
    labels = list(labels_of(outcome))
    for row, error in outcome.errors.items():
        assert "of this one alone" in error.message
        labels[row] = ""
    return labels


@pytest.mark.parametrize("policy", ["value", "lfu-da"])
@pytest.mark.parametrize("seed", [1, 6, 11])
def test_every_call_has_one_end_and_the_map_is_true(seed: int, policy: str) -> None:
    async def scenario() -> None:
        course = Course(seed, policy)
        for _ in range(120):
            course.step()
            await settle(course.chance.randint(1, 4))
        await course.end()
        for pending, rows in course.calls:
            outcome = course.heard[pending.request_id]
            if isinstance(outcome, Reply):
                assert all(one in ("", row) for one, row in zip(said(outcome), rows, strict=True))
            elif not isinstance(outcome, ClientGone | Overloaded):
                assert isinstance(outcome, ServiceError)
                assert "cannot be loaded" in outcome.message
        await until(course.is_true)
        assert set(course.house.dispatcher.queue_depth().values()) == {(0, 0)}
        await course.residency.close()

    asyncio.run(scenario())
