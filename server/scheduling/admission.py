"""Whether rows may join the queue: bounds in rows and bytes, and deadlines that cannot be met.

Pure functions of the queues and the workers; the refusal says when to come back or when it would finish.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import NamedTuple

from server.scheduling.lanes import Lane
from server.scheduling.roster import Roster
from server.scheduling.terms import FunctionSpec, Rejection, Submission
from server.scheduling.worker_state import WorkerState

__all__ = ["admit", "room", "soonest_after_load_s", "soonest_finish_s"]

_SHORTER = 0.05  # of its time: by so much a queue gets shorter before others are looked at again
_TOLD_MARGIN = 0.005  # in whole percent, what is less is none
_BULK_SHARE = 0.75  # of the bounds: scans that fill their part of the queue leave interactive rows theirs


def admit(
    now_s: float,
    submission: Submission,
    lane: Lane,
    lanes: Collection[Lane],
    workers: Roster,
) -> Rejection | None:
    """None if it may join `lane`, one of its function's `lanes`. Raises ValueError if it has no rows."""
    if submission.rows < 1:
        raise ValueError(f"request {submission.request_id} has no rows")
    spec = lane.spec
    if not _has_room(submission, spec, lanes):
        rows = sum(each.rows for each in lanes)
        drain_s = _drain_s(lane, rows, workers.all)
        message = f"{rows} rows wait for {spec.name} already; try again in {drain_s:.2g} s"
        # Room comes by and by: half of the rows in that time.
        return Rejection("overloaded", message, retry_after_s=drain_s, alike_s=2 * drain_s / max(1, rows))
    if submission.deadline_s == math.inf:
        return None
    if (
        lane.is_silent(now_s) and submission.deadline_s > now_s
    ):  # else a wrong l̂ could refuse all rows, and never learn that it is wrong
        return None
    if _can_finish_by(now_s, submission.deadline_s, 1, lane, workers):
        queued = _queued_too_long(now_s, submission, lane, workers)
        if queued is None:
            return None
        message = (
            f"{queued.ahead} rows wait for {spec.name} before it, "
            f"{queued.late_s * 1000:.3g} ms too long for its deadline"
        )
        if lane.margin.share >= _TOLD_MARGIN:
            message += f" less {lane.margin.share:.0%}, because rows that were let in have been late"
        shut_s = queued.late_s + _SHORTER * (submission.deadline_s - now_s)
        return Rejection("deadline_exceeded", message, predicted_finish_s=queued.finish_s, alike_s=shut_s)
    finish_s = soonest_finish_s(now_s, lane, workers)
    if finish_s is not None and finish_s > submission.deadline_s:
        late_s = finish_s - submission.deadline_s
        message = f"{spec.name} could answer {late_s * 1000:.3g} ms after the deadline at the earliest"
        return Rejection("deadline_exceeded", message, predicted_finish_s=finish_s, alike_s=late_s)
    return None


def _can_finish_by(now_s: float, latest_s: float, rows: int, lane: Lane, workers: Roster) -> bool:
    """Whether some worker surely could answer so many rows by then: the first one that is found will do."""
    return any(
        worker.free_at_s(now_s) + lane.takes_s(rows, worker) <= latest_s for worker in workers.holders(lane)
    )


class _Queued(NamedTuple):
    """Rows before one that comes, when it would be answered, and by how much that is later than it may be."""

    ahead: int
    finish_s: float
    late_s: float


def _queued_too_long(now_s: float, submission: Submission, lane: Lane, workers: Roster) -> _Queued | None:
    """Whether before interactive rows so many wait that the first would be late for its deadline.

    Those before it leave in full batches, but for the last one, in which it is too. Let in, it would wait
    until it is late, and the batches before it would be cut short to save some of them. Rows of a pool need
    not go to all members: how long they wait is not known.
    """
    if submission.row_class == "bulk" or type(lane) is not Lane or not lane.interactive.rows:
        return None
    goal_s = lane.goal_s(now_s, submission)
    ahead = lane.interactive.rows_before(submission.tenant, submission.priority, goal_s)
    most, holders = lane.spec.max_batch, workers.holders(lane)
    if not ahead or not holders:
        return None
    latest_s = submission.deadline_s - lane.margin.share * (submission.deadline_s - now_s)
    if ahead < most and _can_finish_by(now_s, latest_s, ahead + 1, lane, workers):
        return None
    full, rest = divmod(ahead, most)
    own_s = min(lane.takes_s(rest + 1, worker) for worker in holders)
    if full:  # as batches are cut of late, where there are several
        own_s = max(own_s, lane.typical_s)
    rows_per_s = sum(1 / lane.least_row_s(worker) for worker in holders)
    finish_s = min(worker.free_at_s(now_s) for worker in holders) + full * most / rows_per_s + own_s
    return None if finish_s <= latest_s else _Queued(ahead, finish_s, finish_s - latest_s)


def _has_room(submission: Submission, spec: FunctionSpec, lanes: Collection[Lane]) -> bool:
    """Whether the queue's bounds allow it. Alone, even a larger one is let in: else it would never run."""
    bulk = submission.row_class == "bulk"
    rows, nbytes, bulk_rows, bulk_bytes = 0, 0.0, 0, 0.0
    for lane in lanes:
        rows += lane.rows
        nbytes += lane.nbytes
        bulk_rows += lane.bulk.rows
        bulk_bytes += lane.bulk.nbytes
    return not rows or (
        _fits(submission.rows, bulk, rows - bulk_rows, bulk_rows, spec.max_queued_rows)
        and _fits(submission.nbytes, bulk, nbytes - bulk_bytes, bulk_bytes, spec.max_queued_bytes)
    )


def room(spec: FunctionSpec, lanes: Collection[Lane]) -> tuple[float, float]:
    """How many interactive rows and bytes may still join a function's `lanes`, where some wait already."""
    rows = float(spec.max_queued_rows) - sum(lane.rows - lane.bulk.rows for lane in lanes)
    nbytes = float(spec.max_queued_bytes) - sum(lane.nbytes - lane.bulk.nbytes for lane in lanes)
    bulk_rows, bulk_bytes = sum(lane.bulk.rows for lane in lanes), sum(lane.bulk.nbytes for lane in lanes)
    return (
        rows - min(bulk_rows, _BULK_SHARE * spec.max_queued_rows),
        nbytes - min(bulk_bytes, _BULK_SHARE * spec.max_queued_bytes),
    )


def _fits(more: int, bulk: bool, others: float, bulks: float, most: int) -> bool:
    share = _BULK_SHARE * most
    if bulk:
        return bulks + more <= share and others + bulks + more <= most
    taken = min(bulks, share)  # one scan that was let in alone must not shut all others out
    return others + taken + more <= most


def _drain_s(lane: Lane, rows: int, workers: Collection[WorkerState]) -> float:
    """How long half of the queued rows take at full batches: when room is likely again."""
    most = lane.spec.max_batch
    rate = sum(most / lane.takes_s(most, worker) for worker in workers)
    return min(30.0, max(0.01, rows / 2 / rate)) if rate else 1.0


def soonest_finish_s(now_s: float, lane: Lane, workers: Roster) -> float | None:
    """If its first row ran next on the best worker, or on the best for each member if none may run them all.

    None while no worker can run it.
    """
    finishes = [worker.free_at_s(now_s) + lane.takes_s(1, worker) for worker in workers.holders(lane)]
    soonest_s = min(finishes, default=math.inf)
    if soonest_s == math.inf and len(lane.members) > 1:
        soonest_s = max(_soonest_of_member_s(now_s, lane, name, workers.all) for name in lane.names)
    return soonest_s if soonest_s < math.inf else None


def soonest_after_load_s(now_s: float, lane: Lane, workers: Collection[WorkerState]) -> float | None:
    """If the best worker first loaded what it lacks; None while nothing is known of that.

    Rows are not refused at the door for it: those that wait are what the placement loads models for.
    """
    finishes = [
        max(worker.free_at_s(now_s), now_s + lane.swap_s(worker)) + lane.takes_s(1, worker)
        for worker in workers
    ]
    soonest_s = min(finishes, default=math.inf)
    return soonest_s if soonest_s < math.inf else None


def _soonest_of_member_s(now_s: float, lane: Lane, name: str, workers: Collection[WorkerState]) -> float:
    finishes = [
        worker.free_at_s(now_s) + lane.takes_s(1, worker, (name,))
        for worker in workers
        if name in worker.view.resident
    ]
    return min(finishes, default=math.inf)
