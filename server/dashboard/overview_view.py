"""What the overview shows: pure, from the server's state to plain values with units."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from server.capacity.timeline import Done
from server.catalog.functions import Function
from server.dashboard.error_hints import hint_of
from server.observability.readings import Counts, Stretch
from server.placement.places import Place
from server.workers.pool import WorkerStatus

__all__ = [
    "ErrorLine",
    "FunctionLine",
    "OverviewView",
    "WorkerLine",
    "overview_of",
    "worker_lines",
]

_CHANGES = 8  # of capacity that are shown
_REFUSED = ("overloaded", "forbidden", "unauthorized")
_LATE = ("deadline_exceeded",)


@dataclass(frozen=True, slots=True)
class FunctionLine:
    """One function of late. cached: the share of its rows that was answered by what was kept"""

    name: str
    version: int
    task: str
    members: int
    goal_s: float
    rows_per_s: float | None
    waiting: int
    rows_a_batch: float | None
    cached: float | None
    p50_s: float | None
    p99_s: float | None
    errors: int
    is_ready: bool

    @property
    def is_late(self) -> bool:
        """Whether its slowest requests miss its goal."""
        return self.p99_s is not None and self.p99_s > self.goal_s


@dataclass(frozen=True, slots=True)
class ErrorLine:
    """Requests that came to nothing of late, by code, and what to do about it."""

    code: str
    requests: int
    hint: str


@dataclass(frozen=True, slots=True)
class WorkerLine:
    """One worker. used_bytes, capacity_bytes: of its device; None where that is not known."""

    name: str
    state: str
    device: str
    device_name: str
    models: int
    used_bytes: int | None
    capacity_bytes: int | None
    link_use: float | None
    restarts: int
    last_error: str

    @property
    def used(self) -> float | None:
        """The share of the memory."""
        return self.used_bytes / self.capacity_bytes if self.used_bytes and self.capacity_bytes else None


@dataclass(frozen=True, slots=True)
class OverviewView:
    """The last `seconds`. charts: of the last hour or day, made where they are drawn: that takes a while"""

    seconds: float
    rows_per_s: float | None
    requests_per_s: float | None
    waiting: int
    rows_a_batch: float | None
    cached: float | None
    p50_s: float | None
    p99_s: float | None
    refused: int
    late: int
    is_ready: bool
    functions: tuple[FunctionLine, ...]
    errors: tuple[ErrorLine, ...]
    workers: tuple[WorkerLine, ...]
    changes: tuple[Done, ...]  # of capacity, the newest first
    charts: Callable[[], Sequence[str]]


def overview_of(
    stretch: Stretch,
    functions: Sequence[Function],
    ready: Collection[str],
    workers: Sequence[WorkerLine],
    charts: Callable[[], Sequence[str]] = tuple,
    *,
    sees_all: bool,
    changes: Sequence[Done] = (),
) -> OverviewView:
    """functions: that the caller sees, in their current version · ready: the names of those that answer.

    sees_all: whether requests that named nothing served are shown too.
    """
    names = [each.name for each in functions]
    total = stretch.of(names)
    errors = dict(total.errors)
    if sees_all:
        for code, requests in stretch.unresolved.items():
            errors[code] = errors.get(code, 0) + requests
    return OverviewView(
        stretch.seconds,
        stretch.per_s(total.rows),
        stretch.per_s(total.requests),
        sum(stretch.waiting.get(name, 0) for name in names),
        total.rows_a_batch,
        total.cached,
        total.quantile_s(0.5),
        total.quantile_s(0.99),
        sum(errors.get(code, 0) for code in _REFUSED),
        sum(errors.get(code, 0) for code in _LATE),
        bool(ready) and any(worker.state == "up" for worker in workers),
        tuple(_line(each, stretch, each.name in ready) for each in functions),
        tuple(
            ErrorLine(code, requests, hint_of(code))
            for code, requests in sorted(errors.items(), key=lambda pair: (-pair[1], pair[0]))
        ),
        tuple(workers),
        tuple(changes[:_CHANGES]),
        charts,
    )


def worker_lines(statuses: Iterable[WorkerStatus], places: Iterable[Place]) -> list[WorkerLine]:
    """Every worker, up or not."""
    by_name = {place.worker: place for place in places}
    lines = []
    for status in statuses:
        info = status.info if status.state in ("up", "leaving") else None
        place = by_name.get(status.name)
        lines.append(
            WorkerLine(
                status.name,
                status.state,
                info.device if info else "",
                info.device_name if info else "",
                len(place.held) if place else 0,
                place.used_bytes if place else None,
                (place.capacity_bytes or None) if place else None,
                place.link_use if place else None,
                status.restarts,
                status.last_error,
            )
        )
    return lines


def _line(function: Function, stretch: Stretch, is_ready: bool) -> FunctionLine:
    counts = stretch.functions.get(function.name, Counts())
    return FunctionLine(
        function.name,
        function.version,
        function.task.name,
        len(function.members),
        function.slo_ms / 1000,
        stretch.per_s(counts.rows),
        stretch.waiting.get(function.name, 0),
        counts.rows_a_batch,
        counts.cached,
        counts.quantile_s(0.5),
        counts.quantile_s(0.99),
        sum(counts.errors.values()),
        is_ready,
    )
