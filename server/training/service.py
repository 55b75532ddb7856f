"""Training jobs while the server runs: begun, worked on by every live worker, cancelled, gone on with.

Owns which runs are under way, and one task per worker that asks them for work. What to train is the masters'
to decide (`study`), how a trial goes is `run`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from server.errors import BadOption, Overloaded, ServiceError
from server.store.training import ACTIVE, PAUSED, Job, Snapshot, TrainingRepository
from server.supervision import Tasks
from server.training.choosing import choose_models
from server.training.events import Events
from server.training.jobs import JobSpec
from server.training.parameters import ParameterStore
from server.training.run import Run
from server.training.sharing import Origin, have_common_rows, may_share
from server.training.tasks import IMAGES, Task, task_named
from server.training.trainers import Trainers
from server.workers.pool import Worker

__all__ = ["Training"]

log = logging.getLogger("ml_udf.server.training")

_LOOK_S = 0.5  # how often a worker without work asks again: a lease may have run out
_LOOKED_BACK = 8  # ended jobs that tell how good the models of a task are
_MOST_OPEN = 64  # ended jobs whose studies stay open to be looked at


class Training:
    """`folder` is the training folder of the home."""

    def __init__(
        self,
        repository: TrainingRepository,
        folder: Path,
        parameters: ParameterStore,
        trainers: Trainers,
        tasks: Tasks | None = None,
    ) -> None:
        self._repository = repository
        self._folder = folder
        self._parameters = parameters
        self._trainers = trainers
        self._running: dict[int, Run] = {}
        self._ended: dict[int, Run] = {}
        self._tasks = tasks or Tasks()
        self._more = asyncio.Event()
        self.events = Events()
        trainers.on_up = self._worker_up

    async def restore(self) -> None:
        """Go on with the jobs that ran when the server stopped."""
        for job in await asyncio.to_thread(self._repository.jobs):
            if job.state in ACTIVE:
                try:
                    await self._open(job)
                except (ServiceError, ValueError, OSError) as error:
                    log.error("job not resumed job=%d reason=%r", job.id, str(error))
                    await asyncio.to_thread(self._repository.set_job, job.id, "failed", str(error))

    async def start(self, form: Mapping[str, Any]) -> Job:
        """Begin a job on the newest snapshot of its dataset. Raises `BadOption`, `UnknownFunction`."""
        dataset = str(form.get("dataset"))
        snapshot = await asyncio.to_thread(self._repository.snapshot, dataset)
        if form.get("task") not in (None, snapshot.spec["task"]):
            raise BadOption(f"dataset {dataset} is for {snapshot.spec['task']}, not {form['task']!r}")
        asked = {**form, "task": snapshot.spec["task"]}
        if not asked.get("models"):
            asked["models"] = await self._chosen(task_named(asked["task"]))
        wanted = asked.pop("pretrained", None) or False
        if not isinstance(wanted, bool):
            raise BadOption(f"'pretrained' must be true or false, not {wanted!r}")
        spec = JobSpec.from_json(asked)
        if wanted:
            spec = replace(spec, pretrained=await self._pretrained(spec, snapshot))
        job = await asyncio.to_thread(self._repository.add_job, spec.dataset, snapshot.id, spec.as_json())
        await self._open(job)
        log.info("job begun job=%d dataset=%s snapshot=%s", job.id, job.dataset, job.snapshot)
        return job

    async def cancel(self, job: int) -> Job:
        """Stop a job; its best checkpoints stay, and can be deployed. Raises `UnknownFunction`."""
        known = await asyncio.to_thread(self._repository.job, job)
        run = self._running.get(job)
        if run is None:
            if known.state == PAUSED:
                return await asyncio.to_thread(self._repository.set_job, job, "cancelled")
            return known
        run.stop()
        return await self._end(run, "cancelled", "")

    async def pause(self, job: int) -> Job:
        """Let a job rest until `resume`, over restarts of the server too; epochs under way end first.

        Raises `UnknownFunction`; `BadOption` for a job that does not run.
        """
        known = await asyncio.to_thread(self._repository.job, job)
        run = self._running.get(job)
        if known.state == PAUSED:
            return known
        if run is None:
            raise BadOption(f"job {job} is {known.state}; only a job that runs can be paused")
        run.pause("the job was paused")
        self.events.tell(job, {"event": "paused"})
        return await asyncio.to_thread(self._repository.set_job, job, PAUSED)

    async def resume(self, job: int) -> Job:
        """Go on with a paused job. Raises `UnknownFunction`; `BadOption` for a job that has ended."""
        known = await asyncio.to_thread(self._repository.job, job)
        if known.state in ACTIVE:
            return known
        if known.state != PAUSED:
            raise BadOption(f"job {job} is {known.state}, not paused; extend it to give it more epochs")
        again = await asyncio.to_thread(self._repository.set_job, job, "running")
        run = self._running.get(job)
        if run is None:
            self._ended.pop(job, None)
            await self._open(again)
        else:
            run.go_on()
            self._more.set()
        self.events.tell(job, {"event": "resumed"})
        return again

    async def extend(self, job: int, budget: int) -> Job:
        """Go on with a job, with so many epochs in all. Raises `UnknownFunction`, `BadOption`."""
        known = await asyncio.to_thread(self._repository.job, job)
        if job in self._running or known.state == PAUSED:
            raise BadOption(
                f"job {job} is {known.state}; cancel it, or wait, before it is given another budget"
            )
        spec = JobSpec.from_json({**known.spec, "budget_epochs": budget})
        if budget < JobSpec.from_json(known.spec).budget_epochs:
            raise BadOption(f"job {job} had {known.spec['budget_epochs']} epochs; it cannot be given fewer")
        self._ended.pop(job, None)
        again = await asyncio.to_thread(self._repository.set_job, job, "running", "", spec.as_json())
        await self._open(again)
        return again

    async def jobs(self) -> list[tuple[Job, Run | None]]:
        """Every job; with its run where that can be opened."""
        return [(job, await self._looked_at(job)) for job in await asyncio.to_thread(self._repository.jobs)]

    async def job(self, job: int) -> tuple[Job, Run]:
        """A job with its run. Raises `UnknownFunction`, `ServiceError`."""
        known = await asyncio.to_thread(self._repository.job, job)
        run = await self._looked_at(known)
        if run is None:
            raise ServiceError(f"the studies of job {job} cannot be read; the server's log holds the cause")
        return known, run

    async def put_down(self, within_s: float) -> None:
        """For a server that stops: trials end their epoch, and go on from there when it starts again.

        An epoch that takes longer than `within_s` is lost.
        """
        runs = list(self._running.values())
        for run in runs:
            run.pause("the server was stopped")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*(run.rests() for run in runs)), within_s)

    async def close(self) -> None:
        """Let go of everything; jobs that run go on when the server starts again."""
        self.events.close()
        await self._tasks.close()

    # ── work ──────────────────────────────────────────────────────────────────────────────────────

    def _worker_up(self, worker: Worker) -> None:
        # When the worker goes, its task sees its message fail, and gives the trial back before it ends.
        self._tasks.always("train", functools.partial(self._work, worker), f"train on {worker.name}")

    async def _work(self, worker: Worker) -> None:
        while worker in self._trainers.alive():
            worked = False
            for run in list(self._running.values()):
                try:
                    worked |= await run.work(worker)
                    if run.over and run.job.id in self._running:
                        await self._end(run, "done", "; ".join(sorted(set(run.stopped.values()))))
                except Exception as error:
                    log.exception("job failed job=%d", run.job.id)
                    await self._end(run, "failed", str(error) or type(error).__name__)
            if not worked:
                self._more.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._more.wait(), _LOOK_S)

    async def _open(self, job: Job) -> None:
        run = await self._opened(job)
        self._running[job.id] = run
        self._more.set()

    async def _chosen(self, task: Task) -> list[str]:
        """The models of a job that names none, by what the last jobs of its task have found."""
        done = [job for job in await asyncio.to_thread(self._repository.jobs) if job.state == "done"]
        results: list[dict[str, float]] = []
        for job in [job for job in done if job.spec.get("task", IMAGES) == task.name][-_LOOKED_BACK:]:
            run = await self._looked_at(job)
            studies = {} if run is None else await run.progress()
            results.append(
                {model: study.best_score for model, study in studies.items() if study.best_score is not None}
            )
        return list(choose_models(task.families, task.defaults, results))

    async def _pretrained(self, spec: JobSpec, snapshot: Snapshot) -> dict[str, Origin]:
        """For each model the best checkpoint of the newest job that shares it. Raises `BadOption`."""
        if not task_named(spec.task).pausable:
            raise BadOption(f"models of {spec.task} share no weights; leave 'pretrained' out")
        datasets, found = self._folder / "datasets", dict[str, Origin]()
        for job in may_share(await asyncio.to_thread(self._repository.jobs), spec.task, spec.dataset):
            run = await self._looked_at(job)
            studies = {} if run is None else await run.progress()
            fresh = {
                model: Origin(job=job.id, checkpoint=study.best_checkpoint)
                for model, study in studies.items()
                if model in spec.models and model not in found and study.best_checkpoint is not None
            }
            ours = datasets / str(snapshot.facts["file"])
            if fresh and run and not await asyncio.to_thread(have_common_rows, ours, run.file):
                found |= fresh
        if not found:
            raise BadOption(
                "no public job on another dataset, without rows by which this one is judged, has trained "
                f"{', '.join(spec.models)}; leave 'pretrained' out"
            )
        return found

    async def _opened(self, job: Job) -> Run:
        snapshot = await asyncio.to_thread(self._repository.snapshot, job.dataset, job.snapshot)
        run = Run(job, snapshot, self._folder, self._parameters, functools.partial(self.events.tell, job.id))
        await run.open()
        return run

    async def _looked_at(self, job: Job) -> Run | None:
        run = self._running.get(job.id) or self._ended.get(job.id)
        if run is None:
            try:
                run = await self._opened(job)
            except (ServiceError, ValueError, OSError):
                log.exception("studies not read job=%d", job.id)
                return None
            self._ended[job.id] = run
            while len(self._ended) > _MOST_OPEN:
                self._ended.pop(next(iter(self._ended)))
        return run

    async def _end(self, run: Run, state: str, reason: str) -> Job:
        self._running.pop(run.job.id, None)
        run.stop()
        self._ended[run.job.id] = run
        job = await self._noted(run.job.id, state, reason)
        with contextlib.suppress(OSError, ServiceError):
            await run.collect()
        log.info("job ended job=%d state=%s reason=%r", job.id, state, reason)
        self.events.tell(job.id, {"event": "ended", "state": state, "reason": reason})
        self.events.end(job.id)
        return job

    async def _noted(self, job: int, state: str, reason: str) -> Job:
        """Nobody asks again for a job's end: this waits for as long as the registry cannot be reached."""
        while True:
            try:
                return await asyncio.to_thread(self._repository.set_job, job, state, reason)
            except Overloaded as exc:
                log.warning("job not noted job=%d state=%s: %s", job, state, exc.message)
                await asyncio.sleep(exc.retry_after_s)
