"""Rows that run in what interactive rows leave: bulk scans, and rows whose latency goal is already lost.

They fill the empty places of an interactive batch, run alone while no interactive row could use the worker,
and are paused rather than dropped while interactive rows need all of it (INFaaS §4.2, offline queries). So
that a scan neither ruins nor starves:
  - while interactive rows keep coming, filler batches are short, measured by what interactive batches take: a
    row waits for at most one of them, and the longer it waited, and the busier the worker is with such rows,
    the fewer fillers share its batch (rhythm.py: whether they keep coming);
  - where interactive rows came within the last minute, the first one that comes again still meets its goal
    behind all the fillers in flight;
  - a lane whose fillers waited `patience` times their own batch gets a worker before anybody else.
Pure functions; they know lanes and workers, not the core.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from server.scheduling.lanes import Lane
from server.scheduling.policy import rows_within
from server.scheduling.team import Runner, Team

__all__ = ["FillerLimits", "Filling", "fill_rows", "filler_batch_rows", "filler_limits", "is_starving"]


@dataclass(frozen=True, slots=True)
class Filling:
    """How much room fillers get. Times are in interactive batches of the lane that has the shortest ones."""

    longest: float = 1.8  # batch with fillers in it, while interactive rows keep coming
    latency: float = 2.8  # of an interactive row, its wait included, that has fillers in its batch
    remembered_s: float = 60.0  # without interactive rows for so long, a lane counts as bulk only
    goal_share: float = 0.8  # of a remembered lane's goal less its own row, for all fillers in flight
    patience: float = 20.0  # fillers get at least 1 / (1 + patience) of a worker


@dataclass(frozen=True, slots=True)
class FillerLimits:
    """How long batches with fillers may take, seconds; inf = no limit."""

    alone_s: float  # of fillers alone
    filled_s: float  # an interactive one, filled
    latency_s: float  # that, and the wait of its oldest row
    is_limited: bool  # interactive rows keep coming


def filler_limits(filling: Filling, now_s: float, lanes: Iterable[Lane], worker: Runner) -> FillerLimits:
    """How long batches with fillers may take there, for the sake of the interactive rows of `lanes`."""
    if isinstance(worker, Team):
        all_lanes = list(lanes)
        return _tightest(filler_limits(filling, now_s, all_lanes, each) for each, _ in worker.parts)
    batch_s = goal_s = coming_s = math.inf
    for lane in lanes:
        if not lane.may_use(worker) or now_s - lane.rhythm.came_s > filling.remembered_s:
            continue
        row_s = lane.takes_s(1, worker)
        goal_s = min(goal_s, lane.spec.slo_s - row_s)
        typical_s = lane.typical_s or row_s
        batch_s = min(batch_s, typical_s)
        if lane.rhythm.keeps_on(now_s):
            coming_s = min(coming_s, typical_s)
    first_s = filling.goal_share * goal_s / max(1, worker.view.in_flight_limit)
    # Every interactive batch grows by its fillers: the busier the worker is with such, the less of it.
    idle = max(0.0, 1 - worker.share(now_s))
    filled = 1 + (filling.longest - 1) * idle * idle
    return FillerLimits(
        alone_s=min(filling.longest * coming_s, first_s),
        filled_s=filled * batch_s,
        latency_s=filling.latency * batch_s,
        is_limited=coming_s < math.inf,
    )


def _tightest(limits: Iterable[FillerLimits]) -> FillerLimits:
    each = list(limits)
    return FillerLimits(
        alone_s=min(one.alone_s for one in each),
        filled_s=min(one.filled_s for one in each),
        latency_s=min(one.latency_s for one in each),
        is_limited=any(one.is_limited for one in each),
    )


def filler_batch_rows(
    longest: float, lane: Lane, worker: Runner, room_s: float, spare_s: float, more: int = 0
) -> int:
    """Rows of a batch of fillers alone, never fewer than one, within the room there is and `spare_s`.

    more: fillers of other lanes that may be in it.

    A batch of one row takes its time too. Where the room is less than that, nobody is spared by running them
    one by one, and rows that have missed their goal would only become more: so it is `longest` times that.
    """
    most = min(lane.filler_rows + more, lane.spec.max_batch)
    least_s = longest * lane.takes_s(1, worker)
    limit_s = min(max(room_s, least_s), spare_s)
    return max(1, rows_within(lambda rows: lane.takes_s(rows, worker), most, limit_s))


def fill_rows(lane: Lane, worker: Runner, rows: int, limit_s: float, members: Collection[str] = ()) -> int:
    """How many fillers may join a batch of `rows` interactive rows that must take at most `limit_s`."""
    most = min(rows + lane.filler_rows, lane.spec.max_batch)
    return max(0, rows_within(lambda count: lane.takes_s(count, worker, members), most, limit_s) - rows)


def is_starving(filling: Filling, now_s: float, lane: Lane, worker: Runner) -> bool:
    """Whether the lane's fillers waited so long that they go before interactive rows."""
    if not lane.filler_rows:
        return False
    batch_s = lane.takes_s(min(lane.filler_rows, lane.spec.max_batch), worker)
    return now_s - lane.filler_served_s > filling.patience * batch_s
