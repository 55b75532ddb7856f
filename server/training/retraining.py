"""Functions that are trained again: on a schedule, or once; promoted only where they are better.

    due → the query is run again → a job, which begins with the champion's knobs → deployed if_better

What is asked, and where each stands, lies in the registry: a server that was stopped goes on. A time that
passed while it was down is made up for once. Of several servers on one registry one does what is due, by a
lease (`catalog.retraining`): where it goes, another begins what was due within `LEASE_S`, and begins anew
what it was training after `ORPHAN_S`, as a job's files are its own. Every comparison is a look at the test
rows, counted and paid for as any other (`promotion.champion`).
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import secrets
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from server.access.audit_entry import Auditing, entry_by_server
from server.access.caller import Kind
from server.access.masking import masked_text
from server.access.seen_catalog import SeenCatalog
from server.access.view import WHOLE, View
from server.catalog.catalog import Catalog
from server.catalog.functions import Function
from server.catalog.jobs import ACTIVE, PAUSED, Job, Snapshot
from server.catalog.retraining import LEASE_S, Retraining
from server.errors import BadOption, Forbidden, NoSpace, Overloaded, ServiceError, UnknownFunction
from server.lease import ALONE, Leading
from server.store.retraining import RetrainingRepository
from server.store.training import TrainingRepository
from server.supervision import Tasks
from server.training.datasets.datasets import Datasets
from server.training.datasets.spec import PUSHED
from server.training.jobs.budget import budget_of
from server.training.jobs.service import Training
from server.training.promotion.deployer import Deployer

__all__ = ["Retrainings", "every_of", "no_retraining", "seen_retrainings"]

log = logging.getLogger("ml_udf.server.training")

_LOOK_S = 2.0
_RENEW_S = LEASE_S / 3
_HOLD_ON = timedelta(seconds=LEASE_S / 2)
_MOST_S = 10 * 365 * 86_400.0
_EVERY = re.compile(r"\s*(\d{1,6})\s*(second|minute|hour|day|week)s?\s*", re.IGNORECASE)
_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}


def every_of(given: object) -> float | None:
    """Seconds between two beginnings; None = once. Raises `BadOption`."""
    if given is None:
        return None
    found = _EVERY.fullmatch(given) if isinstance(given, str) else None
    if found is None or int(found[1]) == 0:
        raise BadOption(f"'every' must be a time with its unit, such as '1 day' or '6 hours', not {given!r}")
    every_s = float(int(found[1]) * _SECONDS[found[2].lower()])
    if every_s > _MOST_S:
        raise BadOption(f"'every' must be ten years at the most, not {given!r}")
    return every_s


def seen_retrainings(known: Iterable[Retraining], seen: SeenCatalog) -> list[Retraining]:
    """Those of functions that a caller sees; what came of them names no model that they do not."""
    found = []
    for each in known:
        if seen.sees(each.function):
            is_there = seen.is_function(each.function)
            hidden = seen.hidden_members(seen.versions(each.function)[-1]) if is_there else {}
            found.append(replace(each, outcome=masked_text(each.outcome, hidden)))
    return found


def no_retraining(function: str) -> UnknownFunction:
    """What forgetting a retraining raises that is not there."""
    return UnknownFunction(f"function {function!r} is not trained again by itself")


class Retrainings:
    """`now`: aware, in UTC. owner: this server, among all that share the registry; None = by its process."""

    def __init__(
        self,
        repository: RetrainingRepository,
        training_repository: TrainingRepository,
        catalog: Catalog,
        datasets: Datasets,
        training: Training,
        deployer: Deployer,
        tasks: Tasks | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        owner: str | None = None,
        view_of_owner: Callable[[Kind, str], View] = lambda kind, name: WHOLE,
        audit: Auditing | None = None,
        lease: Leading = ALONE,
    ) -> None:
        """view_of_owner: of whose a thing is, who owns what comes of it; raises `Forbidden` where that token
        counts no more. audit: is told what is done. lease: whether this server is the one that trains.
        """
        self._lease = lease
        self._repository = repository
        self._jobs = training_repository
        self._catalog = catalog
        self._datasets = datasets
        self._training = training
        self._deployer = deployer
        self._tasks = tasks or Tasks()
        self._now = now
        self._owner = owner or f"{socket.gethostname()[:60]}:{os.getpid()}:{secrets.token_hex(4)}"
        self._held: set[str] = set()  # functions
        self._view_of_owner = view_of_owner
        self._audit = audit

    def start(self) -> None:
        """Begin to look for what is due."""
        self._tasks.always("retrain", self._watch)
        self._tasks.always("retrain", self._keep, "leases of retrainings")

    async def close(self) -> None:
        """Stop; jobs under way are the training service's."""
        await self._tasks.close()

    async def all(self) -> list[Retraining]:
        """Every one, by function."""
        return await asyncio.to_thread(self._repository.all)

    async def ask(
        self,
        function: str,
        every: object,
        budget: object,
        roles: Sequence[str] | None,
        view: View = WHOLE,
    ) -> Retraining:
        """Train a function again, now and `every` so often. Raises `UnknownFunction`, `BadOption`,
        `Forbidden`. view: of whoever asks, who sees the jobs that it was trained by.
        """
        _, trained = await asyncio.to_thread(self._champion, function)
        for job in {each["job"] for each in trained}:
            if not view.sees_job(*await asyncio.to_thread(self._jobs.whose_job, job)):
                raise Forbidden(
                    f"what {function} was trained on is not for this token; ask its owner, or an admin"
                )
        every_s = every_of(every)
        text = "" if budget is None else str(budget_of(budget))
        now, names = self._now(), None if roles is None else tuple(roles)

        def order(known: Retraining | None) -> Retraining:
            known = known or Retraining(function)
            return replace(known, every_s=every_s, budget=text, roles=names, next_at=now)

        asked = await asyncio.to_thread(self._repository.amend, function, order)
        assert asked is not None
        return asked

    async def forget(self, function: str) -> None:
        """Never train it again by itself; a job that runs goes on. Raises `UnknownFunction`."""
        if await asyncio.to_thread(self._repository.find, function) is None:
            raise no_retraining(function)
        await asyncio.to_thread(self._repository.remove, function)

    async def step(self) -> None:
        """Deploy what has ended, begin what is due. What is ordered meanwhile stands."""
        for each in await self.all() if self._lease.is_held else ():
            if not (each.is_due(self._now()) and self._lease.is_held):
                continue
            known = each if self._holds(each) else await self._claimed(each.function)
            if known is None:
                continue
            job = known.job
            after = await self._begun(known) if job is None else await self._looked_at(known, job)
            if after != known:
                await self._note(known, after)

    async def renew(self) -> None:
        """Hold on to what this server is at; what it has lost meanwhile is another's."""
        for function in sorted(self._held) if self._lease.is_held else ():
            if await self._claimed(function) is None:
                log.warning("another server retrains it, or it was forgotten function=%s", function)

    def _holds(self, known: Retraining) -> bool:
        """Whether this server holds it for a while yet, so that nothing need be written."""
        until = known.leased_until
        return known.owner == self._owner and until is not None and until > self._now() + _HOLD_ON

    async def _claimed(self, function: str) -> Retraining | None:
        """A retraining that this server holds from now on, if there is work and no other does it."""
        runs_here = self._training.runs

        def claim(known: Retraining | None) -> Retraining | None:
            if known is None:
                return None
            mine = known.job is not None and runs_here(known.job)
            return known.held_by(self._owner, self._now(), runs_here=mine)

        claimed = await asyncio.to_thread(self._repository.amend, function, claim)
        (self._held.discard if claimed is None else self._held.add)(function)
        return claimed

    async def _note(self, before: Retraining, after: Retraining) -> None:
        """Store what became of one, beside what was asked of it since; of one that was forgotten, or that
        another server holds now, nothing.
        """

        def became(asked: Retraining | None) -> Retraining | None:
            if asked is None or asked.owner != self._owner:
                return None
            next_at = after.next_at if asked.next_at == before.next_at else asked.next_at
            told = replace(
                asked, job=after.job, outcome=after.outcome, ended_at=after.ended_at, next_at=next_at
            )
            return told if told.job is not None else replace(told, owner=None, leased_until=None)

        stored = await asyncio.to_thread(self._repository.amend, before.function, became)
        if stored is None or stored.job is None:
            self._held.discard(before.function)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(_RENEW_S)
            try:
                await self.renew()
            except (SQLAlchemyError, OSError, ServiceError) as error:
                log.error("leases of retrainings not renewed reason=%r", str(error))

    async def _watch(self) -> None:
        while True:
            try:
                await self.step()
            except (SQLAlchemyError, OSError, ServiceError) as error:  # the registry, which may be back soon
                log.error("retrainings not looked at reason=%r", str(error))
            await asyncio.sleep(_LOOK_S)

    async def _begun(self, due: Retraining) -> Retraining:
        """The same with a job, or with the reason why there is none."""
        after = replace(due, next_at=self._next(due))
        try:
            champion, trained = await asyncio.to_thread(self._champion, due.function)
            job = await self._adopted(due.function)
            if job is None:
                before = await asyncio.to_thread(self._jobs.job, trained[0]["job"])
                snapshot = await self._datasets.newest(before.dataset)
                if snapshot.spec["source"] != PUSHED:
                    snapshot = await self._refreshed(before.dataset, due)
                if all(each["snapshot"] == snapshot.id for each in trained):
                    said = f"the rows are those of version {champion.version}: snapshot {snapshot.id}"
                    return replace(after, outcome=said, ended_at=self._now())
                view = self._view_of_owner("function", due.function)
                job = await self._training.start(_asked(due, before, champion, trained), view)
                await self._tell("train", f"{job.dataset} job {job.id}", f"trains {due.function} again")
        except Overloaded as error:
            log.warning("not retrained yet function=%s reason=%r", due.function, str(error))
            return due
        except (ServiceError, OSError, KeyError, ValueError) as error:
            log.warning("not retrained function=%s reason=%r", due.function, str(error))
            return replace(after, outcome=f"not trained: {error}", ended_at=self._now())
        log.info("retraining function=%s job=%d", due.function, job.id)
        return replace(after, job=job.id)

    async def _refreshed(self, dataset: str, due: Retraining) -> Snapshot:
        """The rows of now. What a database says of a query is not for all who may read an outcome."""
        view = self._view_of_owner("dataset", dataset)
        try:
            snapshot = await self._datasets.refresh(dataset, due.roles, "retraining", view)
            await self._tell("refresh dataset", dataset, f"trains {due.function} again")
            return snapshot
        except Overloaded:
            raise
        except ServiceError as error:
            log.warning("dataset not refreshed dataset=%s reason=%r", dataset, str(error))
            raise BadOption(
                "the query of its dataset failed; the server's log says why, as refresh_dataset does"
            ) from error

    async def _adopted(self, function: str) -> Job | None:
        """A job that was begun for it before a crash, and not noted; one that is not here is lost."""
        running = await asyncio.to_thread(self._jobs.jobs, (*ACTIVE, PAUSED))
        ours = (job for job in running if job.state == PAUSED or self._training.runs(job.id))
        return next((job for job in ours if job.spec.get("retrains") == function), None)

    async def _looked_at(self, known: Retraining, job: int) -> Retraining:
        """The same, with what came of its job if that has ended."""
        over = replace(known, job=None, ended_at=self._now())
        try:
            ended = await asyncio.to_thread(self._jobs.job, job)
            if ended.state in ACTIVE and not self._training.runs(job):
                said = f"job {job} was lost with the server that ran it; another is begun"
                log.warning("retrained anew function=%s: %s", known.function, said)
                return replace(over, outcome=said, next_at=self._now())
            if ended.state in (*ACTIVE, PAUSED):
                return known
            if ended.state != "done":
                return replace(over, outcome=f"job {job} is {ended.state}: {ended.reason}")
            _, run = await self._training.job(job)
        except Overloaded as error:
            log.warning("not retrained yet function=%s reason=%r", known.function, str(error))
            return known
        except ServiceError as error:
            return replace(over, outcome=f"job {job} was not deployed: {error}")
        try:
            champion, _ = await asyncio.to_thread(self._champion, known.function)
            if await self._claimed(known.function) is None:
                return known  # it took so long that another server has taken it over
            told = await self._deployer.deploy(
                run,
                known.function,
                promote="if_better",
                slo_ms=champion.slo_ms,
                keeps_settings=True,
                view=self._view_of_owner("function", known.function),
            )
        except (Overloaded, NoSpace) as error:  # what the job has found waits
            log.warning("not deployed yet function=%s job=%d reason=%r", known.function, job, str(error))
            return known
        except (ServiceError, OSError, ValueError) as error:
            return replace(over, outcome=f"job {job} was not deployed: {error}")
        because = f"p = {told.p_value:.3g} at look {told.looks}" if told.p_value is not None else "the first"
        if told.promoted:
            said = f"version {told.version} answers now, of job {job}: it is better ({because})"
            cause = f"job {job}, which trained it again, is better ({because})"
            await self._tell("deploy function", f"{known.function} version {told.version}", cause)
        else:
            said = f"version {told.version} stays: that of job {job} is not shown to be better ({because})"
        log.info("retrained function=%s: %s", known.function, said)
        return replace(over, outcome=said)

    async def _tell(self, action: str, what: str, cause: str) -> None:
        if self._audit is not None:
            await self._audit.keep(entry_by_server(self._now().timestamp(), action, what, cause))

    def _champion(self, function: str) -> tuple[Function, list[dict[str, Any]]]:
        """What answers now, and how it was trained. Blocking. Raises `UnknownFunction`, `BadOption`."""
        if not self._catalog.is_function(function):
            raise UnknownFunction(f"there is no function {function!r} here")
        champion = self._catalog.versions(function)[-1]
        return champion, _trained(champion)

    def _next(self, due: Retraining) -> datetime | None:
        """The first time in step with the schedule that has not passed yet."""
        if due.every_s is None or due.next_at is None:
            return None
        missed = (self._now() - due.next_at).total_seconds() // due.every_s
        return due.next_at + timedelta(seconds=due.every_s * (missed + 1))


def _trained(champion: Function) -> list[dict[str, Any]]:
    """What `trained` says in its models' manifests. Raises `BadOption` where it does not."""
    found = []
    for model in champion.members:
        manifest: dict[str, Any] = json.loads((model.directory / "model.json").read_bytes())
        told = manifest.get("trained")
        if not isinstance(told, dict) or "job" not in told:
            raise BadOption(f"{model.key} of function {champion.name} was not trained here")
        found.append({**told, "architecture": manifest.get("architecture", "")})
    return found


def _asked(
    due: Retraining, before: Job, champion: Function, trained: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The job: as the one before, but for its seed and for where its studies begin."""
    form = {name: value for name, value in before.spec.items() if name not in ("pretrained", "first")}
    form |= {"seed": (int(form.get("seed", 0)) + 1) % 2**31, "retrains": due.function}
    # Of several checkpoints of one model the first was chosen first.
    first = {each["architecture"]: dict(each["knobs"]) for each in reversed(trained)}
    form["first"] = {model: knobs for model, knobs in first.items() if model in form["models"]}
    if due.budget:
        form["budget"] = due.budget
    return form
