"""Rows that run in what interactive rows leave: bulk scans, and rows whose latency goal is already lost.

They fill the empty places of an interactive batch, run alone while no interactive row could use the worker,
and are paused rather than dropped while interactive rows need all of it (INFaaS §4.2, offline queries). So
that a scan neither ruins nor starves:
  - while interactive rows keep coming, a filler batch is short: at most `stretch` times their own batches;
  - a lane whose fillers waited `patience` times their own batch gets a worker before anybody else.
Pure functions; they know lanes and workers, not the core.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from server.scheduling.lanes import Lane
from server.scheduling.worker_state import WorkerState

__all__ = ["Filling", "fill_rows", "filler_batch_rows", "is_starving", "quantum_s"]


@dataclass(frozen=True, slots=True)
class Filling:
    """How much room fillers get."""

    stretch: float = 1.5  # longest filler batch, in interactive batches, while interactive rows keep coming
    recent_s: float = 1.0  # a lane without interactive rows for so long no longer counts as having any
    patience: float = 20.0  # fillers get at least 1 / (1 + patience) of a worker


def quantum_s(filling: Filling, now_s: float, lanes: Iterable[Lane]) -> float:
    """How long a batch with fillers may take; inf while no interactive rows have come of late."""
    typical = [lane.typical_s for lane in lanes if lane.arrived_s >= now_s - filling.recent_s]
    return filling.stretch * min(filter(None, typical), default=math.inf)


def filler_batch_rows(lane: Lane, worker: WorkerState, limit_s: float) -> int:
    """Rows of a batch of fillers alone, of at most `limit_s` seconds, but never fewer than one."""
    most = min(lane.filler_rows, lane.spec.max_batch)
    return max(1, _rows_within(lane, worker, most, limit_s))


def fill_rows(lane: Lane, worker: WorkerState, rows: int, limit_s: float) -> int:
    """How many fillers may join a batch of `rows` interactive rows that must take at most `limit_s`."""
    most = min(rows + lane.filler_rows, lane.spec.max_batch)
    return max(0, _rows_within(lane, worker, most, limit_s) - rows)


def is_starving(filling: Filling, now_s: float, lane: Lane, worker: WorkerState) -> bool:
    """Whether the lane's fillers waited so long that they go before interactive rows."""
    if not lane.filler_rows:
        return False
    batch_s = lane.predicted_s(min(lane.filler_rows, lane.spec.max_batch), worker.view.device)
    return now_s - lane.filler_served_s > filling.patience * batch_s


def _rows_within(lane: Lane, worker: WorkerState, most: int, limit_s: float) -> int:
    """The largest batch of at most `most` rows with l̂ ≤ limit; 0 if there is none."""
    device = worker.view.device
    if most == 0 or lane.predicted_s(most, device) <= limit_s:
        return most
    low, high = 0, most  # l̂(low) fits, l̂(high) does not
    while high - low > 1:
        middle = (low + high) // 2
        if lane.predicted_s(middle, device) <= limit_s:
            low = middle
        else:
            high = middle
    return low
