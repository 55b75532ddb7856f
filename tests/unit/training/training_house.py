"""A training service with a registry in SQLite, journals, and workers that pretend."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import itertools
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from sqlalchemy import Engine

from gpu_worker.wire.protocol import (
    CheckpointStored,
    Done,
    EndTraining,
    EpochTrained,
    Failed,
    ForgetTrial,
    Message,
    ProbeTraining,
    StoreCheckpoint,
    TrainEpoch,
    TrainingProbed,
)
from server.catalog.catalog import Catalog
from server.catalog.functions import Function, ModelVersion
from server.catalog.jobs import Job
from server.lease import ALONE, Leading
from server.store.database import migrate, open_database
from server.store.training import TrainingRepository
from server.training.checkpoints.parameters import ParameterStore
from server.training.jobs.service import Training
from server.training.trainers import Trainers
from server.workers.pool import OnReply, WorkerInfo

PATIENCE_S = 90.0
SPEC = {"task": "image-classification", "name": "d"}
FACTS = {
    "id": "s1",
    "file": "s1.parquet",
    "classes": ["a", "b"],
    "splits": {"train": 700, "validation": 150, "test": 150},
}


@dataclass(eq=False)
class FakeTrainer:
    """Trains for `epoch_s` an epoch, one thing at a time, as a training process does."""

    name: str = "w0"
    epoch_s: Callable[[TrainEpoch], float] = lambda message: 0.002
    score: Callable[[TrainEpoch], float] = lambda message: min(0.99, 0.5 + message.epoch / 100)
    loss: Callable[[TrainEpoch], float] = lambda message: 1.0
    took_s: Callable[[TrainEpoch], float] = lambda message: 0.001  # as it says
    error: Callable[[TrainEpoch], str | None] = lambda message: None
    hangs: Callable[[TrainEpoch], bool] = lambda message: False
    ends: bool = True  # whether a process that hangs can be ended
    silent: bool = False  # it answers no look
    evaluates: bool = False  # it is on a deployment's message, whenever it is looked at
    ended: int = 0
    full: bool = False
    full_of_rows: bool = False
    info: WorkerInfo = field(default_factory=lambda: WorkerInfo("cpu", "fake", 0))
    asked: list[Message] = field(default_factory=list)
    killed: list[str] = field(default_factory=list)
    steps: int = 0
    on_kill: Callable[[], None] = lambda: None
    _ids: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _under_way: dict[int, tuple[Message, OnReply]] = field(default_factory=dict)

    def send(self, message: Message, on_reply: OnReply) -> int:
        message.id = next(self._ids)
        loop = asyncio.get_running_loop()
        if isinstance(message, ProbeTraining):
            if self.silent:
                return message.id
            if self.evaluates:
                loop.call_soon(on_reply, TrainingProbed(message.id, self.steps, 1_000_000))
                return message.id
            self.steps += any(
                isinstance(other, TrainEpoch) and not self.hangs(other)
                for other, _ in self._under_way.values()
            )
            on = next(iter(self._under_way), 0)
            loop.call_soon(on_reply, TrainingProbed(message.id, self.steps, on))
            return message.id
        if isinstance(message, EndTraining):
            if self.ends:
                self.ended += 1
                self.lose("the training process ended with status -9")
                loop.call_soon(on_reply, Done(message.id))
            return message.id
        self.asked.append(message)
        assert not self._under_way, "one thing at a time"
        self._under_way[message.id] = (message, on_reply)
        if not (isinstance(message, TrainEpoch) and self.hangs(message)):
            wait_s = self.epoch_s(message) if isinstance(message, TrainEpoch) else 0.0
            loop.call_later(wait_s, self._answer, message.id)
        return message.id

    async def call(self, message: Message) -> Message:
        reply: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self.send(message, lambda message: None if reply.done() else reply.set_result(message))
        return await reply

    def cancel(self, message_id: int) -> None:
        message, on_reply = self._under_way.get(message_id, (None, None))
        if isinstance(message, TrainEpoch) and on_reply is not None:
            del self._under_way[message_id]
            asyncio.get_running_loop().call_soon(on_reply, Failed(message_id, "cancelled", "stopped"))

    def kill(self, reason: str) -> None:
        self.killed.append(reason)
        self.on_kill()
        self.lose(reason)

    def lose(self, reason: str) -> None:
        under_way, self._under_way = self._under_way, {}
        for number, (_, on_reply) in under_way.items():
            asyncio.get_running_loop().call_soon(on_reply, Failed(number, "worker_lost", reason))

    def _answer(self, number: int) -> None:
        message, on_reply = self._under_way.pop(number, (None, None))
        if message is not None and on_reply is not None:
            on_reply(self._carried_out(message))

    def _carried_out(self, message: Message) -> Message:
        if isinstance(message, TrainEpoch):
            if self.full_of_rows:
                return Failed(message.id, "no_space", "no space is left for what trials read")
            if (error := self.error(message)) is not None:
                return Failed(message.id, "bad_option", error)
            loss, score, took_s = self.loss(message), self.score(message), self.took_s(message)
            return EpochTrained(message.id, message.epoch, loss, score, took_s)
        if isinstance(message, StoreCheckpoint):
            return self._keep(message)
        assert isinstance(message, ForgetTrial)
        return Done(message.id)

    def _keep(self, message: StoreCheckpoint) -> Message:
        if self.full:
            return Failed(message.id, "no_space", "no space is left for checkpoints")
        content = f"{message.trial}/{message.best}/{len(self.asked)}".encode()
        digest = hashlib.sha256(content).hexdigest()
        folder = Path(message.directory)
        folder.mkdir(parents=True, exist_ok=True)
        for suffix in (".safetensors", ".onnx"):
            (folder / f"{digest}{suffix}").write_bytes(content)
        return CheckpointStored(message.id, digest, len(content))


class Nobody:
    """A listener that nobody listens behind."""

    def worker_up(self, worker: object) -> None: ...

    def worker_down(self, worker: object) -> None: ...


@dataclass
class House:
    """A service that runs, with its workers."""

    training: Training
    repository: TrainingRepository
    trainers: Trainers
    folder: Path
    workers: list[FakeTrainer]

    async def start(self, **form: Any) -> int:
        given: dict[str, Any] = {"dataset": "d", "models": ["resnet"], "budget": "30 epochs", **form}
        return (await self.training.start(given)).id

    async def ended(self, job: int, state: str | None = None) -> Job:
        """The job, once it has ended and is let go of."""

        async def over() -> bool:
            known = await asyncio.to_thread(self.repository.job, job)
            return known.state not in ("running", "paused") and job not in self.training._running

        await until(over)
        known = await asyncio.to_thread(self.repository.job, job)
        assert state is None or known.state == state, known
        return known

    def trained(self, job: int) -> int:
        """Epochs that workers were asked for."""
        asked = [message for worker in self.workers for message in worker.asked]
        return sum(
            isinstance(message, TrainEpoch) and message.trial.startswith(f"{job}/") for message in asked
        )

    def checkpoints(self, job: int) -> set[str]:
        return {path.stem for path in (self.folder / "checkpoints" / f"job-{job}").glob("[!.]*.safetensors")}


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that is a coroutine's function, as pytest takes it."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


async def until(condition: Callable[[], Any], patience_s: float = PATIENCE_S) -> None:
    """Returns once `condition`, which may be a coroutine's function, holds."""
    end_s = time.monotonic() + patience_s
    while True:
        found = condition()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return
        assert time.monotonic() < end_s, "it never came to that"
        await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def house(
    home: Path,
    *workers: FakeTrainer,
    lease_s: float = 60.0,
    engine: Engine | None = None,
    lease: Leading = ALONE,
) -> AsyncIterator[House]:
    """A service over `home`, which may hold what another has left there. lease: of several, who trains."""
    folder = home / "training"
    (folder / "datasets").mkdir(parents=True, exist_ok=True)
    registry = engine or open_database(f"sqlite:///{home / 'registry.db'}")
    await asyncio.to_thread(migrate, registry)
    repository = TrainingRepository(registry)
    for dataset, task in (("d", "image-classification"), ("t", "tabular-classification")):
        spec = {**SPEC, "name": dataset, "task": task}
        await asyncio.to_thread(repository.add_snapshot, dataset, spec, FACTS)
    trainers = Trainers(Nobody(), 5.0)
    catalog = Catalog(cast(Callable[[ModelVersion], Function], None))  # without a model
    training = Training(
        repository,
        folder,
        ParameterStore(folder / "checkpoints"),
        trainers,
        catalog,
        lease_s=lease_s,
        lease=lease,
    )
    await training.restore()
    if lease is not ALONE:
        training.follow()
    crew = list(workers) or [FakeTrainer()]
    for worker in crew:
        trainers.worker_up(worker)
    try:
        yield House(training, repository, trainers, folder, crew)
    finally:
        await training.suspend(5.0)
        await training.close()
        registry.dispose()
