"""The nouns that the scheduler's core and its shells exchange; no behaviour.

All times are seconds on one monotonic clock that the shell reads; the core never does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from server.ensemble.cascade import PlanOnWorker
from server.record import record
from server.scheduling.policy import RowClass

__all__ = [
    "MOST_DUES",
    "Action",
    "AnswerKnown",
    "BatchTimes",
    "FunctionSpec",
    "Idle",
    "Latency",
    "LatencyByKind",
    "LatencyByWorker",
    "LearnedLatency",
    "MemberSpec",
    "MemberTime",
    "RefuseRows",
    "Rejection",
    "RunBatch",
    "Slice",
    "Submission",
    "Waiting",
    "WorkerView",
]

MOST_DUES = 64  # of rows that wait: later ones weigh nothing in what is loaded next


class Latency(Protocol):
    """l̂: predicted seconds of a batch of so many rows."""

    def __call__(self, rows: int, /) -> float:
        """Seconds for a batch of `rows` rows."""


@runtime_checkable
class LearnedLatency(Protocol):
    """An l̂ that is taught by what batches took."""

    def observe(self, rows: int, seconds: float, /) -> None:
        """A batch of `rows` rows took `seconds`."""


@runtime_checkable
class LatencyByKind(Protocol):
    """An l̂ that differs by kind of device and by shape of rows."""

    def on(self, device: str, bucket: str, /) -> Latency:
        """The l̂ of rows of that bucket on that kind of device."""


@runtime_checkable
class LatencyByWorker(Protocol):
    """An l̂ of one kind of device that differs by worker."""

    def of_worker(self, worker: str, /) -> Latency:
        """The l̂ on that worker."""


@dataclass(frozen=True, slots=True)
class MemberSpec:
    """One model version of a function. `name` is its key on the workers (`WorkerView.resident`).

    A `LearnedLatency` is taught by every batch; a `LatencyByKind` keeps kinds of devices and rows apart.
    """

    name: str
    accuracy: float
    latency: Latency
    swap_s: Callable[[str], float] | None = None  # kind of device → seconds of a load there; None = not known


@dataclass(frozen=True, slots=True)
class FunctionSpec:
    """What the core knows of a function. `slo_s` is the goal for an interactive row, arrival to answer."""

    name: str
    slo_s: float
    max_batch: int
    batch_sizes: tuple[int, ...]  # ascending; the last one is `max_batch`
    members: tuple[MemberSpec, ...]
    policy: str = "goodput"
    policy_options: Mapping[str, Any] = field(default_factory=dict)
    max_queued_rows: int = 100_000
    max_queued_bytes: int = 1 << 30
    pooled: bool = False  # its rows need not go to all members (`Scheduler.follow`)
    # The network that its rows go through first, where those of other functions may go with them
    # (prefixes.py); "" for none. What its one member takes is then about that, whosever rows are in a batch.
    prefix: str = ""
    names: tuple[str, ...] = field(init=False, repr=False, compare=False)  # of its members

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(member.name for member in self.members))


@record
class Submission:
    """A request, or part of one: rows [offset, offset + rows) of it."""

    request_id: int
    function: str
    rows: int
    nbytes: int
    deadline_s: float = math.inf  # absolute; rows that miss it are refused, never answered late
    row_class: RowClass = "interactive"
    priority: int = 0
    members: tuple[str, ...] | None = None  # the subset asked for (one version, say); None = the function's
    slo_s: float | None = None  # a goal of its own, from arrival; None = the function's
    bucket: str = ""  # shape bucket: rows of different buckets never share a batch
    offset: int = 0
    # Where plans are followed: none that is expected to be right less often.
    min_accuracy: float | None = None
    tenant: str = ""  # whose the rows are: those of one class share the workers, by weight
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker as the shell sees it. In flight 2: the next batch decodes under the forward of this one.

    In flight 0: the shell keeps the worker for itself; nobody waits for it.
    """

    name: str
    alive: bool
    resident: frozenset[str]
    in_flight_limit: int = 2
    device: str = ""  # kind of device: workers of one kind share one l̂
    is_far: bool = False  # rows reach it over a network: of workers that are idle it comes last


@record
class MemberTime:
    """What one member took of a batch's work: its passes, and what it needs that others may share.

    rows: of the batch's, that it was asked of; None for all.
    """

    own_s: float
    shared_s: float
    rows: int | None = None


@record
class BatchTimes:
    """What a worker says of a batch that is over: its own time, and how long it was there."""

    work_s: float  # without what batches beside it took
    stay_s: float
    members: tuple[MemberTime, ...] = ()  # of work_s, in the batch's order; () where it does not say


@record
class Slice:
    """Rows [offset, offset + rows) of a request."""

    request_id: int
    offset: int
    rows: int


@record
class RunBatch:
    """Send these rows, in this order, to the worker as one batch; report back with `finished`.

    Where the members live on different workers, each gets a batch of the same rows, which is reported by
    itself; a row is answered when all of them have come. With `riders` it is one message of several parts.
    """

    batch_id: int
    function: str
    worker: str
    members: tuple[str, ...]
    slices: tuple[Slice, ...]
    rows: int
    beside: tuple[RunBatch, ...] = ()  # the same rows on other workers, for their members; to be sent too
    choices: tuple[str, ...] = ()  # of a row that need not go to all: whom else it may be asked of yet
    plan: PlanOnWorker | None = None  # by which the worker asks one member after the other; None: all
    riders: tuple[RunBatch, ...] = ()  # rows of other functions in the same pass; they are reported with it


@record
class AnswerKnown:
    """Answer these rows from the members named with them, which have answered; they have left the queue."""

    function: str
    parts: tuple[tuple[Slice, tuple[str, ...]], ...]
    cut_rows: int = 0  # of them, answered from a part of the members that they asked
    late_members: int = 0  # that were at those rows still

    @property
    def slices(self) -> tuple[Slice, ...]:
        """The rows."""
        return tuple(part for part, _ in self.parts)


@record
class RefuseRows:
    """Answer these rows with `deadline_exceeded`; they have left the queue."""

    slices: tuple[Slice, ...]
    function: str
    predicted_finish_s: float
    reason: str


@record
class Waiting:
    """What waits for a function. fillers: rows that are in no hurry: of the bulk class, or late already.

    due_s: when the others miss their goals, soonest first, of as many rows as were asked for.
    deadline_s: when the deadlines of the same rows pass.
    """

    rows: int
    fillers: int = 0
    due_s: tuple[float, ...] = ()
    deadline_s: tuple[float, ...] = ()

    def with_others(self, other: Waiting, most_dues: int = MOST_DUES) -> Waiting:
        """Both together."""
        return Waiting(
            self.rows + other.rows,
            self.fillers + other.fillers,
            tuple(sorted((*self.due_s, *other.due_s))[:most_dues]),
            tuple(sorted((*self.deadline_s, *other.deadline_s))[:most_dues]),
        )


@record
class Idle:
    """Nothing to do before `until_s`, unless something happens; inf = until something happens."""

    until_s: float


Action = RunBatch | AnswerKnown | RefuseRows | Idle


@dataclass(frozen=True, slots=True)
class Rejection:
    """A submission that was not queued, and why."""

    code: Literal["overloaded", "deadline_exceeded"]
    message: str
    retry_after_s: float | None = None
    predicted_finish_s: float | None = None
    alike_s: float = 0.0  # for so long the same need not be asked again: it would be rejected, or hardly not
