"""A core with functions and workers, in one line."""

from __future__ import annotations

from typing import Any

from server.scheduling.core import (
    FunctionSpec,
    Idle,
    MemberSpec,
    RefuseRows,
    RunBatch,
    Scheduler,
    Submission,
    WorkerView,
)
from tests.unit.scheduling.views import affine


def spec(name: str = "f", **fields: Any) -> FunctionSpec:
    """A function of one member, `name-m`: 5 ms a batch and 0.25 ms a row, at most 8 rows, goal 50 ms."""
    max_batch = fields.pop("max_batch", 8)
    sizes = tuple(size for size in (1, 2, 4, 8, 16, 32, 64) if size <= max_batch)
    members = (MemberSpec(f"{name}-m", 0.9, fields.pop("latency", affine), fields.pop("swap_s", None)),)
    return FunctionSpec(name, fields.pop("slo_s", 0.05), max_batch, sizes, members, **fields)


def worker(name: str = "w", *functions: str, alive: bool = True, in_flight_limit: int = 2) -> WorkerView:
    """A worker on which the models of these functions are resident; of `f` if none is named."""
    resident = frozenset(f"{function}-m" for function in functions or ("f",))
    return WorkerView(name, alive, resident, in_flight_limit)


def core(*specs: FunctionSpec, workers: tuple[WorkerView, ...] = (), **fields: Any) -> Scheduler:
    """A scheduler that knows them at time 0."""
    scheduler = Scheduler(**fields)
    for each in specs or (spec(),):
        scheduler.configure(0.0, each)
    for view in workers or (worker("w", *(each.name for each in specs)),):
        scheduler.set_worker(0.0, view)
    return scheduler


def rows(request_id: int, count: int = 1, function: str = "f", **fields: Any) -> Submission:
    """A submission of 10 bytes a row."""
    return Submission(request_id, function, count, 10 * count, **fields)


def actions(scheduler: Scheduler, now_s: float) -> list[RunBatch | RefuseRows]:
    """All that the core wants done now."""
    wanted: list[RunBatch | RefuseRows] = []
    while not isinstance(action := scheduler.next_action(now_s), Idle):
        assert isinstance(action, RunBatch | RefuseRows)
        wanted.append(action)
        assert len(wanted) < 1000
    return wanted


def batches(scheduler: Scheduler, now_s: float) -> list[RunBatch]:
    """The same, where nothing is refused."""
    wanted = actions(scheduler, now_s)
    assert all(isinstance(action, RunBatch) for action in wanted)
    return [action for action in wanted if isinstance(action, RunBatch)]


def parts(batch: RunBatch | RefuseRows) -> list[tuple[int, int, int]]:
    """(request, offset, rows) of each slice."""
    return [(part.request_id, part.offset, part.rows) for part in batch.slices]
