"""Which worker a lane's next batch is for, or which several.

Of those that hold the model the one that would start it soonest: after what is on it, and after the batches
that wait for it. That may be a busy worker. Where some are slower, one that ends it sooner goes before; and
rows that would be late on those that have room wait for one on which they are not. A worker that is overdue
is busy: it is expected to stay so for as long again. What is loaded elsewhere is decided by the placement.

Members on one worker share what they need, so one that holds all of a lane's goes before several that hold
them between them. Those run the rows where no other can, or where each that could is overdue.
Pure functions of lanes and workers.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from server.scheduling.lanes import Lane
from server.scheduling.team import Runner, Team, TeamPart
from server.scheduling.worker_state import WorkerState

__all__ = ["backlog_s", "runner_for", "team_for", "worker_for"]


def backlog_s(lanes: Collection[Lane], workers: Collection[WorkerState]) -> dict[str, float]:
    """Worker → seconds of interactive batches waiting for it, shared by those that hold the model."""
    waiting_s = {worker.name: 0.0 for worker in workers}
    for lane in lanes:
        holders = [worker for worker in workers if lane.can_run_on(worker)]
        for worker in holders:
            waiting_s[worker.name] += _next_batch_s(lane, worker) / len(holders)
        if not holders and len(lane.members) > 1:
            _add_parts(waiting_s, lane, workers)
    return waiting_s


def _add_parts(waiting_s: dict[str, float], lane: Lane, workers: Collection[WorkerState]) -> None:
    rows = min(lane.interactive.rows, lane.spec.max_batch)
    for member in lane.members if rows else ():
        holders = [worker for worker in workers if member.name in worker.view.resident]
        for worker in holders:
            takes_s = lane.takes_s(rows, worker, (member.name,))
            waiting_s[worker.name] += takes_s / len(holders)


def runner_for(
    now_s: float, lane: Lane, workers: Collection[WorkerState], waiting_s: Mapping[str, float]
) -> Runner | None:
    """Who runs the lane's next batch; None to wait for one that has no room yet."""
    if not any(
        lane.can_run_on(worker) and not worker.is_reserved and not worker.is_overdue(now_s)
        for worker in workers
    ):
        team = team_for(now_s, lane, workers)
        if team is not None:
            return team if team.has_room(now_s) else None
    return worker_for(now_s, lane, workers, waiting_s)


def team_for(now_s: float, lane: Lane, workers: Collection[WorkerState]) -> Team | None:
    """As few workers as hold all of the lane's members between them; None if there are none, or only one.

    Of those that add equally many members, the one that would start soonest.
    """
    sound = [worker for worker in workers if not worker.is_reserved and not worker.is_overdue(now_s)]
    left = {member.name for member in lane.members}
    parts: list[TeamPart] = []
    while left:
        worker = min(
            sound,
            key=lambda each: (-len(left & each.view.resident), each.starts_at_s(now_s)),
            default=None,
        )
        if worker is None or not left & worker.view.resident:
            return None
        part = tuple(member.name for member in lane.members if member.name in left & worker.view.resident)
        parts.append((worker, part))
        left.difference_update(part)
    return Team(tuple(parts)) if len(parts) > 1 else None


def worker_for(
    now_s: float, lane: Lane, workers: Collection[WorkerState], waiting_s: Mapping[str, float]
) -> WorkerState | None:
    """The worker to send the lane's batch to; None to wait for one that has no room yet."""
    best: WorkerState | None = None
    best_s, best_has_room = math.inf, False
    able: list[tuple[WorkerState, float, bool]] = []
    for worker in workers:
        if worker.is_reserved or not lane.can_run_on(worker):
            continue
        has_room = worker.has_room(now_s)
        start_s = worker.starts_at_s(now_s)
        if not has_room and waiting_s:
            start_s += max(0.0, waiting_s[worker.name] - _next_batch_s(lane, worker))
        able.append((worker, start_s, has_room))
        if start_s < best_s or (start_s == best_s and has_room and not best_has_room):
            best, best_s, best_has_room = worker, start_s, has_room
    if best is not None and best_has_room and len(able) > 1 and lane.interactive.rows:
        return _in_time(now_s, lane, best, best_s, able)
    return best if best_has_room else None


def _in_time(
    now_s: float,
    lane: Lane,
    best: WorkerState,
    best_s: float,
    able: Sequence[tuple[WorkerState, float, bool]],
) -> WorkerState | None:
    """Of workers that are not equally fast, one that ends the lane's next batch sooner than `best`, which
    begins it first; None to wait for one on which its first row is in time, as it is on none that has room.

    Where all are late, or equally fast, it is `best`.
    """
    rows = min(lane.interactive.rows, lane.spec.max_batch)
    best_takes_s = lane.takes_s(rows, best)
    each_takes_s = [lane.takes_s(rows, worker) for worker, _, _ in able]
    if max(each_takes_s) == min(each_takes_s):
        return best
    due_s = lane.interactive.first.due_s
    ends_s = best_s + best_takes_s
    for (worker, start_s, has_room), takes_s in zip(able, each_takes_s, strict=True):
        if has_room and start_s + takes_s < ends_s:
            best, best_s, ends_s = worker, start_s, start_s + takes_s
    if best_s + lane.takes_s(1, best) <= due_s:
        return best
    is_waited_for = any(
        not has_room and not worker.is_overdue(now_s) and start_s + lane.takes_s(1, worker) <= due_s
        for worker, start_s, has_room in able
    )
    return None if is_waited_for else best


def _next_batch_s(lane: Lane, worker: WorkerState) -> float:
    rows = min(lane.interactive.rows, lane.spec.max_batch)
    return lane.takes_s(rows, worker) if rows else 0.0
