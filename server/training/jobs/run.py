"""One job under way: its masters, and what workers do for them. All on the event loop.

    work(worker): request → TrainEpoch, TrainEpoch, … → report → StoreCheckpoint → stored | finish

The masters decide, and write down before they answer; they are asked in a thread, one at a time. A worker
that is lost loses its trial, which the master hands out again with the same inputs. Records that cannot be
written (a full disk) are written once they can be: `trouble` says so meanwhile, and nothing is handed out.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from gpu_worker.tasks.metrics import Score, metric_named
from gpu_worker.wire.protocol import (
    CheckpointStored,
    EndTraining,
    EpochTrained,
    Failed,
    ForgetTrial,
    Message,
    StoreCheckpoint,
    TrainEpoch,
)
from server.catalog.jobs import Job, Snapshot
from server.errors import LeaseLost, ServiceError
from server.training.checkpoints.parameters import ParameterStore, needed
from server.training.jobs.saturation import Tried, has_stalled, is_outrun, shows_no_better, stalled_after
from server.training.jobs.spec import JobSpec
from server.training.jobs.steps import BEGIN_S, StepWatch, probed
from server.training.jobs.turns import Turns
from server.training.studies.journal import MasterLock, open_journal, read_journal
from server.training.studies.ledger import as_begun, recorded
from server.training.studies.messages import Assignment, NoWorkYet, Progress, StudyOver, StudySpec, Verdict
from server.training.studies.study import Master, progress_of
from server.training.studies.trial import Checkpoint, Trial
from server.training.trainers import Ask
from server.workers.pool import Worker

__all__ = ["LEASE_S", "Run", "Tell"]

log = logging.getLogger("ml_udf.server.training")

LEASE_S = 60.0  # without a step, and a training process counts as hung
_BEATS_PER_LEASE = 3
_END_S = 15.0  # for a training process to be ended
_RETRY_FIRST_S, _RETRY_MOST_S = 0.2, 5.0
_NO_SPACE = "no_space"
_CANCELLED = "cancelled"
_LONGEST_S = 10**6  # that a timer is set for

_Result = TypeVar("_Result")
# Told of everything that a person may want to watch.
Tell = Callable[[dict[str, Any]], None]


class Run:
    """`folder` is the training folder of the home, beside its models; `tell` hears of every epoch.

    `open` makes it the one that trains, `look` one that only reads what was found.
    """

    def __init__(
        self,
        job: Job,
        snapshot: Snapshot,
        folder: Path,
        parameters: ParameterStore,
        tell: Tell,
        lease_s: float = LEASE_S,
    ) -> None:
        self.job = job
        self.spec = JobSpec.from_json(job.spec)
        self.metric = metric_named(self.spec.metric or self.spec.recipe.metrics[0])
        self.snapshot = snapshot
        self._datasets = folder / "datasets"
        self.file = self.file_of(snapshot)
        self._task = self.spec.recipe
        self._models = folder.parent / "models"
        self._parameters = parameters.of(job.id, self._task.suffix)
        self._journal = folder / "studies" / f"job-{job.id}.journal"
        self._tell = tell
        # The fit of a table's regression is one step.
        self._lease_s = lease_s if self._task.pausable else max(lease_s, BEGIN_S)
        self._master_lock: MasterLock | None = None
        self._masters: dict[str, Master] = {}
        self._found: dict[str, tuple[StudySpec, list[Trial]]] = {}
        self._asking = asyncio.Lock()
        self._held: set[tuple[str, str, int]] = set()  # model, holder and trial, of those under way
        self._under_way: set[Ask] = set()
        self._stopping = False
        self._is_lost = False  # to another server
        self._pausing = ""  # why
        self._at_work = 0
        self._unpaid_s: dict[str, float] = {}  # by model: what has passed since its last report
        self._in_trouble_s = 0.0
        self._resting = asyncio.Event()
        self._resting.set()
        self.stopped: dict[str, StudyOver] = {}
        self.trouble = ""  # why nothing can be stored now
        self.ending = False  # its end is being noted; it takes no more orders

    @property
    def backbone_folder(self) -> Path | None:
        """Where the model lies on which its heads stand; None where it trains no heads."""
        on = self.spec.backbone
        return None if on is None else self._models / str(on["name"]) / str(on["version"])

    def trial_spec(self, model: str, given: Assignment) -> dict[str, Any]:
        """What a worker is sent of a trial."""
        spec, folder = self.spec.train_spec(model, given), self.backbone_folder
        return spec if folder is None else spec | {"backbone": {**spec["backbone"], "directory": str(folder)}}

    def file_of(self, snapshot: Snapshot) -> Path:
        """Where a snapshot's rows lie."""
        return self._datasets / str(snapshot.facts["file"])

    async def open(self, *, again: bool = False, fence: int | None = None) -> None:
        """Begin the studies, or go on where they stand; `again`: in spite of the errors that ended them.

        Trials that were under way when the last server ended are handed out again. fence: of the lease by
        which. Raises `OSError`; `ValueError` where a stored study is unreadable, `Overloaded` where somebody
        trains the job already, `LeaseLost` where that is by a later lease.
        """

        def opened() -> dict[str, Master]:
            self._journal.parent.mkdir(parents=True, exist_ok=True)
            self._master_lock = MasterLock(str(self._journal), fence)
            for origin in (self.spec.pretrained or {}).values():
                self._parameters.adopt(origin["checkpoint"], self._parameters.of(origin["job"]))
            with _readable(self._journal):
                storage = open_journal(str(self._journal), self._master_lock)
                self._check_records()
                masters = {
                    model: Master(as_begun(study, storage), storage)
                    for model, study in self._studies().items()
                }
            for master in masters.values():
                for trial in master.trials():
                    if trial.worker is not None:
                        master.lose(trial.worker, trial.number, "the server stopped")
                if again:
                    master.forgive()
            return masters

        try:
            self._masters = await asyncio.to_thread(opened)
        except BaseException:
            self.close()
            raise

    async def look(self) -> None:
        """Read what the studies have found; nothing is written. Raises `OSError`, `ValueError`."""

        def read() -> dict[str, tuple[StudySpec, list[Trial]]]:
            with _readable(self._journal):
                storage = read_journal(str(self._journal))
                if storage is None:
                    return {model: (study, []) for model, study in self._studies().items()}
                return {
                    model: (as_begun(study, storage), recorded(study.name, storage))
                    for model, study in self._studies().items()
                }

        self._found = await asyncio.to_thread(read)

    def _check_records(self) -> None:
        """Raises ValueError where there are checkpoints of the job, and no records: begun anew, it would
        throw them away.
        """
        if self._journal.exists() and self._journal.stat().st_size:
            return
        before = {origin["checkpoint"] for origin in (self.spec.pretrained or {}).values()}
        if self._parameters.has_others(before):
            raise ValueError(
                f"the job's records, {self._journal}, are gone, and it has trained already: "
                "restore the file, or train anew"
            )

    def close(self) -> None:
        """Let another be the one that trains."""
        if self._master_lock is not None:
            self._master_lock.end()

    async def work(self, worker: Worker, turns: Turns) -> bool:
        """One assignment on `worker`; False when there is none for it now. Sets `stopped` as studies end."""
        self._at_work += 1
        self._resting.clear()
        try:
            for model in await self._by_need():
                found = await self._ask(self._masters[model].request, _holder(worker), time.time())
                if isinstance(found, StudyOver):
                    self.stopped[model] = found
                elif not isinstance(found, NoWorkYet):
                    held = (model, _holder(worker), found.trial)
                    self._held.add(held)
                    place = await self._placed(worker, turns, model, found)
                    try:
                        await self._trial(place, found)
                    except LeaseLost:
                        Ask(worker, ForgetTrial(0, self._name(place)))  # its memory; nobody waits for that
                        raise
                    finally:
                        self._held.discard(held)
                        self._unpaid_s[model] = self._now_s() - place.since_s
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

    async def outcome(self) -> tuple[str, str]:
        """State and reason of a job whose studies have all ended: `failed` where none of them has a model."""
        reasons = {
            f"{model}: {end.reason}" if end.failed else end.reason for model, end in self.stopped.items()
        }
        told = "; ".join(sorted(reasons))
        if _has_model(await self.progress()):
            return "done", told
        errors = [
            trial.reason for records in (await self.trials()).values() for trial in records if trial.reason
        ]
        if errors and not any(end.failed for end in self.stopped.values()):
            told = f"no trial brought a model; the last error: {errors[-1]}"
        return "failed", told

    def stop(self) -> None:
        """Hand out nothing more; what runs stops before its next step, and its best epoch is kept."""
        self._stopping = True
        for ask in self._under_way:
            ask.cancel()

    def let_go(self) -> None:
        """Another server goes on with the job: write nothing more, and end what runs here."""
        self._is_lost = True
        self.stop()

    @property
    def is_paused(self) -> bool:
        """Whether nothing is handed out until `go_on`."""
        return bool(self._pausing)

    def pause(self, reason: str) -> None:
        """Hand out nothing until `go_on`; what runs is suspended after its epoch, for that reason."""
        self._pausing = reason

    async def rests(self) -> None:
        """Return when no worker is on one of its trials."""
        await self._resting.wait()

    def go_on(self) -> None:
        """Take `pause` back."""
        self._pausing = ""

    async def progress(self) -> dict[str, Progress]:
        """Every study as people see it."""
        if not self._masters:
            return {model: progress_of(*found) for model, found in self._found.items()}
        return {model: await self._read(master.progress) for model, master in self._masters.items()}

    async def trials(self) -> dict[str, list[Trial]]:
        """Every study's records."""
        if not self._masters:
            return {model: list(trials) for model, (_, trials) in self._found.items()}
        return {model: await self._read(master.trials) for model, master in self._masters.items()}

    async def weights(self, digest: str) -> Path:
        """The file of a checkpoint, to be served. Raises `ServiceError` where it is gone or damaged."""
        return await asyncio.to_thread(self._parameters.whole, digest)

    def pins(self) -> contextlib.AbstractContextManager[set[str]]:
        """Checkpoints that stay within the block, though the job may end meanwhile and need them no more."""
        return self._parameters.pins()

    @property
    def checkpoints(self) -> Path:
        """The folder into which workers write."""
        return self._parameters.folder

    async def keep(self, digest: str) -> None:
        """Make a checkpoint that a worker wrote outlast this machine. Raises `ServiceError`."""
        await asyncio.to_thread(self._parameters.keep, digest)

    async def collect(self) -> None:
        """Throw away the checkpoints that nothing needs any more; only of a run that rests.

        Raises `OSError`, `ServiceError`.
        """
        trials = await self.trials()
        keep = {digest for records in trials.values() for digest in needed(records)}
        keep |= {origin["checkpoint"] for origin in (self.spec.pretrained or {}).values()}
        await asyncio.to_thread(self._parameters.collect, keep)

    def _studies(self) -> dict[str, StudySpec]:
        return self.spec.studies(self.job.id, self.snapshot.id, lease_s=self._lease_s)

    async def _by_need(self) -> list[str]:
        """The studies that go on, the one that used the least of its budget first; of equal ones the first
        that the job names: what is quick and known to be good. A study's first trial is trained to its end
        before another study begins: what it finds may be enough.
        """
        if self._stopping or self._pausing or self.trouble:
            return []
        studies = await self.progress()
        before = set(self.stopped)
        self._end_late(studies)
        self._end_saturated(studies)
        for model in self.stopped.keys() - before:
            await self._ask(self._masters[model].conclude, self.stopped[model].reason)
        used = {model: (found.share_used, found.epochs_used) for model, found in studies.items()}
        place = {model: number for number, model in enumerate(self.spec.models)}
        held = {model for model, _, _ in self._held}
        opened = {model for model, study in studies.items() if study.trials and not _has_ended(study)} - held
        return sorted(
            used.keys() - self.stopped.keys(),
            key=lambda model: (model not in opened, used[model], place[model]),
        )

    def _end_late(self, studies: Mapping[str, Progress]) -> None:
        """End the studies of a job whose time has passed, where it has a model."""
        if self._left_s(studies) <= 0 and _has_model(studies):
            for model in studies.keys() - self.stopped.keys() - {model for model, _, _ in self._held}:
                self.stopped[model] = StudyOver("the budget of time is used up")

    def _left_s(self, studies: Mapping[str, Progress]) -> float:
        """Of a budget of time; what trials under way have not reported yet is not counted."""
        if not self.spec.budget_s:
            return math.inf
        used_s = sum(study.seconds_used for study in studies.values()) + sum(self._unpaid_s.values())
        return self.spec.budget_s - used_s

    def stood_still(self, for_s: float) -> None:
        """Nothing might be begun for so long; what is in trouble counts that itself."""
        if not self.trouble:
            self._in_trouble_s += for_s

    def _now_s(self) -> float:
        """The clock of budgets, which rests while records cannot be written."""
        return time.monotonic() - self._in_trouble_s

    def _end_saturated(self, studies: Mapping[str, Progress]) -> None:
        """End the studies that could find nothing better, where the budget is the most that may be used.

        A model that is learnt in seconds is tried once all the same: which of them is better may be chance.
        Of a budget above the default each model is tuned, however slow.
        """
        if not self.spec.budget_s:
            return
        metric, rows = self._task.metric_of(self.job.spec), int(self.snapshot.facts["splits"]["validation"])
        tried = {model: _tried(study) for model, study in studies.items()}
        under_way = {model for model, _, _ in self._held}
        budget = self.spec.budget
        scores = [score for each in tried.values() for score in each.scores]
        is_enough = any(shows_no_better(metric, score, rows) for score in scores)
        for model in studies.keys() - self.stopped.keys() - under_way:
            others = [tried[other] for other in tried if other != model]
            if is_enough and (tried[model].scores or self._task.networks):
                self.stopped[model] = StudyOver(f"{rows} validation rows could show no better model")
            elif has_stalled(metric, tried[model], others, rows, stalled_after(budget)):
                self.stopped[model] = StudyOver("the last trials were better by chance at most")
            elif budget.is_short and is_outrun(metric, tried[model], others, rows):
                self.stopped[model] = StudyOver("a model that is learnt much faster answers as well")

    async def _placed(self, worker: Worker, turns: Turns, model: str, given: Assignment) -> _Place:
        studies = await self.progress()
        now_s, left_s = self._now_s(), self._left_s(studies)
        since_s = now_s - self._unpaid_s.pop(model, 0.0)
        return _Place(worker, turns, model, given, since_s, now_s + left_s, _has_model(studies))

    async def _trial(self, place: _Place, given: Assignment) -> None:
        master = self._masters[place.model]
        start = await self.start_of(place.model, given)
        scores: list[float] = []
        for epoch in range(given.start_epoch + 1, given.start_epoch + given.epochs + 1):
            # Where there is nothing to deploy yet, one epoch is trained however long it takes.
            ends_s = place.ends_s if scores or place.may_end else math.inf
            reply = await self._trained(place, self._train(place, start, given, epoch), ends_s)
            if self._is_lost:
                raise LeaseLost
            is_late = isinstance(reply, Failed) and reply.code == _CANCELLED and ends_s < math.inf
            if (self._stopping or is_late) and not isinstance(reply, EpochTrained):
                await self._rescued(place, given, scores)
                return
            if not isinstance(reply, EpochTrained):
                await self._failed(place, reply)
                return
            merit = Score(reply.metric, reply.score).merit
            scores.append(merit)
            held_s = self._now_s() - place.since_s
            place.since_s += held_s
            verdict = await self._ask(
                master.report,
                place.holder,
                given.trial,
                epoch,
                merit,
                time.time(),
                reply.loss,
                reply.took_s,
                reply.converged,
                held_s,
            )
            self._told(place, reply, verdict)
            if verdict is Verdict.PAUSE and max(scores) > merit:
                await self._best_stored(place, given, scores)
            if verdict not in (Verdict.CONTINUE, Verdict.DROP):
                stops, pauses = verdict is Verdict.STOP, verdict is Verdict.PAUSE
                kept = await self._kept(place, best=stops, paused=pauses)
                if kept is None:
                    return
                score = max(scores) if stops else merit
                await self._stored(place, epoch, score, verdict, kept)
            if verdict not in (Verdict.CONTINUE, Verdict.PUT):
                await self._under(place, ForgetTrial(0, self._name(place)))
                return
            if self._stopping:
                await self._rescued(place, given, scores)
                return
            if self._pausing:
                await self._suspend(place, given, scores)
                return

    async def _trained(self, place: _Place, message: TrainEpoch, ends_s: float) -> Message:
        """The reply to an epoch. Where there is no space for its rows as it reads them, it is asked again."""
        pause_s = _RETRY_FIRST_S
        while True:
            reply = await self._under(place, message, ends_s)
            if not isinstance(reply, Failed) or reply.code != _NO_SPACE or self._stopping:
                return reply
            pause_s = await self._rested(reply.message, pause_s)

    async def _rescued(self, place: _Place, given: Assignment, scores: list[float]) -> None:
        """The job ends in the middle of a trial: with the best of its epochs, if any."""
        master = self._masters[place.model]
        if scores:
            kept = await self._kept(place, best=True, paused=False)
            if kept is None:
                return
            await self._ask(master.finish, place.holder, given.trial, max(scores), time.time(), kept)
        else:
            await self._ask(master.lose, place.holder, given.trial, "the job has ended")
        await self._under(place, ForgetTrial(0, self._name(place)))

    async def _suspend(self, place: _Place, given: Assignment, scores: list[float]) -> None:
        """Store where a trial stands, and its best epoch since it began here; another worker may go on."""
        master, last = self._masters[place.model], given.start_epoch + len(scores)
        best = given.start_epoch + 1 + scores.index(max(scores))
        checkpoints: list[Checkpoint] = []
        for epoch in sorted({best, last}) if self._task.pausable else ():
            ends = epoch == last
            kept = await self._kept(place, best=not ends, paused=ends)
            if kept is None:
                return
            checkpoints.append(Checkpoint(epoch, scores[epoch - given.start_epoch - 1], kept))
        if checkpoints:
            await self._ask(master.suspend, place.holder, given.trial, checkpoints, self._pausing)
        else:
            await self._ask(master.release, place.holder, given.trial, self._pausing)
        await self._under(place, ForgetTrial(0, self._name(place)))

    def epoch_of(
        self, model: str, name: str, start: str, given: Assignment, epoch: int, *, refits: bool = False
    ) -> TrainEpoch:
        """The message by which a worker trains one epoch of a trial, which it knows by `name`.

        refits: the validation rows are taught as well.
        """
        return TrainEpoch(
            0,
            trial=name,
            spec=self.trial_spec(model, given),
            snapshot=str(self.file),
            classes=list(self.snapshot.facts["classes"]),
            start=start,
            start_epoch=given.start_epoch,
            epoch=epoch,
            task=self.spec.task,
            metric=self.metric.name,
            class_weight=self.spec.class_weight,
            refits=refits,
        )

    def _train(self, place: _Place, start: str, given: Assignment, epoch: int) -> TrainEpoch:
        return self.epoch_of(place.model, self._name(place), start, given, epoch)

    def _name(self, place: _Place) -> str:
        return f"{self.job.id}/{place.model}/{place.trial}"

    async def start_of(self, model: str, given: Assignment) -> str:
        """The checkpoint that a trial begins from; "" = random weights. Raises `ServiceError`."""
        origin = (self.spec.pretrained or {}).get(model)
        digest = given.parent or (origin and origin["checkpoint"])
        return str(await asyncio.to_thread(self._parameters.at_hand, digest)) if digest else ""

    async def _best_stored(self, place: _Place, given: Assignment, scores: list[float]) -> None:
        """A trial pauses after an epoch that was not its best: the best one counts if it is the study's."""
        kept = await self._kept(place, best=True, paused=False)
        if kept is not None:
            best = given.start_epoch + 1 + scores.index(max(scores))
            await self._stored(place, best, max(scores), Verdict.PUT, kept)

    async def _kept(self, place: _Place, *, best: bool, paused: bool) -> str | None:
        """The digest of a trial's weights, which are where they last before the master hears of them.

        Where there is no space they are asked for again. None where the worker could not write them; that
        the trial failed, the master then knows.
        """
        pause_s = _RETRY_FIRST_S
        while True:
            keep = StoreCheckpoint(
                0, self._name(place), str(self._parameters.folder), best=best, paused=paused
            )
            reply = await self._under(place, keep)
            if isinstance(reply, CheckpointStored):
                break
            if not isinstance(reply, Failed) or reply.code != _NO_SPACE or self._stopping:
                await self._failed(place, reply)
                return None
            pause_s = await self._rested(reply.message, pause_s)
        self.trouble = ""
        await self._lasts(place, reply.checkpoint)
        return reply.checkpoint

    async def _lasts(self, place: _Place, digest: str) -> None:
        """A checkpoint is where it outlasts this machine. Raises `ServiceError` where the archive hangs."""
        keeping = self.keep(digest)
        try:
            async with asyncio.timeout(BEGIN_S):
                await self._leased(place, keeping)
        except TimeoutError as exc:
            raise ServiceError(f"the archive has not taken a checkpoint within {BEGIN_S:g} s") from exc

    async def _stored(self, place: _Place, epoch: int, score: float, verdict: Verdict, digest: str) -> None:
        master = self._masters[place.model]
        if verdict is Verdict.STOP:
            await self._ask(master.finish, place.holder, place.trial, score, time.time(), digest)
        elif not await self._ask(master.stored, place.holder, place.trial, epoch, score, digest):
            with contextlib.suppress(ServiceError, OSError):  # `collect` finds it
                await asyncio.to_thread(self._parameters.discard, digest)

    async def _failed(self, place: _Place, reply: Message) -> None:
        reason = reply.message if isinstance(reply, Failed) else f"it answered with {reply.kind!r}"
        log.warning(
            "trial failed job=%d %s trial=%d reason=%r", self.job.id, place.model, place.trial, reason
        )
        master = self._masters[place.model]
        await self._ask(master.fail, place.holder, place.trial, reason, time.time())
        self._tell({"event": "failed", "model": place.model, "trial": place.trial, "reason": reason})

    def _told(self, place: _Place, reply: EpochTrained, verdict: Verdict) -> None:
        self._tell(
            {
                "event": "epoch",
                "model": place.model,
                "trial": place.trial,
                "worker": place.worker.name,
                "epoch": reply.epoch,
                "metric": reply.metric,
                "score": reply.score,
                "loss": reply.loss,
                "took_s": round(reply.took_s, 3),
                "skipped": reply.skipped,
                "verdict": str(verdict),
            }
        )

    # ── workers ───────────────────────────────────────────────────────────────────────────────────

    async def _under(self, place: _Place, message: Message, ends_s: float = math.inf) -> Message:
        """The reply to a message, once it is the job's turn on the worker; it is taken back at `ends_s`."""
        begins = isinstance(message, TrainEpoch) and message.epoch == message.start_epoch + 1
        steps = StepWatch(
            max(self._lease_s, BEGIN_S if begins or isinstance(message, StoreCheckpoint) else 0.0)
        )

        async def asked() -> Message:
            async with place.turns.turn(self.job.id):
                steps.begin(time.monotonic())
                ask = Ask(place.worker, message)
                steps.message = ask.id
                self._under_way.add(ask)
                if self._stopping and isinstance(message, TrainEpoch):
                    ask.cancel()
                ends = None
                if ends_s < math.inf:
                    left_s = min(max(0.0, ends_s - self._now_s()), _LONGEST_S)
                    ends = asyncio.get_running_loop().call_later(left_s, ask.cancel)
                try:
                    return await ask.reply()
                finally:
                    self._under_way.discard(ask)
                    if ends is not None:
                        ends.cancel()

        return await self._leased(place, asked(), steps)

    async def _leased(
        self, place: _Place, result: Awaitable[_Result], steps: StepWatch | None = None
    ) -> _Result:
        """The result; the trial's lease is kept alive for as long as steps are taken towards it."""
        coming = asyncio.ensure_future(result)
        master = self._masters[place.model]
        try:
            while True:
                done, _ = await asyncio.wait({coming}, timeout=self._lease_s / _BEATS_PER_LEASE)
                if done:
                    return coming.result()
                if steps is not None and steps.are_counted:
                    looked = await probed(place.worker)
                    if looked is not None:
                        steps.saw(looked, time.monotonic())
                    if steps.have_ended(time.monotonic(), self._lease_s):
                        await self._hung(place, coming)
                        continue
                await self._ask(master.beat, place.holder, place.trial, time.time())
        finally:
            coming.cancel()

    async def _hung(self, place: _Place, coming: asyncio.Future[_Result]) -> None:
        """End a training process that hangs, and the worker where even that cannot be done."""
        where = f"job={self.job.id} {place.model} trial={place.trial} worker={place.worker.name}"
        log.error("training hangs: its process is ended %s", where)
        ended = asyncio.ensure_future(place.worker.call(EndTraining(0)))
        await asyncio.wait({coming}, timeout=_END_S)
        ended.cancel()
        if not coming.done():
            place.worker.kill("its training process hangs, and it does not end it")
            await asyncio.wait({coming}, timeout=_END_S)

    # ── records ───────────────────────────────────────────────────────────────────────────────────

    async def _read(self, question: Callable[[], _Result]) -> _Result:
        async with self._asking:
            return await asyncio.to_thread(question)

    async def _ask(self, question: Callable[..., _Result], *arguments: Any) -> _Result:  # noqa: ANN401  # passed on
        """The master's answer, asked again for as long as it cannot be written down.

        Each of its verbs may be said twice. Raises `OSError` where the job is stopped meanwhile.
        """

        def answered() -> _Result:
            if self.trouble:  # leases ran out while no beat could be written
                for model, holder, trial in self._held:
                    self._masters[model].beat(holder, trial, time.time())
            return question(*arguments)

        pause_s = _RETRY_FIRST_S
        while True:
            if self._is_lost:
                raise LeaseLost
            try:
                async with self._asking:
                    answer = await asyncio.to_thread(answered)
            except OSError as error:
                if self._stopping and self.trouble:
                    raise
                pause_s = await self._rested(f"records cannot be written: {error}", pause_s)
            else:
                self.trouble = ""
                return answer

    async def _rested(self, trouble: str, pause_s: float) -> float:
        """Wait in trouble; how long to wait the next time."""
        if not self.trouble:
            log.warning("job waits job=%d reason=%r", self.job.id, trouble)
            self._tell({"event": "trouble", "reason": trouble})
        self.trouble = trouble
        await asyncio.sleep(pause_s)
        self._in_trouble_s += pause_s
        return min(2 * pause_s, _RETRY_MOST_S)


class _Place:
    """Where a trial is trained: on this life of a worker, since its successor has the same name."""

    def __init__(
        self,
        worker: Worker,
        turns: Turns,
        model: str,
        given: Assignment,
        since_s: float,
        ends_s: float,
        may_end: bool,
    ) -> None:
        """By the budget's clock, since_s: what came before is charged; ends_s: when it is used up. may_end:
        whether the job has a model without this trial.
        """
        self.worker = worker
        self.turns = turns
        self.model = model
        self.trial = given.trial
        self.since_s = since_s
        self.ends_s = ends_s
        self.may_end = may_end
        self.holder = _holder(worker)


@contextlib.contextmanager
def _readable(journal: Path) -> Iterator[None]:
    """What Optuna and our records stumble over in a damaged journal is one `ValueError`, which names it."""
    try:
        yield
    except (ServiceError, OSError):
        raise
    except Exception as exc:
        if isinstance(exc, ValueError) and not isinstance(exc, json.JSONDecodeError | UnicodeDecodeError):
            raise  # it says what is wrong
        raise ValueError(
            f"the job's records, {journal}, are damaged ({type(exc).__name__}: {exc}): "
            "restore the file, or train anew"
        ) from exc


def _has_model(studies: Mapping[str, Progress]) -> bool:
    """Whether a job has something to deploy."""
    return any(study.best_checkpoint is not None for study in studies.values())


def _has_ended(study: Progress) -> bool:
    """Whether one of its trials is over."""
    return any(trial.state in ("finished", "failed") for trial in study.trials)


def _tried(study: Progress) -> Tried:
    """Its trials that were trained to their end."""
    ended = [
        (trial.best_score, trial.took_s)
        for trial in study.trials
        if trial.state == "finished" and trial.best_score is not None
    ]
    return Tried(tuple(score for score, _ in ended), min((took_s for _, took_s in ended), default=0.0))


def _holder(worker: Worker) -> str:
    """Who holds a lease."""
    return f"{worker.name}.{id(worker):x}"
