"""Bulk jobs as the server keeps them: which calls are under way for each, who may steer one, what is stored.

Decisions are `scheduling.bulk_jobs`'. What was paused, capped or cancelled is stored before it holds, so that
a server that comes back goes on holding it back; what is forgotten later is said in the log. Runs on the
event loop alone.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from server.access.caller import Caller
from server.catalog.bulk_control import StoredControl
from server.errors import BadOption, BulkCancelled, BulkHeld, UnknownBulkJob
from server.scheduling.bulk_jobs import (
    NO_CONTROL,
    BulkControl,
    BulkJob,
    BulkJobs,
    Held,
    JobKey,
)
from server.serving.calls import Call
from server.supervision import Tasks

__all__ = ["BulkCalls", "OpenCall", "StoredControls"]

log = logging.getLogger("ml_udf.server.bulk")

_ASK_AGAIN_S = 5.0  # a client that waits for it to be known, if it does not ask how long
_KEPT = timedelta(days=1)  # by a server that was away so long: jobs other than watches


class OpenCall(Protocol):
    """A call under way, as it is ended."""

    def fail(self, error: Exception) -> None:
        """End it with an error; an ended one stays as it is."""


class StoredControls(Protocol):
    """Where controls are kept. Blocking."""

    def all(self) -> list[StoredControl]:
        """Every one."""

    def keep(self, stored: StoredControl) -> None:
        """Store one, in the place of the job's last."""

    def forget(self, keys: Iterable[JobKey]) -> None:
        """Remove those of these jobs."""


class BulkCalls:
    """The bulk jobs of a server, and their calls."""

    def __init__(self, stored: StoredControls | None = None, tasks: Tasks | None = None) -> None:
        """stored: None = what is held back is forgotten with this object."""
        self._jobs = BulkJobs()
        self._stored = stored
        self._tasks = tasks or Tasks()
        self._open: dict[JobKey, set[OpenCall]] = {}
        self._steering = asyncio.Lock()

    async def start(self) -> None:
        """Take up what an earlier run held back."""
        if self._stored is None:
            return
        now_s, now = time.monotonic(), datetime.now(UTC)
        old: list[JobKey] = []
        for each in await asyncio.to_thread(self._stored.all):
            if each.tag.kind != "watch" and now - each.set_at > _KEPT:
                old.append(each.key)
                continue
            job = BulkJob(each.key, each.tag, each.whose, now_s, each.function)
            self._jobs.restore(now_s, job, each.control)
            log.info("bulk job %s is held back still: %s", each.key.id, _words(each.control))
        if old:
            log.warning("bulk jobs of a day ago or more are forgotten: %s", ", ".join(key.id for key in old))
            await asyncio.to_thread(self._stored.forget, old)

    async def close(self) -> None:
        """Wait for what is being stored."""
        await self._tasks.close()

    # ── calls ─────────────────────────────────────────────────────────────────────────────────────────

    def enter(self, now_s: float, call: Call) -> Call:
        """A call comes: as it goes on. Raises `BulkHeld`, `BulkCancelled`; else it is to be `left` once."""
        bulk = call.bulk
        if bulk is None:
            return call
        self._forget(now_s)
        key = JobKey(call.caller, bulk.tag.id)
        found = self._jobs.enter(
            now_s, key, bulk.tag, bulk.whose, call.function.name, len(call.rows), call.shares.weight
        )
        if isinstance(found, Held):
            raise _refusal(key.id, found.control, found.wait_s)
        if found.tenant == call.caller and found.weight == call.shares.weight:
            return call
        return replace(call, turn=found.tenant, turn_weight=found.weight)

    def begun(self, call: Call, pending: OpenCall) -> None:
        """It is under way."""
        if call.bulk is not None:
            self._open.setdefault(JobKey(call.caller, call.bulk.tag.id), set()).add(pending)

    def left(self, now_s: float, call: Call, pending: OpenCall | None, *, answered: bool) -> None:
        """It is over, or never got under way."""
        if call.bulk is None:
            return
        key = JobKey(call.caller, call.bulk.tag.id)
        self._jobs.left(now_s, key, len(call.rows), answered=answered)
        calls = self._open.get(key)
        if calls is not None and pending is not None:
            calls.discard(pending)
            if not calls:
                del self._open[key]

    # ── who looks, and who steers ─────────────────────────────────────────────────────────────────────

    def listed(self, caller: Caller) -> list[dict[str, Any]]:
        """The jobs that a caller sees, the one that began first before the others."""
        now_s = time.monotonic()
        self._forget(now_s)
        seen = [job for job in self._jobs.all() if _sees(caller, job)]
        return [_told(now_s, job) for job in sorted(seen, key=lambda job: job.since_s)]

    def shown(self, caller: Caller, id: str) -> dict[str, Any]:
        """One job, and `wait_s` until something of it may go on; null while nobody knows.

        Raises `UnknownBulkJob`.
        """
        now_s = time.monotonic()
        job = self._find(caller, id)
        wait_s = self._jobs.heard(now_s, job.key) if job.key.caller == caller.key else job.wait_s(now_s)
        return {**_told(now_s, job), "wait_s": None if wait_s == math.inf else round(wait_s, 3)}

    async def steer(
        self, caller: Caller, id: str, change: Callable[[BulkControl], BulkControl]
    ) -> dict[str, Any]:
        """What `change` makes of a job's control holds from now on, for what is under way too.

        Raises `UnknownBulkJob`; `BadOption` for what cannot be done to it; what the store raises, and then
        nothing is changed.
        """
        async with self._steering:
            job = self._find(caller, id)
            control = change(job.control)
            if job.control.cancelled:
                raise BadOption(f"bulk job {id} was cancelled")
            if control.cancelled and job.tag.kind == "watch":
                raise BadOption(
                    f"bulk job {id} is a watch, which would ask again: "
                    "pause it, or end it with ml_udf.drop_watch"
                )
            await self._keep(job, control)
            now_s = time.monotonic()
            if (there := self._jobs.find(job.key)) is None:  # forgotten meanwhile; its control is stored
                self._jobs.restore(now_s, job, control)
            else:
                job = there  # another one, where its client came back meanwhile
                self._jobs.steer(now_s, job.key, control)
            if control.paused or control.cancelled:
                for pending in list(self._open.get(job.key, ())):
                    pending.fail(_refusal(id, control, math.inf))
            return _told(now_s, job)

    def _find(self, caller: Caller, id: str) -> BulkJob:
        own = self._jobs.find(JobKey(caller.key, id))
        if own is not None and _sees(caller, own):
            return own
        if caller.is_admin:
            for job in self._jobs.all():
                if job.key.id == id:
                    return job
        raise UnknownBulkJob(f"there is no bulk job {id[:100]!r}, or none of yours; it may be over")

    async def _keep(self, job: BulkJob, control: BulkControl) -> None:
        if self._stored is None:
            return
        if control == NO_CONTROL:
            await asyncio.to_thread(self._stored.forget, [job.key])
            return
        stored = StoredControl(job.key, job.tag, job.whose, job.function, control, datetime.now(UTC))
        await asyncio.to_thread(self._stored.keep, stored)

    def _forget(self, now_s: float) -> None:
        gone = self._jobs.forget(now_s)
        if not gone:
            return
        for job in gone:
            if not job.control.cancelled:
                log.warning(
                    "bulk job %s of %s asks no more and is forgotten; it was %s",
                    job.key.id,
                    job.whose.token or job.key.caller,
                    _words(job.control),
                )
        if self._stored is not None:
            keys = [job.key for job in gone]
            self._tasks.once("forget bulk jobs", self._forget_stored(self._stored, keys))

    async def _forget_stored(self, stored: StoredControls, keys: Sequence[JobKey]) -> None:
        """Not while a control is being stored: one of a job that is there again is to stay."""
        async with self._steering:
            jobs = {key: self._jobs.find(key) for key in keys}
            gone = [key for key, job in jobs.items() if job is None or job.control == NO_CONTROL]
            await asyncio.to_thread(stored.forget, gone)


def _sees(caller: Caller, job: BulkJob) -> bool:
    """Admins see all, others their token's, and of these the database's user that they name sees its own."""
    if caller.is_admin:
        return True
    return job.key.caller == caller.key and caller.in_name_of in ("", job.whose.user)


def _refusal(id: str, control: BulkControl, wait_s: float) -> BulkHeld | BulkCancelled:
    if control.cancelled:
        return BulkCancelled(f"bulk job {id} was cancelled on the server")
    if control.paused:
        return BulkHeld(f"bulk job {id} is paused", _ASK_AGAIN_S)
    message = f"bulk job {id} may ask for {control.max_rows_per_s:g} rows/s; try again in {wait_s:.2g} s"
    return BulkHeld(message, wait_s)


def _words(control: BulkControl) -> str:
    words: list[str] = [control.state] if control.state != "idle" else []
    if control.max_rows_per_s:
        words.append(f"capped at {control.max_rows_per_s:g} rows/s")
    return ", ".join(words)


def _told(now_s: float, job: BulkJob) -> dict[str, Any]:
    tag = job.tag
    since = datetime.now(UTC) - timedelta(seconds=now_s - job.since_s)
    return {
        "id": job.key.id,
        "owner": job.whose.token or None,
        "claimed_user": job.whose.user or None,
        "function": job.function,
        "kind": tag.kind,
        "what": tag.what or None,
        "state": job.state,
        "rows_done": job.rows_told,
        "rows_total": tag.rows,
        "lag_rows": tag.lag_rows,
        "rows_per_s": round(job.rows_per_s(now_s), 1),
        "max_rows_per_s": job.control.max_rows_per_s or None,
        "since": since.isoformat(timespec="milliseconds"),
    }
