"""One job under way: its masters, and what workers do for them. All on the event loop.

    work(worker): request → Train, Train, … → report → Keep → stored | finish

The masters decide, and write down before they answer; they are asked in a thread, one at a time. A worker
that is lost loses its trial, which the master hands out again with the same inputs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from gpu_worker.protocol import Drop, Failed, Keep, Kept, Message, Train, Trained
from server.errors import ServiceError
from server.store.training import Job, Snapshot
from server.training.jobs import JobSpec
from server.training.ledger import as_begun, open_storage
from server.training.messages import Assignment, Idle, Progress, Stopped, Verdict
from server.training.parameters import ParameterStore, needed
from server.training.study import Master
from server.training.tasks import task_named
from server.training.trainers import Ask
from server.training.trial import Checkpoint, Trial
from server.workers.pool import Worker

__all__ = ["Run", "Tell"]

log = logging.getLogger("ml_udf.server.training")

_BEATS_PER_LEASE = 3

_Result = TypeVar("_Result")
# Told of everything that a person may want to watch.
Tell = Callable[[dict[str, Any]], None]


class Run:
    """`folder` is the training folder of the home; `tell` hears of every epoch."""

    def __init__(
        self, job: Job, snapshot: Snapshot, folder: Path, parameters: ParameterStore, tell: Tell
    ) -> None:
        self.job = job
        self.spec = JobSpec.from_json(job.spec)
        self.snapshot = snapshot
        self._datasets = folder / "datasets"
        self.file = self.file_of(snapshot)
        self._task = task_named(self.spec.task)
        self._parameters = parameters.of(job.id, self._task.suffix)
        self._journal = folder / "studies" / f"job-{job.id}.journal"
        self._tell = tell
        self._masters: dict[str, Master] = {}
        self._asking = asyncio.Lock()
        self._under_way: set[Ask] = set()
        self._stopping = False
        self._pausing = ""  # why
        self._at_work = 0
        self._resting = asyncio.Event()
        self._resting.set()
        self.stopped: dict[str, str] = {}

    def file_of(self, snapshot: Snapshot) -> Path:
        """Where a snapshot's rows lie."""
        return self._datasets / str(snapshot.facts["file"])

    async def open(self) -> None:
        """Begin the studies, or go on where they stand. Raises `ValueError` where a stored one is unreadable.

        Trials that were under way when the last server ended are handed out again.
        """

        def opened() -> dict[str, Master]:
            self._journal.parent.mkdir(parents=True, exist_ok=True)
            for origin in (self.spec.pretrained or {}).values():
                self._parameters.adopt(origin["checkpoint"], self._parameters.of(origin["job"]))
            storage = open_storage(str(self._journal))
            studies = self.spec.studies(self.job.id, self.snapshot.id)
            masters = {model: Master(as_begun(study, storage), storage) for model, study in studies.items()}
            for master in masters.values():
                for trial in master.trials():
                    if trial.worker is not None:
                        master.lose(trial.worker, trial.number, "the server stopped")
            return masters

        self._masters = await asyncio.to_thread(opened)

    async def work(self, worker: Worker) -> bool:
        """One assignment on `worker`; False when there is none for it now. Sets `stopped` as studies end."""
        self._at_work += 1
        self._resting.clear()
        try:
            for model in await self._by_need():
                found = await self._ask(self._masters[model].request, _holder(worker), time.time())
                if isinstance(found, Stopped):
                    self.stopped[model] = found.reason
                elif not isinstance(found, Idle):
                    await self._trial(worker, model, found)
                    return True
            return False
        finally:
            self._at_work -= 1
            if not self._at_work:
                self._resting.set()

    @property
    def over(self) -> bool:
        """Whether every study has ended."""
        return bool(self._masters) and len(self.stopped) == len(self._masters)

    def stop(self) -> None:
        """Hand out nothing more; what runs stops before its next step."""
        self._stopping = True
        for ask in self._under_way:
            ask.cancel()

    def pause(self, reason: str) -> None:
        """Hand out nothing until `go_on`; what runs is put down after its epoch, for that reason."""
        self._pausing = reason

    async def rests(self) -> None:
        """Return when no worker is on one of its trials."""
        await self._resting.wait()

    def go_on(self) -> None:
        """Take `pause` back."""
        self._pausing = ""

    async def progress(self) -> dict[str, Progress]:
        """Every study as people see it."""
        return {model: await self._ask(master.progress) for model, master in self._masters.items()}

    async def trials(self) -> dict[str, list[Trial]]:
        """Every study's records."""
        return {model: await self._ask(master.trials) for model, master in self._masters.items()}

    async def weights(self, digest: str) -> Path:
        """The file of a checkpoint. Raises `ServiceError` where it is gone."""
        return await asyncio.to_thread(self._parameters.at_hand, digest)

    async def collect(self) -> None:
        """Throw away the checkpoints that nothing needs any more. Raises `OSError`, `ServiceError`."""
        trials = await self.trials()
        keep = {digest for records in trials.values() for digest in needed(records)}
        keep |= {origin["checkpoint"] for origin in (self.spec.pretrained or {}).values()}
        await asyncio.to_thread(self._parameters.collect, keep)

    async def _by_need(self) -> list[str]:
        """The studies that go on, the one that used the least of its budget first."""
        if self._stopping or self._pausing:
            return []
        used = {model: found.epochs_used for model, found in (await self.progress()).items()}
        return sorted(used.keys() - self.stopped.keys(), key=lambda model: (used[model], model))

    async def _trial(self, worker: Worker, model: str, given: Assignment) -> None:
        name = f"{self.job.id}/{model}/{given.trial}"
        master = self._masters[model]
        holder = _holder(worker)
        start = await self._start(model, given)
        scores: list[float] = []
        for epoch in range(given.start_epoch + 1, given.start_epoch + given.epochs + 1):
            message = self._train(model, name, start, given, epoch)
            reply = await self._under(worker, message, master, given.trial)
            if self._stopping:
                await self._ask(master.lose, holder, given.trial, "the job was stopped")
                return
            if not isinstance(reply, Trained):
                await self._failed(worker, model, given, reply)
                return
            scores.append(reply.score)
            verdict = await self._ask(
                master.report, holder, given.trial, epoch, reply.score, time.time(), reply.loss
            )
            self._told(worker, model, given, reply, verdict)
            if verdict not in (Verdict.CONTINUE, Verdict.DROP):
                stops, pauses = verdict is Verdict.STOP, verdict is Verdict.PAUSE
                kept = await self._kept(worker, model, name, given, best=stops, paused=pauses)
                if kept is None:
                    return
                score = max(scores) if stops else reply.score
                await self._stored(worker, master, given.trial, epoch, score, verdict, kept)
            if verdict not in (Verdict.CONTINUE, Verdict.PUT):
                await self._under(worker, Drop(0, name), master, given.trial)
                return
            if self._pausing:
                await self._put_down(worker, model, name, given, scores)
                return

    async def _put_down(
        self, worker: Worker, model: str, name: str, given: Assignment, scores: list[float]
    ) -> None:
        """Store where a trial stands, and its best epoch since it began here; another worker may go on."""
        master, last = self._masters[model], given.start_epoch + len(scores)
        best = given.start_epoch + 1 + scores.index(max(scores))
        checkpoints: list[Checkpoint] = []
        for epoch in sorted({best, last}) if self._task.pausable else ():
            ends = epoch == last
            kept = await self._kept(worker, model, name, given, best=not ends, paused=ends)
            if kept is None:
                return
            checkpoints.append(Checkpoint(epoch, scores[epoch - given.start_epoch - 1], kept))
        if checkpoints:
            await self._ask(master.suspend, _holder(worker), given.trial, checkpoints, self._pausing)
        else:
            await self._ask(master.release, _holder(worker), given.trial, self._pausing)
        await self._under(worker, Drop(0, name), master, given.trial)

    def _train(self, model: str, name: str, start: str, given: Assignment, epoch: int) -> Train:
        return Train(
            0,
            trial=name,
            spec=self.spec.train_spec(model, given),
            snapshot=str(self.file),
            classes=list(self.snapshot.facts["classes"]),
            start=start,
            start_epoch=given.start_epoch,
            epoch=epoch,
        )

    async def _start(self, model: str, given: Assignment) -> str:
        """The checkpoint that a trial begins from; "" = random weights."""
        origin = (self.spec.pretrained or {}).get(model)
        digest = given.parent or (origin and origin["checkpoint"])
        return str(await self.weights(digest)) if digest else ""

    async def _kept(
        self, worker: Worker, model: str, name: str, given: Assignment, *, best: bool, paused: bool
    ) -> str | None:
        """The digest of a trial's weights, which are where they last before the master hears of them.

        None where the worker could not write them; that the trial failed, the master then knows.
        """
        master = self._masters[model]
        keep = Keep(0, name, str(self._parameters.folder), best=best, paused=paused)
        reply = await self._under(worker, keep, master, given.trial)
        if not isinstance(reply, Kept):
            await self._failed(worker, model, given, reply)
            return None
        lasting = asyncio.to_thread(self._parameters.keep, reply.checkpoint)
        await self._leased(worker, master, given.trial, lasting)
        return reply.checkpoint

    async def _stored(
        self,
        worker: Worker,
        master: Master,
        trial: int,
        epoch: int,
        score: float,
        verdict: Verdict,
        checkpoint: str,
    ) -> None:
        if verdict is Verdict.STOP:
            await self._ask(master.finish, _holder(worker), trial, score, time.time(), checkpoint)
        elif not await self._ask(master.stored, _holder(worker), trial, epoch, score, checkpoint):
            with contextlib.suppress(ServiceError):  # `collect` finds it
                await asyncio.to_thread(self._parameters.discard, checkpoint)

    async def _failed(self, worker: Worker, model: str, given: Assignment, reply: Message) -> None:
        reason = reply.message if isinstance(reply, Failed) else f"it answered with {reply.kind!r}"
        log.warning("trial failed job=%d %s trial=%d reason=%r", self.job.id, model, given.trial, reason)
        await self._ask(self._masters[model].fail, _holder(worker), given.trial, reason, time.time())
        self._tell({"event": "failed", "model": model, "trial": given.trial, "reason": reason})

    def _told(self, worker: Worker, model: str, given: Assignment, reply: Trained, verdict: Verdict) -> None:
        self._tell(
            {
                "event": "epoch",
                "model": model,
                "trial": given.trial,
                "worker": worker.name,
                "epoch": reply.epoch,
                "score": reply.score,
                "loss": reply.loss,
                "took_s": round(reply.took_s, 3),
                "skipped": reply.skipped,
                "verdict": str(verdict),
            }
        )

    async def _under(self, worker: Worker, message: Message, master: Master, trial: int) -> Message:
        """The reply to a message."""
        ask = Ask(worker, message)
        self._under_way.add(ask)
        try:
            return await self._leased(worker, master, trial, ask.reply())
        finally:
            self._under_way.discard(ask)

    async def _leased(
        self, worker: Worker, master: Master, trial: int, result: Awaitable[_Result]
    ) -> _Result:
        """The result; the trial's lease is kept alive meanwhile."""
        coming = asyncio.ensure_future(result)
        try:
            while True:
                done, _ = await asyncio.wait({coming}, timeout=master.spec.lease_s / _BEATS_PER_LEASE)
                if done:
                    return coming.result()
                await self._ask(master.beat, _holder(worker), trial, time.time())
        finally:
            coming.cancel()

    async def _ask(self, question: Callable[..., _Result], *arguments: Any) -> _Result:  # noqa: ANN401  # passed on
        async with self._asking:
            return await asyncio.to_thread(question, *arguments)


def _holder(worker: Worker) -> str:
    """Who holds a lease: this life of the worker, since its successor has the same name."""
    return f"{worker.name}.{id(worker):x}"
