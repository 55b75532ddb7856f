"""Which worker is asked: the one with the least to do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from gpu_worker.wire.protocol import Done, Failed, Message
from server.errors import Overloaded
from server.training.trainers import Trainers
from server.workers.pool import Worker, WorkerInfo


@dataclass
class Busy:
    """A worker whose replies come when `over` is set."""

    name: str
    over: asyncio.Event
    asked: list[Message] = field(default_factory=list)
    deaths: int = 0  # of the next questions
    info: WorkerInfo = field(default_factory=lambda: WorkerInfo("cpu", "cpu", 0))

    async def call(self, message: Message) -> Message:
        self.asked.append(message)
        await self.over.wait()
        if self.deaths:
            self.deaths -= 1
            return Failed(message.id, "worker_lost", "its socket closed")
        return Done(message.id)


class Nobody:
    def worker_up(self, worker: Worker) -> None:
        """Nobody is told."""

    def worker_down(self, worker: Worker) -> None:
        """Nobody is told."""


def with_workers(work: Callable[[Trainers, list[Busy], asyncio.Event], Any]) -> None:
    async def run() -> None:
        over = asyncio.Event()
        workers = [Busy(name, over) for name in ("a", "b", "c")]
        trainers = Trainers(Nobody(), 1.0)
        for worker in workers:
            trainers.worker_up(cast("Worker", worker))
        await work(trainers, workers, over)

    asyncio.run(run())


def test_a_question_goes_to_a_worker_that_trains_nothing() -> None:
    async def work(trainers: Trainers, workers: list[Busy], over: asyncio.Event) -> None:
        first, _, third = workers
        over.set()
        with trainers.busy(cast("Worker", first)), trainers.busy(cast("Worker", third)):
            await trainers.ask(Done(0))
        assert [len(worker.asked) for worker in workers] == [0, 1, 0]
        await trainers.ask(Done(0))
        assert len(first.asked) == 1, "what is over counts no more"

    with_workers(work)


def test_questions_at_once_are_dealt_out() -> None:
    async def work(trainers: Trainers, workers: list[Busy], over: asyncio.Event) -> None:
        asked = [asyncio.create_task(trainers.ask(Done(0))) for _ in range(6)]
        await asyncio.wait(asked, timeout=0.05)
        assert [len(worker.asked) for worker in workers] == [2, 2, 2]
        over.set()
        await asyncio.gather(*asked)

    with_workers(work)


@pytest.mark.parametrize(("deaths", "answer"), [(1, Done), (2, Failed)])
def test_a_question_whose_worker_dies_is_asked_once_more(deaths: int, answer: type[Message]) -> None:
    async def work(trainers: Trainers, workers: list[Busy], over: asyncio.Event) -> None:
        over.set()
        for worker in workers:
            worker.deaths = deaths
        workers[0].deaths, workers[1].deaths = 1, deaths - 1
        with trainers.busy(cast("Worker", workers[2])):
            reply = await trainers.ask(Done(0))
            assert (len(workers[0].asked), len(workers[1].asked)) == (2, 0)
        assert isinstance(reply, Done), "its successor answered"
        workers[0].deaths = deaths
        with trainers.busy(cast("Worker", workers[1])), trainers.busy(cast("Worker", workers[2])):
            assert isinstance(await trainers.ask(Done(0)), answer)

    with_workers(work)


def test_of_photos_those_are_asked_first_that_see_them() -> None:
    async def run() -> None:
        over = asyncio.Event()
        over.set()
        far = Busy("far", over, info=WorkerInfo("cpu", "cpu", 0, sees_pictures=False))
        near = Busy("near", over)
        trainers = Trainers(Nobody(), 0.01)
        trainers.worker_up(cast("Worker", far))
        await trainers.ask(Done(0), pictures=True)
        assert len(far.asked) == 1, "it is sent them"
        trainers.worker_up(cast("Worker", near))
        with trainers.busy(cast("Worker", near)):
            await trainers.ask(Done(0), pictures=True)
            await trainers.ask(Done(0))
        assert (len(far.asked), len(near.asked)) == (2, 1)
        trainers.withdraw("near")
        await trainers.ask(Done(0), pictures=True)
        assert len(far.asked) == 3
        trainers.worker_down(cast("Worker", near))
        trainers.worker_down(cast("Worker", far))
        with pytest.raises(Overloaded, match="no worker is up;"):
            await trainers.ask(Done(0))

    asyncio.run(run())
