"""Which worker a lane's next batch is for.

The one that would start it soonest: after what is on it, after the batches that wait for it, after loading
the model if it is not resident. That may be a busy worker, if waiting for it is shorter than loading
elsewhere. A worker that is overdue is busy: it is expected to stay so for as long again.
Pure functions of lanes and workers.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from server.scheduling.lanes import Lane
from server.scheduling.worker_state import WorkerState

__all__ = ["backlog_s", "worker_for"]


def backlog_s(lanes: Collection[Lane], workers: Collection[WorkerState]) -> dict[str, float]:
    """Worker → seconds of interactive batches waiting for it, shared by those that hold the model."""
    waiting_s = {worker.name: 0.0 for worker in workers}
    for lane in lanes:
        holders = [worker for worker in workers if lane.swap_s(worker) == 0.0]
        for worker in holders:
            waiting_s[worker.name] += _next_batch_s(lane, worker) / len(holders)
    return waiting_s


def worker_for(
    now_s: float, lane: Lane, workers: Collection[WorkerState], waiting_s: Mapping[str, float]
) -> WorkerState | None:
    """The worker to send the lane's batch to; None to wait for one that has no room yet."""
    best: WorkerState | None = None
    best_s, best_has_room = math.inf, False
    for worker in workers:
        swap_s = lane.swap_s(worker)
        if swap_s == math.inf or worker.is_reserved:
            continue
        has_room = worker.has_room(now_s)
        start_s = worker.starts_at_s(now_s) + swap_s
        if swap_s == 0.0 and not has_room and waiting_s:
            start_s += max(0.0, waiting_s[worker.name] - _next_batch_s(lane, worker))
        if start_s < best_s or (start_s == best_s and has_room and not best_has_room):
            best, best_s, best_has_room = worker, start_s, has_room
    return best if best_has_room else None


def _next_batch_s(lane: Lane, worker: WorkerState) -> float:
    rows = min(lane.interactive.rows, lane.spec.max_batch)
    return lane.predicted_s(rows, worker.view.device) if rows else 0.0
