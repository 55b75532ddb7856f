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
from collections.abc import Collection, Iterator, Sequence

from server.scheduling.lanes import Lane
from server.scheduling.roster import Roster
from server.scheduling.team import Runner, Team, TeamPart
from server.scheduling.worker_state import WorkerState

__all__ = ["Backlog", "runner_for", "team_for", "worker_for"]


class Backlog:
    """Seconds of interactive batches that wait for a worker, of several lanes; of one, none but its own do.

    Those that hold a model share what waits for it. Each worker's is found when it is asked for.
    """

    def __init__(self, lanes: Collection[Lane], roster: Roster) -> None:
        self._roster = roster
        self._lanes = lanes if len(roster) > 1 < len(lanes) else ()
        self._found: dict[str, float] = {}

    def before(self, lane: Lane, worker: WorkerState) -> float:
        """What waits for the worker beside the lane's own batch."""
        if not self._lanes:
            return 0.0
        waiting_s = self._found.get(worker.name)
        if waiting_s is None:
            waiting_s = self._found[worker.name] = self._waiting_s(worker)
        return max(0.0, waiting_s - _next_batch_s(lane, worker))

    def _waiting_s(self, worker: WorkerState) -> float:
        waiting_s = 0.0
        for lane in self._lanes:
            holders = self._roster.holders(lane)
            if holders and lane.can_run_on(worker):
                waiting_s += _next_batch_s(lane, worker) / len(holders)
            elif not holders and len(lane.members) > 1:
                waiting_s += sum(self._parts_s(lane, worker))
        return waiting_s

    def _parts_s(self, lane: Lane, worker: WorkerState) -> Iterator[float]:
        """Of a lane whose members live apart, what each that is there takes."""
        rows = min(lane.interactive.rows, lane.spec.max_batch)
        for name in lane.names if rows else ():
            if name in worker.view.resident:
                holders = sum(name in each.view.resident for each in self._roster)
                yield lane.takes_s(rows, worker, (name,)) / holders


def runner_for(now_s: float, lane: Lane, roster: Roster, backlog: Backlog) -> Runner | None:
    """Who runs the lane's next batch; None to wait for one that has no room yet."""
    able = roster.able(lane)
    if len(lane.members) > 1 and all(worker.is_overdue(now_s) for worker in able):
        team = team_for(now_s, lane, roster.all)
        if team is not None:
            return team if team.has_room(now_s) else None
    return worker_for(now_s, lane, able, backlog)


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


def worker_for(now_s: float, lane: Lane, able: Sequence[WorkerState], backlog: Backlog) -> WorkerState | None:
    """The worker to send the lane's batch to, of those that can run it; None to wait for one that has no room
    yet.
    """
    best: WorkerState | None = None
    best_s = math.inf
    for worker in able:
        # The cheap first: there may be dozens, and most have no room, or begin later.
        if worker.end_s < best_s and worker.has_room(now_s):
            start_s = worker.starts_at_s(now_s)
            if start_s < best_s:
                best, best_s = worker, start_s
                if best_s <= now_s:
                    break  # nobody begins sooner
    if best is None:
        return None
    if best_s > now_s and _begins_sooner(now_s, lane, able, best_s, backlog):
        return None
    if len(able) > 1 and lane.interactive.rows and not lane.are_alike(able):
        return _in_time(now_s, lane, best, best_s, able, backlog)
    return best


def _begins_sooner(
    now_s: float, lane: Lane, able: Sequence[WorkerState], best_s: float, backlog: Backlog
) -> bool:
    """Whether one without room begins the batch before that."""
    return any(
        _start_s(now_s, lane, worker, backlog) < best_s
        for worker in able
        if worker.end_s < best_s and not worker.has_room(now_s)
    )


def _start_s(now_s: float, lane: Lane, worker: WorkerState, backlog: Backlog) -> float:
    """When one without room would begin it: after what waits for it."""
    return worker.starts_at_s(now_s) + backlog.before(lane, worker)


def _in_time(
    now_s: float,
    lane: Lane,
    best: WorkerState,
    best_s: float,
    able: Sequence[WorkerState],
    backlog: Backlog,
) -> WorkerState | None:
    """Of workers that are not equally fast, one that ends the lane's next batch sooner than `best`, which
    begins it first; None to wait for one on which its first row is in time, as it is on none that has room.

    Where all are late, or equally fast, it is `best`.
    """
    rows = min(lane.interactive.rows, lane.spec.max_batch)
    each_takes_s = [lane.takes_s(rows, worker) for worker in able]
    if max(each_takes_s) == min(each_takes_s):
        return best
    due_s = lane.interactive.first.due_s
    ends_s = best_s + lane.takes_s(rows, best)
    for worker, takes_s in zip(able, each_takes_s, strict=True):
        start_s = worker.starts_at_s(now_s)
        if start_s + takes_s < ends_s and worker.has_room(now_s):
            best, best_s, ends_s = worker, start_s, start_s + takes_s
    if best_s + lane.takes_s(1, best) <= due_s:
        return best
    is_waited_for = any(
        not worker.has_room(now_s)
        and not worker.is_overdue(now_s)
        and _start_s(now_s, lane, worker, backlog) + lane.takes_s(1, worker) <= due_s
        for worker in able
    )
    return None if is_waited_for else best


def _next_batch_s(lane: Lane, worker: WorkerState) -> float:
    rows = min(lane.interactive.rows, lane.spec.max_batch)
    return lane.takes_s(rows, worker) if rows else 0.0
