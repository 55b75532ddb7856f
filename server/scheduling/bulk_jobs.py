"""Bulk jobs: what a statement, a table that is scored, or a watch asks for, request by request, as one thing.

A job may be paused, capped (rows a second, a token bucket of its own) and cancelled; whoever asks is held
back at the door, before any row waits in a queue. Large jobs of one caller take turns as callers do: each has
a turn of its own, and together these weigh what the caller weighs (turns.py). Small ones share one turn, so
that they do not wait behind a scan of their own caller. Pure: time is told; requests are counted, not kept.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

from server.record import record
from server.scheduling.sharing import Pace
from server.scheduling.token_bucket import TokenBucket

__all__ = [
    "KINDS",
    "NO_CONTROL",
    "BulkControl",
    "BulkJob",
    "BulkJobs",
    "BulkKind",
    "BulkTag",
    "BulkWhose",
    "Held",
    "JobKey",
    "JobState",
    "Turn",
]

BulkKind = Literal["statement", "table", "watch", "requests"]
KINDS: tuple[BulkKind, ...] = get_args(BulkKind)
JobState = Literal["running", "idle", "paused", "cancelled"]

_IDLE_S = 60.0  # after its last request, a job is no longer listed
_CONTROLLED_S = 3600.0  # one that is paused, capped or cancelled, whose client may come back
_LARGE_ROWS = 2048  # asked for so far: from then on a job has a turn of its own
_TURN_S = 5.0  # as long as the scheduler remembers a tenant that asks for nothing
_FADE_S = 5.0  # by which rows a second are known
_MOST_JOBS = 10_000
_LOOK_EVERY_S = 1.0


class JobKey(NamedTuple):
    """Ids are chosen by clients, so they are told apart by whose they are."""

    caller: str
    id: str


@record
class BulkTag:
    """What a request says of its job.

    what: the table and column, or where a statement runs · rows, done: of the table that is scored, by its
    client's count; None where it does not say · lag_rows: of a watch, rows noted and not answered
    """

    id: str
    kind: BulkKind = "statement"
    what: str = ""
    rows: int | None = None
    done: int | None = None
    lag_rows: int | None = None


@record
class BulkWhose:
    """token, user: as the caller of a job is shown; "" for nobody."""

    token: str = ""
    user: str = ""


@record
class BulkControl:
    """What its owner or an admin wants of a job. max_rows_per_s: 0 for no cap."""

    paused: bool = False
    max_rows_per_s: float = 0.0
    cancelled: bool = False

    @property
    def state(self) -> JobState:
        """What its client is told that waits; `idle` where it need not."""
        return "cancelled" if self.cancelled else "paused" if self.paused else "idle"


NO_CONTROL = BulkControl()


@record
class Turn:
    """A request may go on. tenant, weight: by which its rows share the workers with others."""

    tenant: str
    weight: float


@record
class Held:
    """A request may not go on now. wait_s: until it may; inf while nobody knows."""

    control: BulkControl
    wait_s: float


@dataclass(slots=True)
class BulkJob:
    """One job, as far as it is. rows_done: answered by this server since `since_s`."""

    key: JobKey
    tag: BulkTag
    whose: BulkWhose
    since_s: float
    function: str = ""
    control: BulkControl = NO_CONTROL
    rows_asked: int = 0
    rows_done: int = 0
    requests: int = 0  # under way
    seen_s: float = 0.0
    asked_s: float = -math.inf  # when rows of it last went on
    _done_before: int = 0  # of `rows_done`, when its client last said another count
    _pace: Pace = field(default_factory=Pace)
    _bucket: TokenBucket | None = None

    def rows_per_s(self, now_s: float) -> float:
        """Rows answered a second, of late."""
        rate = self._pace.rate(now_s, _FADE_S)
        return 0.0 if rate < 0.05 else rate

    @property
    def state(self) -> JobState:
        """`idle`: its client has asked for nothing at the moment."""
        if self.control.state != "idle":
            return self.control.state
        return "running" if self.requests else "idle"

    @property
    def rows_told(self) -> int:
        """Rows that are done: by its client's count, where it has one, and those that were answered since."""
        done, most = self.tag.done, self.tag.rows
        if done is None:
            return self.rows_done
        told = done + self.rows_done - self._done_before
        return told if most is None else max(done, min(told, most))

    def says(self, now_s: float, tag: BulkTag, function: str) -> None:
        """A request of it comes, whether or not it may go on."""
        if tag.done != self.tag.done:
            self._done_before = self.rows_done
        self.tag, self.function, self.seen_s = tag, function, now_s

    @property
    def is_large(self) -> bool:
        """Whether it has a turn of its own."""
        return self.rows_asked >= _LARGE_ROWS

    def wait_s(self, now_s: float) -> float:
        """How long nothing of it may go on; 0 if something may, inf while that is not known."""
        if self.control.paused or self.control.cancelled:
            return math.inf
        return 0.0 if self._bucket is None else self._bucket.wait_s(now_s)

    def take(self, now_s: float, rows: int) -> None:
        """A request of so many rows goes on."""
        self.rows_asked += rows
        self.requests += 1
        self.asked_s = now_s
        if self._bucket is not None:
            self._bucket.take(now_s, rows)

    def left(self, now_s: float, rows: int, *, answered: bool) -> None:
        """A request is over. Rows of one that was not answered are not owed for: they are asked again."""
        self.requests -= 1
        self.seen_s = now_s
        if answered:
            self.rows_done += rows
            self._pace.came(now_s, rows, _FADE_S)
        elif self._bucket is not None:
            self._bucket.take(now_s, -rows)

    def steer(self, now_s: float, control: BulkControl) -> None:
        """Another control holds from now on; what is owed by the same cap stays owed."""
        if control.max_rows_per_s != self.control.max_rows_per_s:
            rate = control.max_rows_per_s
            self._bucket = TokenBucket.full(rate, now_s) if rate else None
        self.control = control

    def is_over(self, now_s: float) -> bool:
        """Whether nobody has heard of it for long enough. A watch stays as long as it is held back."""
        if self.requests:
            return False
        if self.control == NO_CONTROL:
            return now_s - self.seen_s > _IDLE_S
        return self.tag.kind != "watch" and now_s - self.seen_s > _CONTROLLED_S


class BulkJobs:
    """The jobs of one server. most_jobs: kept at a time; beyond it those heard of longest ago go."""

    def __init__(self, most_jobs: int = _MOST_JOBS) -> None:
        self._jobs: dict[JobKey, BulkJob] = {}
        self._most_jobs = most_jobs
        self._look_s = -math.inf
        self._large: dict[str, set[JobKey]] = {}  # by caller
        self._small_s: dict[str, float] = {}  # caller → when rows of its small jobs last went on

    def __len__(self) -> int:
        return len(self._jobs)

    def enter(
        self,
        now_s: float,
        key: JobKey,
        tag: BulkTag,
        whose: BulkWhose,
        function: str,
        rows: int,
        weight: float = 1.0,
    ) -> Turn | Held:
        """A request of a job comes: whether it may go on. If so, it is to be `left` once."""
        job = self._jobs.get(key)
        if job is None:
            job = self._jobs[key] = BulkJob(key, tag, whose, now_s)
        job.says(now_s, tag, function)
        wait_s = job.wait_s(now_s)
        if wait_s > 0:
            return Held(job.control, wait_s)
        job.take(now_s, rows)
        return self._turn(now_s, job, weight)

    def left(self, now_s: float, key: JobKey, rows: int, *, answered: bool) -> None:
        """A request that went on is over."""
        job = self._jobs.get(key)
        if job is not None:
            job.left(now_s, rows, answered=answered)

    def steer(self, now_s: float, key: JobKey, control: BulkControl) -> None:
        """Say what is wanted of a job that is there."""
        job = self._jobs[key]
        job.seen_s = now_s
        job.steer(now_s, control)

    def restore(self, now_s: float, job: BulkJob, control: BulkControl) -> None:
        """A job that an earlier run of the server held back, and whose client may still be there."""
        job.seen_s = now_s
        job.steer(now_s, control)
        self._jobs[job.key] = job

    def find(self, key: JobKey) -> BulkJob | None:
        """The job of that key."""
        return self._jobs.get(key)

    def heard(self, now_s: float, key: JobKey) -> float:
        """Its client asks how long it is to wait: as `BulkJob.wait_s`; 0 for one that is not known."""
        job = self._jobs.get(key)
        if job is None:
            return 0.0
        job.seen_s = now_s
        return job.wait_s(now_s)

    def all(self) -> Collection[BulkJob]:
        """Every job, the one that began first before the others."""
        return self._jobs.values()

    def forget(self, now_s: float) -> list[BulkJob]:
        """Drop the jobs that are over: those that were held back, since somebody wanted that."""
        if now_s < self._look_s and len(self._jobs) <= self._most_jobs:
            return []
        self._look_s = now_s + _LOOK_EVERY_S
        gone = [job for job in self._jobs.values() if job.is_over(now_s)]
        more = len(self._jobs) - len(gone) - self._most_jobs
        if more > 0:
            over = {job.key for job in gone}
            idle = (job for job in self._jobs.values() if not job.requests and job.key not in over)
            gone += sorted(idle, key=_expendable)[:more]
        for job in gone:
            del self._jobs[job.key]
        self._forget_turns(now_s, gone)
        return [job for job in gone if job.control != NO_CONTROL]

    def _turn(self, now_s: float, job: BulkJob, weight: float) -> Turn:
        caller = job.key.caller
        large = self._large.get(caller)
        if job.is_large:
            if large is None:
                large = self._large[caller] = set()
            large.add(job.key)
        else:
            self._small_s[caller] = now_s
            if not large:
                return Turn(caller, weight)
        assert large is not None, "a large job is one of them"
        turns = sum(1 for key in large if now_s - self._jobs[key].asked_s <= _TURN_S)
        if not job.is_large or now_s - self._small_s.get(caller, -math.inf) <= _TURN_S:
            turns += 1
        tenant = f"{caller}\0{job.key.id}" if job.is_large else caller
        return Turn(tenant, weight / max(1, turns))

    def _forget_turns(self, now_s: float, gone: Iterable[BulkJob]) -> None:
        for job in gone:
            large = self._large.get(job.key.caller)
            if large is not None:
                large.discard(job.key)
                if not large:
                    del self._large[job.key.caller]
        self._small_s = {who: at_s for who, at_s in self._small_s.items() if now_s - at_s <= _TURN_S}


def _expendable(job: BulkJob) -> tuple[bool, float]:
    return job.control != NO_CONTROL, job.seen_s
