"""Prefix batching: rows of other functions leave in a batch, since they go through the same network first.

Functions whose one member is a head on the same frozen backbone have the same `FunctionSpec.prefix`. A pass
of the backbone takes what it takes, whosever rows are in it, and what heads add is next to nothing; so a
batch of one of them takes along rows that wait for the others (Nexus, Shen et al. 2019, §6.3). It stays
within its function's largest batch, and makes nobody late who was not: neither its own rows, nor those that
wait for other models. Pure functions; they know lanes and workers, not the core.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from server.scheduling.lanes import Lane
from server.scheduling.policy import RowRun, rows_within
from server.scheduling.worker_state import WorkerState

__all__ = ["Riders", "filler_riders", "interactive_riders", "kin_of"]

Riders = Sequence[tuple[Lane, list[RowRun]]]


def kin_of(now_s: float, lane: Lane, worker: WorkerState, lanes: Iterable[Lane]) -> list[Lane]:
    """Those of `lanes` whose rows may leave in a batch of `lane` for that worker."""
    if not lane.shares_pass(now_s):
        return []
    prefix, bucket = lane.spec.prefix, lane.key[2]
    return [
        other
        for other in lanes
        if other is not lane
        and (other.spec.prefix, other.key[2]) == (prefix, bucket)
        and other.shares_pass(now_s)
        and other.can_run_on(worker)
    ]


def interactive_riders(
    now_s: float,
    lane: Lane,
    worker: WorkerState,
    runs: Sequence[RowRun],
    kin: Sequence[Lane],
    lanes: Iterable[Lane],
    most_s: float = math.inf,
) -> Riders:
    """Take the interactive rows that leave with `runs` of `lane`: of its `kin`, those that are due first.

    lanes: in which rows wait. most_s: that the batch may take, whatever its goals allow.
    """
    waiting = [other for other in kin if other.interactive.rows]
    rows = sum(run.rows for run in runs)
    if not waiting or rows >= lane.spec.max_batch:
        return []
    waiting.sort(key=lambda other: (-other.interactive.first.priority, other.interactive.first.due_s))
    start_s, own_s = worker.free_at_s(now_s), lane.takes_s(rows, worker)
    limit_s = min(most_s, _spared_s(lane, worker, start_s, own_s, lanes))
    own_spare_s = min(run.due_s for run in runs) - start_s
    if own_s <= own_spare_s:  # else its goal is lost, and a little more changes nothing
        limit_s = min(limit_s, own_spare_s)
    room = _room(lane, worker, rows, limit_s)
    found: list[tuple[Lane, list[RowRun]]] = []
    for other in waiting:
        if room < 1:
            break
        row_s = lane.takes_s(rows, worker) / rows
        taken = other.take_along(min(room, other.spec.max_batch), row_s)
        room -= sum(run.rows for run in taken)
        if taken:
            found.append((other, taken))
    return found


def filler_riders(now_s: float, kin: Iterable[Lane], room: int, row_s: float) -> Riders:
    """Take up to `room` fillers of a lane's `kin`, who all have some, who have waited longest first.

    row_s: what a row takes.
    """
    found: list[tuple[Lane, list[RowRun]]] = []
    for other in sorted(kin, key=lambda each: each.filler_served_s):
        if room < 1:
            break
        taken = other.take_fillers(now_s, min(room, other.filler_rows, other.spec.max_batch), row_s)
        room -= sum(run.rows for run in taken)
        found.append((other, taken))
    return found


def _room(lane: Lane, worker: WorkerState, rows: int, limit_s: float) -> int:
    """How many rows may join so many of `lane`."""
    return rows_within(lambda count: lane.takes_s(count, worker), lane.spec.max_batch, limit_s) - rows


def _spared_s(lane: Lane, worker: WorkerState, start_s: float, own_s: float, lanes: Iterable[Lane]) -> float:
    """How long the batch may become, so that rows of other models that are in time behind it still are.

    own_s: what it takes by itself.
    """
    limit_s = math.inf
    for other in lanes:
        is_kin = other.spec.prefix == lane.spec.prefix
        if is_kin or not other.interactive.rows or not other.can_run_on(worker):
            continue
        waits_s = other.takes_s(min(other.interactive.rows, other.spec.max_batch), worker)
        spare_s = other.interactive.first.due_s - start_s - waits_s
        if spare_s >= own_s:
            limit_s = min(limit_s, spare_s)
    return limit_s
