"""What tenants that share workers owe each other in a batch: how long it may be, and whose rows join it.

Turns (turns.py) bound what each gets. They do not bound how long one who asks little waits: a batch is run
whole, and as long as the device likes best where another has a million rows. So where some are *heavy*, who
fill half a batch alone while one runs, their rows are to the others' as bulk rows are to interactive ones
(filling.py): they fill their batches as far as these can bear, and run alone in batches as short as that,
while the others' rows keep coming; but never in such short ones that they would lose more than is not theirs.
Where nobody is heavy, or all are, batches are as long as ever. Pure functions; they know lanes and workers,
not the core.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from server.scheduling.filling import FillerLimits
from server.scheduling.lanes import Lane
from server.scheduling.policy import RowClass, RowRun, rows_within
from server.scheduling.streams import Stream
from server.scheduling.team import Runner

__all__ = ["LONGEST", "Asked", "asked_of", "joining", "limits_for_light", "rows_for_head", "rows_for_light"]

_HEAVY = 0.5  # of a batch
# In batches that there would be without the heavy tenants.
LONGEST = 1.72  # batch
_LATENCY = 2.6  # of a row, its wait included


@dataclass(frozen=True, slots=True)
class Asked:
    """Who of a class is heavy, and the batch that there would be without these.

    light_s: inf if nobody is heavy, or all are.
    """

    heavy: frozenset[str] = frozenset()
    light_s: float = math.inf


def asked_of(now_s: float, lanes: Iterable[Lane], runner: Runner, row_class: RowClass, workers: int) -> Asked:
    """What the tenants of a class ask of the workers, of which there are so many.

    A tenant asks for what waits of it, and for what comes while that many full batches run.
    """
    worker = runner.running(())[0][0]
    asks: dict[str, float] = {}  # batches
    found: list[tuple[Lane, str, Stream]] = []
    for lane in lanes:
        most = lane.spec.max_batch
        batch_s = lane.least_row_s(worker) * most / workers
        for tenant, stream in lane.streams.of(row_class):
            found.append((lane, tenant, stream))
            rows = lane.rows_of(row_class, tenant) + stream.rate(now_s) * batch_s
            asks[tenant] = asks.get(tenant, 0.0) + rows / most
    heavy = frozenset(tenant for tenant, batches in asks.items() if batches > _HEAVY)
    if not heavy:
        return Asked()
    rates: dict[Lane, float] = {}
    least_rows: dict[Lane, float] = {}
    for lane, tenant, stream in found:
        if tenant in heavy:
            rates[lane] = rates.get(lane, 0.0) - stream.rate(now_s)
        elif stream.rhythm.keeps_on(now_s):
            least_rows[lane] = min(stream.request_rows, least_rows.get(lane, math.inf))
    light_s = math.inf
    for lane, rows in least_rows.items():
        rate = lane.streams.rate(now_s, row_class) + rates.get(lane, 0.0)
        light_s = min(light_s, _batch_s(lane, runner, max(1, round(rows)), rate))
    return Asked(heavy, light_s)


def _batch_s(lane: Lane, runner: Runner, least: int, rate: float) -> float:
    """What comes while a batch of it runs, at so many rows a second, and so many at least."""
    most = lane.spec.max_batch
    batch_s = lane.takes_s(min(least, most), runner)
    for _ in range(3):
        batch_s = lane.takes_s(min(max(least, int(rate * batch_s)), most), runner)
    return batch_s


def rows_for_light(lane: Lane, runner: Runner, light_s: float, share: float) -> int:
    """How many rows may run alone; no less than `LONGEST` allows of a row alone, as in `filler_batch_rows`.

    share: of the tenant whose they are. Batches that long get it, of what full ones do.
    """
    most = lane.spec.max_batch
    limit_s = LONGEST * max(light_s, lane.takes_s(1, runner))
    bearable = max(1, rows_within(lambda rows: lane.takes_s(rows, runner), most, limit_s))
    rate = share * most / lane.takes_s(most, runner)
    due = bisect_left(range(1, most), rate, key=lambda rows: rows / lane.takes_s(rows, runner)) + 1
    return max(bearable, due)


def limits_for_light(light_s: float, limits: FillerLimits) -> FillerLimits:
    """The same, where batches with bulk or late rows are as short as light tenants can bear."""
    if light_s == math.inf:
        return limits
    return FillerLimits(
        alone_s=min(limits.alone_s, LONGEST * light_s),
        filled_s=min(limits.filled_s, LONGEST * light_s),
        latency_s=min(limits.latency_s, _LATENCY * light_s),
        is_limited=True,
    )


def rows_for_head(now_s: float, lane: Lane, runner: Runner, rows: int) -> int:
    """Of so many fillers as a batch could take, as many as the tenant can bear whose turn it is.

    The longer its first row waited, the fewer others share its batch.
    """
    queue = lane.fillers
    own = min(rows, queue.rows_in_turn)
    until_s = queue.first.arrived_s + _LATENCY * lane.takes_s(own, runner) - runner.free_at_s(now_s)
    return max(own, rows_within(lambda count: lane.takes_s(count, runner), rows, until_s))


def joining(
    now_s: float, lane: Lane, runner: Runner, runs: Sequence[RowRun], light_s: float
) -> Callable[[RowRun, int], int]:
    """How many rows of a run may join a batch of `runs`, and of so many others.

    All its rows shall make their goals. light_s: what light tenants can bear, inf where that is not asked.
    """
    start_s = runner.free_at_s(now_s)
    own = sum(run.rows for run in runs)
    limit_s = min(run.due_s for run in runs) - start_s
    if light_s < math.inf:
        own_s = max(light_s, lane.takes_s(own, runner))
        oldest_s = min(run.arrived_s for run in runs)
        limit_s = min(limit_s, LONGEST * own_s, oldest_s + _LATENCY * own_s - start_s)

    def joins(run: RowRun, others: int) -> int:
        nonlocal limit_s
        within_s = min(limit_s, run.due_s - start_s)
        most = rows_within(lambda rows: lane.takes_s(rows, runner), lane.spec.max_batch, within_s)
        count = min(run.rows, most - own - others)
        if count > 0:
            limit_s = within_s
        return count

    return joins
