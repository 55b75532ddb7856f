"""What tenants that share workers owe each other in a batch: how long it may be, and whose rows join it.

Turns (turns.py) bound what each gets. They do not bound how long one who asks little waits: a batch is run
whole, and as long as the device likes best where another has a million rows. So to the *light* tenants, who
ask for less than half of what all ask for in the mean, the rows of the others are as bulk rows are to
interactive ones (filling.py): they fill their batches as far as these can bear, and run alone in batches as
short as that, while the light ones' rows keep coming. Where all ask for as much, nobody is light, and batches
are as long as ever. Pure functions; they know lanes and workers, not the core.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from server.scheduling.filling import FillerLimits
from server.scheduling.lanes import Lane
from server.scheduling.policy import RowClass, RowRun, rows_within
from server.scheduling.streams import Stream
from server.scheduling.team import Runner

__all__ = ["joining", "light_batch_s", "limits_for_light", "rows_for_head", "rows_for_light"]

_LIGHT = 0.5  # of what tenants ask for in the mean
# In batches that light tenants would have without the others.
_LONGEST = 1.8  # batch
_LATENCY = 2.7  # of a row, its wait included


def light_batch_s(
    now_s: float, lanes: Iterable[Lane], runner: Runner, row_class: RowClass, tenants: int
) -> float:
    """The batch that light tenants of that class would have without the others; inf where there are none.

    tenants: how many there are. Who has rows waiting asks for these, too.
    """
    device = runner.running(())[0][0].view.device
    asked_s = 0.0  # in all
    asks_s: dict[str, float] = {}
    found: list[tuple[Lane, str, Stream]] = []
    for lane in lanes:
        queue = lane.interactive if row_class == "interactive" else lane.bulk
        row_s = lane.least_row_s(device)
        asked_s += (lane.streams.rate(now_s, row_class) + queue.rows) * row_s
        for tenant, stream in lane.streams.coming(now_s, row_class):
            found.append((lane, tenant, stream))
            mine_s = (stream.rate(now_s) + queue.rows_of(tenant)) * row_s
            asks_s[tenant] = asks_s.get(tenant, 0.0) + mine_s
    most_s = _LIGHT * asked_s / tenants
    light: dict[Lane, list[Stream]] = {}
    for lane, tenant, stream in found:
        if asks_s[tenant] < most_s:
            light.setdefault(lane, []).append(stream)
    return min((_batch_s(now_s, lane, runner, streams) for lane, streams in light.items()), default=math.inf)


def _batch_s(now_s: float, lane: Lane, runner: Runner, streams: Sequence[Stream]) -> float:
    """What comes of these while a batch of it runs, and one request at least."""
    rate = sum(stream.rate(now_s) for stream in streams)
    least = max(1, min(round(min(stream.request_rows for stream in streams)), lane.spec.max_batch))
    batch_s = lane.takes_s(least, runner)
    for _ in range(3):
        batch_s = lane.takes_s(max(least, min(int(rate * batch_s), lane.spec.max_batch)), runner)
    return batch_s


def rows_for_light(lane: Lane, runner: Runner, light_s: float) -> int:
    """How many rows of others may run alone; as in `filler_batch_rows` no less than `longest` allows."""
    limit_s = _LONGEST * max(light_s, lane.takes_s(1, runner))
    return max(1, rows_within(lambda rows: lane.takes_s(rows, runner), lane.spec.max_batch, limit_s))


def limits_for_light(light_s: float, limits: FillerLimits) -> FillerLimits:
    """The same, where batches with bulk or late rows are as short as light tenants can bear."""
    if light_s == math.inf:
        return limits
    return FillerLimits(
        alone_s=min(limits.alone_s, _LONGEST * light_s),
        filled_s=min(limits.filled_s, _LONGEST * light_s),
        latency_s=min(limits.latency_s, _LATENCY * light_s),
        is_limited=True,
    )


def rows_for_head(now_s: float, lane: Lane, runner: Runner, rows: int) -> int:
    """Of so many fillers as a batch could take, as many as the tenant can bear whose turn it is.

    The longer its first row waited, the fewer others share its batch.
    """
    queue = lane.fillers
    own = min(rows, queue.rows_in_turn)
    until_s = queue.after(0).arrived_s + _LATENCY * lane.takes_s(own, runner) - runner.free_at_s(now_s)
    return max(own, rows_within(lambda count: lane.takes_s(count, runner), rows, until_s))


def joining(
    now_s: float, lane: Lane, runner: Runner, runs: Sequence[RowRun], light_s: float
) -> Callable[[RowRun, int], int]:
    """How many rows of a run may join a batch of `runs`, which are one tenant's, and of so many others.

    All its rows shall make their goals. light_s: what light tenants can bear, inf where that is not asked.
    """
    start_s = runner.free_at_s(now_s)
    own = sum(run.rows for run in runs)
    limit_s = min(run.due_s for run in runs) - start_s
    if light_s < math.inf:
        own_s = max(light_s, lane.takes_s(own, runner))
        oldest_s = min(run.arrived_s for run in runs)
        limit_s = min(limit_s, _LONGEST * own_s, oldest_s + _LATENCY * own_s - start_s)

    def joins(run: RowRun, others: int) -> int:
        nonlocal limit_s
        within_s = min(limit_s, run.due_s - start_s)
        most = rows_within(lambda rows: lane.takes_s(rows, runner), lane.spec.max_batch, within_s)
        count = min(run.rows, most - own - others)
        if count > 0:
            limit_s = within_s
        return count

    return joins
