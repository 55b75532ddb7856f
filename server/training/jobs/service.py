"""Training jobs while the server runs: begun, worked on by every live worker, cancelled, gone on with.

Owns which runs are under way, and one task per worker that asks them for work. What to train is the masters'
to decide (`study`), how a trial goes is `run`'s. A job's state is stored before it is acted upon, and its run
is released only when its last trial rests: what a person is shown is so, and no job has two masters.

Of several servers on one registry the one that holds the lease (`server.lease`) trains; each takes orders, as
the registry holds them, and the one that trains follows it. A run that another server has taken over is let
go of: nothing more is written of it here.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib.util
import logging
import re
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from gpu_worker.tasks.metrics import Metric
from server.access.seen_catalog import SeenCatalog
from server.access.view import WHOLE, View
from server.catalog.catalog import Catalog
from server.catalog.jobs import ACTIVE, PAUSED, Job, Snapshot
from server.errors import BadOption, LeaseLost, NoSpace, Overloaded, ServiceError, UnknownFunction
from server.lease import ALONE, Leading
from server.store.backbones import backbone_named
from server.store.training import TrainingRepository
from server.supervision import Tasks
from server.training.checkpoints.parameters import ParameterStore
from server.training.datasets.leakage import Origin, have_common_rows, training_lineage, warm_start_jobs
from server.training.datasets.snapshot import split_note
from server.training.jobs.budget import budget_of
from server.training.jobs.choosing import choose_models
from server.training.jobs.events import Events
from server.training.jobs.run import LEASE_S, Run
from server.training.jobs.spec import JobSpec
from server.training.jobs.turns import Turns
from server.training.recipes import DEFAULT_TASK, Recipe, recipe_for
from server.training.trainers import Trainers
from server.workers.pool import Worker

__all__ = ["Training", "found_by"]

log = logging.getLogger("ml_udf.server.training")

_FOLLOW_S = 0.5  # between two looks at the registry and the lease
_LOOK_S = 0.5  # how often a worker without work asks again: a lease may have run out
_LOOKED_BACK = 8  # ended jobs that show how good the models of a task are
_MOST_OPEN = 64  # ended jobs whose studies stay open to be looked at
_JOBS_AT_ONCE = 4  # on one worker, whose training process holds a trial of each
_WIND_DOWN_S = 10.0  # that an order waits for a job to stop
_RETRY_FIRST_S, _RETRY_MOST_S = 0.2, 5.0
_JOB_NAME = re.compile(r"job-([1-9][0-9]{0,8})")  # what a job's files begin with
# What storage raises that may be well again soon: a full disk, a locked or restarted registry.
_STORAGE = (OSError, SQLAlchemyError, NoSpace, Overloaded)
_LEASE_RAN_OUT = (
    "it waits: this server's lease on the registry could not be renewed, for the registry is locked or away; "
    "it goes on by itself once that is over"
)


class Training:
    """`folder` is the training folder of the home; `catalog` has the models that heads may stand on."""

    def __init__(
        self,
        repository: TrainingRepository,
        folder: Path,
        parameters: ParameterStore,
        trainers: Trainers,
        catalog: Catalog,
        tasks: Tasks | None = None,
        lease_s: float = LEASE_S,
        *,
        allow_import: bool = False,
        most_epochs: Callable[[str], int] = lambda owner: 0,
        lease: Leading = ALONE,
    ) -> None:
        """allow_import: whether a job may name an architecture by import path, whose code is then run.

        lease: whether this server is the one of its registry that trains.
        most_epochs: how many epochs of a token's jobs may run at a time, by its name; 0 = any number.
        """
        self._lease = lease
        self._fence = lease.fence  # by which the jobs under way were begun
        self._is_suspended = False
        self._most_epochs = most_epochs
        self._epochs: Counter[str] = Counter()  # that run, by the token whose jobs they are of
        self._repository = repository
        self._folder = folder
        self._parameters = parameters
        self._trainers = trainers
        self._catalog = catalog
        self._running: dict[int, Run] = {}
        self._ended: dict[int, Run] = {}
        self._tasks = tasks or Tasks()
        self._lease_s = lease_s
        self._allow_import = allow_import
        self._orders: dict[int, asyncio.Lock] = {}  # one after the other, of a job
        self._endings: dict[int, asyncio.Task[None]] = {}
        self.troubles: dict[int, str] = {}  # why jobs that run have not begun yet
        self._more = asyncio.Event()
        self.events = Events()
        trainers.on_up = self._worker_up

    async def restore(self) -> None:
        """Go on with the jobs that ran when the server stopped; those that storage holds up, once it can."""
        self._fence = self._lease.fence
        if not self._trains:
            return
        for job in await asyncio.to_thread(self._repository.jobs, ACTIVE):
            await self._taken_up(job)

    def follow(self) -> None:
        """From now on do what the registry says: take up what other servers began, or left; let go of what
        another has taken over.
        """
        self._tasks.always("follow jobs", self._follow)

    @property
    def _trains(self) -> bool:
        """Whether jobs may begin here now."""
        return self._lease.is_held and not self._is_suspended

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(_FOLLOW_S)
            if not self._lease.is_held:
                for run in self._running.values():
                    run.stood_still(_FOLLOW_S)
            with contextlib.suppress(*_STORAGE):
                await self.step()

    async def step(self) -> None:
        """Look once at the lease, and, where this server trains, at what the registry says of jobs."""
        fence = self._lease.fence
        if fence != self._fence:
            for run in list(self._running.values()):
                self._lost(run)
            self._fence = fence
        if not self._trains:
            return
        active = {job.id: job for job in await asyncio.to_thread(self._repository.jobs, ACTIVE)}
        for job in active.values():
            if not self.runs(job.id):
                await self._taken_up(job)
        for run in list(self._running.values()):
            if (run.job.id in active) == run.is_paused:
                await self._ordered(run.job.id)

    async def _taken_up(self, job: Job) -> None:
        """Begin a job that the registry says runs, or note why it cannot."""
        async with self._order(job.id):
            if self.runs(job.id):
                return
            try:
                job = await asyncio.to_thread(self._repository.job, job.id)  # before an order came, perhaps
                if job.state in ACTIVE:
                    await self._open(job)
            except _STORAGE as error:
                self._open_later(job, error)
            except LeaseLost:
                return
            except Exception as error:  # what is wrong with one job keeps no other from going on
                known = isinstance(error, ServiceError | ValueError)
                reason = str(error) if known else f"it cannot be read: {type(error).__name__}: {error}"
                log.error("job not resumed job=%d reason=%r", job.id, reason, exc_info=not known)
                with contextlib.suppress(LeaseLost, *_STORAGE):  # it is tried again at the next start
                    await self._set_job(job.id, "failed", reason)

    async def _ordered(self, job: int) -> None:
        """Do to a run what was ordered at another server, which has stored it."""
        async with self._order(job):
            run = self._running.get(job)
            if run is None or run.ending or not self._trains:
                return
            known = await asyncio.to_thread(self._repository.job, job)
            if known.state == PAUSED and not run.is_paused:
                run.pause("the job was paused")
                self.events.tell(job, {"event": "paused"})
            elif known.state in ACTIVE and run.is_paused:
                run.go_on()
                self._more.set()
                self.events.tell(job, {"event": "resumed"})
            elif known.state not in (*ACTIVE, PAUSED):
                run.ending = True
                run.stop()
                self._ends(run, self._wound_up(run, known))

    def _lost(self, run: Run) -> None:
        """Another server goes on with it."""
        job = run.job.id
        if self._running.get(job) is run and not self._is_suspended:
            log.warning("another server goes on with a job job=%d", job)
            del self._running[job]
            run.ending = True
            run.let_go()
            self._tasks.once("let go", self._released(run), f"let go of job {job}")

    async def _released(self, run: Run) -> None:
        await run.rests()
        run.close()

    async def _set_job(self, job: int, state: str, reason: str = "", **more: Any) -> Job:  # noqa: ANN401  # as the repository's
        """As whoever trains it stores it. Raises `LeaseLost`."""
        note = functools.partial(self._repository.set_job, job, state, reason, fence=self._fence, **more)
        return await asyncio.to_thread(note)

    async def _order_stored(
        self, job: int, state: str, among: Collection[str], found: Mapping[str, Any] | None = None
    ) -> Job:
        """An order, unless the job has come to another state than `among` meanwhile, here or elsewhere."""
        note = functools.partial(self._repository.set_job, job, state, found=found, among=among)
        return await asyncio.to_thread(note)

    async def start(self, form: Mapping[str, Any], view: View = WHOLE) -> Job:
        """Begin a job on the newest snapshot of its dataset. Raises `BadOption`, `UnknownFunction`.

        view: of whoever begins it, who sees the dataset.
        """
        dataset = str(form.get("dataset"))
        snapshot = await asyncio.to_thread(self._repository.snapshot, dataset)
        if form.get("task") not in (None, snapshot.spec["task"]):
            raise BadOption(f"dataset {dataset} is for {snapshot.spec['task']}, not {form['task']!r}")
        asked = {**form, "task": snapshot.spec["task"]}
        recipe = recipe_for(asked["task"], on_backbone=asked.get("backbone") is not None)
        if asked.get("backbone") is not None:
            models = SeenCatalog(self._catalog, view)
            found = await asyncio.to_thread(backbone_named, models, asked["backbone"], recipe.form)
            asked["backbone"] = found.to_json()
        if not asked.get("models"):
            asked["models"] = await self._chosen(recipe, view)
        wanted = asked.pop("pretrained", None) or False
        if not isinstance(wanted, bool):
            raise BadOption(f"'pretrained' must be true or false, not {wanted!r}")
        spec = JobSpec.from_json(asked)
        barred = [model for model in spec.models if ":" in model and not self._allow_import]
        if barred:
            raise BadOption(
                f"the model {barred[0]!r} is an import path, which runs code; "
                "start the server with --allow-import to permit it"
            )
        _check_installed(spec)
        if wanted:
            spec = replace(spec, pretrained=await self._pretrained(spec, snapshot, view))
        above = await asyncio.to_thread(self._last_with_files)
        before = await asyncio.to_thread(self._repository.last_jobs, 1)
        job = await asyncio.to_thread(
            self._repository.add_job, spec.dataset, snapshot.id, spec.as_json(), view.caller.token, above
        )
        if above > (before[0].id if before else 0):
            log.warning(
                "jobs have left files that the registry does not know of: was it lost, or restored from an "
                "older copy? They stay, and this one is numbered after them job=%d last=%d",
                job.id,
                above,
            )
        if self._trains:
            async with self._order(job.id):
                if not self.runs(job.id):
                    try:
                        await self._open(job)
                    except _STORAGE as error:  # it is stored as one that runs, and will
                        self._open_later(job, error)
        log.info("job begun job=%d dataset=%s snapshot=%s", job.id, job.dataset, job.snapshot)
        return job

    def trouble(self, job: int, run: Run | None) -> str:
        """Why a job that runs does not go on now; "" where it does. run: None where it is not at hand."""
        told = self.troubles.get(job, "") or (run.trouble if run is not None else "")
        if not told and job in self._running and not self._lease.is_held:
            told = _LEASE_RAN_OUT
        return told

    def runs(self, job: int) -> bool:
        """Whether it runs here, or will once its records can be written."""
        return job in self._running or job in self.troubles

    async def cancel(self, job: int) -> Job:
        """Stop a job; its best checkpoints stay, and can be deployed. Raises `UnknownFunction`.

        Where that cannot be stored the job goes on, and the error says so.
        """
        async with self._order(job):
            known = await asyncio.to_thread(self._repository.job, job)
            run = self._running.get(job)
            if run is not None and run.ending:
                return known
            if run is None and known.state not in (*ACTIVE, PAUSED):
                return known
            cancelled = await self._order_stored(job, "cancelled", (*ACTIVE, PAUSED))
            if run is None or cancelled.state != "cancelled":  # it has ended by itself
                return cancelled
            run.ending = True
            run.stop()
            over = self._ends(run, self._wound_up(run, cancelled))
        await asyncio.wait({over}, timeout=_WIND_DOWN_S)
        return cancelled

    async def pause(self, job: int) -> Job:
        """Let a job rest until `resume`, over restarts of the server too; epochs under way end first.

        Raises `UnknownFunction`; `BadOption` for a job that does not run.
        """
        async with self._order(job):
            known = await asyncio.to_thread(self._repository.job, job)
            run = self._running.get(job)
            if known.state == PAUSED:
                return known
            if known.state not in ACTIVE or (run is not None and run.ending):
                raise _not_running(known)
            found = None if run is None else await found_by(run)
            paused = await self._order_stored(job, PAUSED, ACTIVE, found)
            if paused.state != PAUSED:
                raise _not_running(paused)
            if run is not None:
                run.pause("the job was paused")
            self.events.tell(job, {"event": "paused"})
            return paused

    async def resume(self, job: int) -> Job:
        """Go on with a paused job. Raises `UnknownFunction`; `BadOption` for a job that has ended."""
        async with self._order(job):
            known = await asyncio.to_thread(self._repository.job, job)
            if known.state in ACTIVE:
                return known
            if known.state != PAUSED:
                raise _not_paused(known)
            run = self._running.get(job)
            if run is None and not self._trains:
                return await self._order_stored(job, "running", (*ACTIVE, PAUSED))
            if run is None:
                run = await self._opened(known)
            again = await self._begun(run, "", (*ACTIVE, PAUSED))
            run.go_on()
            self.events.tell(job, {"event": "resumed"})
            return again

    async def extend(self, job: int, budget: object) -> Job:
        """Go on with a job, with so much in all, as `budget_of` takes it. Raises `UnknownFunction`,
        `BadOption`; `Overloaded` while its last trials still stop.
        """
        asked = budget_of(budget)
        async with self._order(job):
            known = await asyncio.to_thread(self._repository.job, job)
            if known.state in (*ACTIVE, PAUSED):
                raise BadOption(
                    f"job {job} is {known.state}; cancel it, or wait, before it is given another budget"
                )
            if known.damage:
                raise ServiceError(known.damage)
            had = JobSpec.from_json(known.spec).budget
            if asked.unit != had.unit or asked.amount < had.amount:
                raise BadOption(
                    f"job {job} had {had}; give it as much or more in all, in the same unit, not {asked}"
                )
            spec = JobSpec.from_json({**known.spec, "budget": str(asked)})
            if job in self._endings:
                await asyncio.wait({self._endings[job]}, timeout=_WIND_DOWN_S)
            if job in self._running:
                raise Overloaded(f"the last trials of job {job} still stop; extend it again in a moment", 2.0)
            run = await self._opened(replace(known, spec=spec.as_json()), again=True)
            if not self._trains:
                run.close()
                return await asyncio.to_thread(self._repository.set_job, job, "running", "", spec.as_json())
            return await self._begun(run, "")

    async def jobs(self, after: int = 0, limit: int | None = None) -> list[tuple[Job, Run | None]]:
        """Jobs by number, those after `after`; with its run where it is under way. Opens no other."""
        known = await asyncio.to_thread(self._repository.jobs, None, after, limit)
        return [(job, self._running.get(job.id)) for job in known]

    async def last_jobs(self, limit: int, before: int | None = None) -> list[tuple[Job, Run | None]]:
        """The newest first, as `jobs`."""
        known = await asyncio.to_thread(self._repository.last_jobs, limit, before)
        return [(job, self._running.get(job.id)) for job in known]

    async def whose(self, job: int) -> tuple[str, str]:
        """A job's dataset and owner. Raises `UnknownFunction`."""
        return await asyncio.to_thread(self._repository.whose_job, job)

    async def job(self, job: int) -> tuple[Job, Run]:
        """A job with its run. Raises `UnknownFunction`, `ServiceError`."""
        known, run = await self.shown(job)
        if run is None:
            raise ServiceError(f"the studies of job {job} cannot be read; the server's log holds the cause")
        return known, run

    async def shown(self, job: int) -> tuple[Job, Run | None]:
        """A job with its run, None where that cannot be read. Raises `UnknownFunction`."""
        known = await asyncio.to_thread(self._repository.job, job)
        return known, await self._looked_at(known)

    async def run_of(self, job: Job) -> Run | None:
        """The run of a job that is known, to be read; None where it cannot be."""
        return await self._looked_at(job)

    async def suspend(self, within_s: float) -> None:
        """For a server that stops: trials end their epoch, and go on from there when it starts again.

        An epoch that takes longer than `within_s` is lost.
        """
        self._is_suspended = True
        runs = list(self._running.values())
        for run in runs:
            run.pause("the server was stopped")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await asyncio.gather(*(run.rests() for run in runs))
        for run in runs:
            run.close()  # another server may go on with it from now on

    async def close(self) -> None:
        """Let go of everything; jobs that run go on when the server starts again."""
        self.events.close()
        await self._tasks.close()
        for run in self._running.values():
            run.close()

    # ── work ──────────────────────────────────────────────────────────────────────────────────────

    def _worker_up(self, worker: Worker) -> None:
        # When the worker goes, its task sees its message fail, and gives the trial back before it ends.
        self._tasks.always("train", functools.partial(self._work, worker), f"train on {worker.name}")

    async def _work(self, worker: Worker) -> None:
        """Every job that runs has a trial on the worker, and they share its time by turns."""
        turns = Turns()
        serving: dict[int, asyncio.Task[None]] = {}
        try:
            while worker in self._trainers.alive():
                serving = {job: task for job, task in serving.items() if not task.done()}
                wanting = [job for job, run in self._running.items() if job not in serving and not run.ending]
                if self._trainers.is_withdrawn(worker) or not self._lease.is_held:
                    wanting = []
                for job in turns.in_order(wanting):
                    if len(serving) >= _JOBS_AT_ONCE:
                        break
                    run = self._running[job]
                    most = self._most_epochs(run.job.owner)
                    if most and self._epochs[run.job.owner] >= most:
                        continue
                    self._epochs[run.job.owner] += 1
                    work = self._assignment(run, worker, turns)
                    task = self._tasks.once("assignment", work, f"job {job} on {worker.name}")
                    task.add_done_callback(functools.partial(self._ran, run.job.owner))
                    serving[job] = task
                self._more.clear()
                more = asyncio.ensure_future(self._more.wait())
                try:
                    await asyncio.wait(
                        {more, *serving.values()}, timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED
                    )
                finally:
                    more.cancel()
        finally:
            # Whose worker is gone sees its message fail, and gives the trial back.
            if worker in self._trainers.alive():
                for task in serving.values():
                    task.cancel()

    def _ran(self, owner: str, task: asyncio.Task[None]) -> None:
        """An epoch is over, and another of the same token may run, here or elsewhere."""
        self._epochs[owner] -= 1
        if not self._epochs[owner]:
            del self._epochs[owner]
        if self._most_epochs(owner):
            self._more.set()

    async def _assignment(self, run: Run, worker: Worker, turns: Turns) -> None:
        """One assignment of a job, or a moment in which it has none."""
        job = run.job.id
        turns.join(job)
        try:
            with self._trainers.busy(worker):
                worked = await run.work(worker, turns)
        except LeaseLost:
            self._lost(run)
        except Exception as error:
            log.exception("job failed job=%d", job)
            self._finish(run, "failed", str(error) or type(error).__name__)
        else:
            if run.over:
                self._finish(run, *await run.outcome())
            elif not worked:
                turns.leave(job)
                await asyncio.sleep(_LOOK_S)
        finally:
            if run.ending:
                turns.leave(job)

    def _finish(self, run: Run, state: str, reason: str) -> None:
        """The first to see a job's end has it noted."""
        if not run.ending:
            run.ending = True
            run.stop()
            self._ends(run, self._end(run, state, reason))

    def _ends(self, run: Run, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        job = run.job.id

        async def ended() -> None:
            try:
                await work
            except LeaseLost:
                self._lost(run)

        task = self._endings[job] = self._tasks.once("end job", ended(), f"end job {job}")
        task.add_done_callback(lambda task: self._endings.pop(job, None))
        return task

    async def _open(self, job: Job) -> None:
        run = await self._opened(job)
        self._running[job.id] = run
        self._more.set()

    def _open_later(self, job: Job, error: Exception) -> None:
        log.error("job not begun yet job=%d reason=%r", job.id, str(error))
        self.troubles[job.id] = f"its studies cannot be opened yet: {error}"
        self._tasks.once("open job", self._opened_later(job), f"open job {job.id}")

    async def _opened_later(self, job: Job) -> None:
        pause_s = _RETRY_FIRST_S
        while True:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _RETRY_MOST_S)
            if not self._trains:
                self.troubles.pop(job.id, None)  # whoever does takes it up
                return
            with contextlib.suppress(*_STORAGE):
                async with self._order(job.id):
                    known = await asyncio.to_thread(self._repository.job, job.id)
                    if known.state in ACTIVE and job.id not in self._running:
                        await self._open(known)
                    self.troubles.pop(job.id, None)
                    return

    async def _begun(self, run: Run, reason: str, among: Collection[str] | None = None) -> Job:
        """A run that is open, stored as one that runs; where that cannot be stored, or its job is not `among`
        these states by now, it is released again. Raises `BadOption`.
        """
        job, spec = run.job.id, run.job.spec
        try:
            again = await self._set_job(job, "running", reason, spec=spec, among=among)
            if again.state != "running":
                raise _not_paused(again)
        except BaseException:
            if job not in self._running:
                run.close()
            raise
        self._ended.pop(job, None)
        self._running[job] = run
        self._more.set()
        return again

    def _order(self, job: int) -> asyncio.Lock:
        return self._orders.setdefault(job, asyncio.Lock())

    async def _chosen(self, task: Recipe, view: View) -> list[str]:
        """The models of a job that names none, by what the last jobs of its task have found that its caller
        sees.

        Those that take seconds are all trained: one that many small tables spoke against may be the best of a
        large one.
        """
        if not task.networks:
            return list(task.defaults)
        done = await asyncio.to_thread(self._repository.jobs, ("done",))
        results: list[dict[str, float]] = []
        alike = [job for job in done if job.spec.get("task", DEFAULT_TASK) == task.name]
        for job in [job for job in alike if view.sees_job(job.dataset, job.owner)][-_LOOKED_BACK:]:
            found = job.found or await self._found_before(job)
            results.append(_behind_the_best(found["studies"], task.metric_of(job.spec)))
        return list(choose_models(task.families, task.defaults, results))

    async def _pretrained(self, spec: JobSpec, snapshot: Snapshot, view: View = WHOLE) -> dict[str, Origin]:
        """For each model the best checkpoint of the newest job that shares it, and that its caller sees.

        Raises `BadOption`.
        """
        if not spec.recipe.pausable:
            raise BadOption(f"models of {spec.task} share no weights; leave 'pretrained' out")
        found: dict[str, Origin] = {}
        for job in warm_start_jobs(await asyncio.to_thread(self._repository.jobs), spec.task, spec.dataset):
            if not view.sees_job(job.dataset, job.owner):
                continue
            run = await self._looked_at(job)
            studies = {} if run is None else await run.progress()
            fresh = {
                model: Origin(job=job.id, checkpoint=study.best_checkpoint)
                for model, study in studies.items()
                if model in spec.models and model not in found and study.best_checkpoint is not None
            }
            for model, origin in fresh.items():
                if not await asyncio.to_thread(self._has_seen, job, model, snapshot):
                    found[model] = origin
        if not found:
            raise BadOption(
                "no public job on another dataset, without rows by which this one is judged, has trained "
                f"{', '.join(spec.models)}; leave 'pretrained' out"
            )
        return found

    def _has_seen(self, job: Job, model: str, snapshot: Snapshot) -> bool:
        """Whether a job's model, or what it began from, was shown rows that judge the snapshot. Blocking."""
        datasets = self._folder / "datasets"
        try:
            taught = [
                self._repository.snapshot(*key) for key in training_lineage(job, model, self._repository.job)
            ]
        except UnknownFunction:  # what taught an ancestor is not known any more
            return True
        ours = datasets / str(snapshot.facts["file"])
        return any(have_common_rows(ours, datasets / str(theirs.facts["file"])) for theirs in taught)

    async def _found_before(self, job: Job) -> dict[str, Any]:
        """What a job has found that ended before that was stored with it."""
        run = await self._looked_at(job)
        return {"studies": {}} if run is None else await found_by(run)

    def _last_with_files(self) -> int:
        """The highest number of a job that has left files; 0 where none has. Blocking. Raises `ServiceError`.

        The registry knows no such job where it was lost, or restored from an older copy; one that was given
        the number anew would go on with that one's trials, and throw its checkpoints away.
        """
        names = {path.name.partition(".")[0] for path in (self._folder / "studies").glob("job-*")}
        known = map(_JOB_NAME.fullmatch, names | self._parameters.jobs())
        return max((int(job[1]) for job in known if job), default=0)

    async def _opened(self, job: Job, *, again: bool = False) -> Run:
        """The run that trains a job. Raises `ServiceError`, `ValueError`, `OSError`."""
        run = await self._run(job)
        await run.open(again=again, fence=self._fence if self._trains else None)
        return run

    async def _run(self, job: Job) -> Run:
        if job.damage:
            raise ServiceError(job.damage)
        snapshot = await asyncio.to_thread(self._repository.snapshot, job.dataset, job.snapshot)
        tell = functools.partial(self.events.tell, job.id)
        return Run(job, snapshot, self._folder, self._parameters, tell, self._lease_s)

    async def _looked_at(self, job: Job) -> Run | None:
        """The run of a job, to be read; None where it cannot be."""
        run = self._running.get(job.id) or self._ended.get(job.id)
        if run is not None and not self._lease.is_held and run.job != job:
            run = None  # another server has gone on with it since
        if run is None:
            try:
                run = await self._run(job)
                await run.look()
            except (ServiceError, ValueError, OSError):
                log.exception("studies not read job=%d", job.id)
                return None
            if job.state not in ACTIVE:
                self._ended[job.id] = run
            while len(self._ended) > _MOST_OPEN:
                self._ended.pop(next(iter(self._ended)))
        return run

    async def _end(self, run: Run, state: str, reason: str) -> None:
        """Note the end of a job: its state first, then it is released."""
        job = await self._noted(run.job.id, state, reason, await found_by(run), run)
        await self._wound_up(run, job)

    async def _wound_up(self, run: Run, job: Job) -> None:
        """A job's state is stored: wait for its last trials, store what it has found, and release it."""
        await run.rests()
        with contextlib.suppress(OSError, ServiceError):
            await run.collect()
        found = await found_by(run)
        if found != job.found:
            await self._noted(job.id, job.state, job.reason, found, run)
        self._running.pop(job.id, None)
        self._ended[job.id] = run
        run.close()
        log.info("job ended job=%d state=%s reason=%r", job.id, job.state, job.reason)
        self.events.tell(job.id, {"event": "ended", "state": job.state, "reason": job.reason})
        self.events.end(job.id)

    async def _noted(
        self,
        job: int,
        state: str,
        reason: str,
        found: Mapping[str, Any] | None = None,
        run: Run | None = None,
    ) -> Job:
        """Nobody asks again for a job's end: this waits for as long as the registry cannot be written."""
        pause_s = _RETRY_FIRST_S
        if run is not None:
            run.trouble = f"it is {state}, which is being stored"
        while True:
            try:
                noted = await self._set_job(job, state, reason, found=found)
            except _STORAGE as error:
                log.warning("job not noted yet job=%d state=%s: %s", job, state, error)
                if run is not None:
                    run.trouble = f"it is {state}, which cannot be stored yet: {error}"
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _RETRY_MOST_S)
            else:
                if run is not None:
                    run.trouble = ""
                return noted


def _not_running(job: Job) -> BadOption:
    return BadOption(f"job {job.id} is {job.state}; only a job that runs can be paused")


def _not_paused(job: Job) -> BadOption:
    return BadOption(f"job {job.id} is {job.state}, not paused; extend it to give it more epochs")


def _check_installed(spec: JobSpec) -> None:
    """Raises `BadOption` for a model whose library is not there: trainers run in this environment."""
    for name in spec.models:
        extra = spec.recipe.model(name).extra
        if extra and importlib.util.find_spec(extra) is None:
            raise BadOption(
                f"the model {name!r} needs a library that is not installed beside the server: "
                f"pip install 'ml_udf[{extra}]'"
            )


def _behind_the_best(studies: Mapping[str, Mapping[str, Any]], metric: Metric) -> dict[str, float]:
    """How far each model of a job stayed behind its best, as a negative number; 0 = the best.

    A model whose every trial failed was tried: it is far behind, not unknown.
    """
    scores = {model: study["best_score"] for model, study in studies.items() if study["trials"]}
    known = [score for score in scores.values() if score is not None]
    best = max(known, key=metric.merit, default=0.0)
    return {model: -(1.0 if score is None else metric.behind(score, best)) for model, score in scores.items()}


async def found_by(run: Run) -> dict[str, Any]:
    """What a job has found so far, as it is listed."""
    studies = await run.progress()
    return {
        "said": split_note(run.snapshot.facts),
        "studies": {
            model: {
                "epochs_used": study.epochs_used,
                "epochs_budget": study.epochs_budget,
                "seconds_used": round(study.seconds_used, 3),
                "share_used": round(study.share_used, 4),
                "trials": len(study.trials),
                "metric": study.metric,
                "best_score": study.best_score,
                "best_trial": study.best_trial,
                "best_checkpoint": study.best_checkpoint,
            }
            for model, study in studies.items()
        },
    }
