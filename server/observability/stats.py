"""What is counted of one served function: plain numbers, cheap to add to on the hot path.

`/metrics` and the protocol's `/stats` are two views of the same counts. Knows no format.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from server.cache.counts import CacheCounts

__all__ = ["ANSWER_MEMBERS", "BATCH_ROWS", "LATENCY_S", "OTHERS", "Durations", "FunctionStats", "Histogram"]

LATENCY_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
BATCH_ROWS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)
ANSWER_MEMBERS = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 16.0, 32.0)

OTHERS = "others"
_MOST_CALLERS = 100  # that are counted apart


class Histogram:
    """Counts by upper bound; the last count is of everything above."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times


@dataclass(slots=True)
class Durations:
    """A count and a sum of seconds, as the protocol's statistics have them."""

    count: int = 0
    seconds: float = 0.0

    def add(self, seconds: float, times: int = 1) -> None:
        """Count a duration."""
        self.count += times
        self.seconds += seconds * times

    def add_none(self, count: int) -> None:
        """Count so many that took no time."""
        self.count += count


@dataclass(slots=True)
class BatchSizeStats:
    """Batches of one size."""

    decode: Durations = field(default_factory=Durations)
    forward: Durations = field(default_factory=Durations)


@dataclass(slots=True)
class FunctionStats:
    """One version of one function since the server started; rows are answered rows, unless said otherwise."""

    rows: int = 0
    row_errors: int = 0
    batches: int = 0
    over_goal_rows: int = 0  # interactive ones answered after their goal, or refused
    rerun_rows: int = 0
    policy_faults: int = 0  # its policies that were put aside
    goal_rows: int = 0  # answered at their goal, from a part of the members that they waited for
    late_members: int = 0  # that such rows waited for: one of each row
    absent_members: int = 0  # that rows were answered without since they could not be asked: one of each row
    proxy_rows: int = 0  # answered by a proxy alone
    resent_rows: int = 0  # sent to another worker too, as their batch was late
    parity_rows: int = 0  # groups that a parity model was asked of
    rebuilt_rows: int = 0  # answered by what it said of their groups
    riding_rows: int = 0  # that were in a batch of another function
    spared_rows: int = 0  # that a worker had decoded, or passed through a backbone, before
    degraded_rows: int = 0  # asked while no model kept all that was wished
    resident_rows: int = 0  # rows whose models were resident when they came, answered or not
    absent_rows: int = 0  # the others
    last_ms: int = 0  # Unix time of the last answer, in milliseconds
    success: Durations = field(default_factory=Durations)
    fail: Durations = field(default_factory=Durations)
    queue: Durations = field(default_factory=Durations)
    decode: Durations = field(default_factory=Durations)
    forward: Durations = field(default_factory=Durations)
    combine: Durations = field(default_factory=Durations)
    errors: Counter[str] = field(default_factory=Counter)
    latency: Histogram = field(default_factory=lambda: Histogram(LATENCY_S))
    batch_rows: Histogram = field(default_factory=lambda: Histogram(BATCH_ROWS))
    answer_members: Histogram = field(default_factory=lambda: Histogram(ANSWER_MEMBERS))
    by_size: dict[int, BatchSizeStats] = field(default_factory=dict)
    cache: CacheCounts = field(default_factory=CacheCounts)
    # Answered rows, by who asked, and in which database user's name.
    callers: Counter[tuple[str, str]] = field(default_factory=Counter)

    def asked_by(self, caller: str, in_name_of: str, rows: int) -> None:
        """Rows of a caller were answered."""
        who = caller, in_name_of
        if who not in self.callers and len(self.callers) >= _MOST_CALLERS:
            who = OTHERS, ""
        self.callers[who] += rows

    def batch_done(
        self, rows: int, decode_s: float, forward_s: float, combine_s: float, spared_rows: int = 0
    ) -> None:
        """A batch came back."""
        self.batches += 1
        self.spared_rows += spared_rows
        self.batch_rows.add(rows)
        self.decode.add(decode_s)
        self.forward.add(forward_s)
        self.combine.add(combine_s)
        by_size = self.by_size.get(rows)
        if by_size is None:
            by_size = self.by_size[rows] = BatchSizeStats()
        by_size.decode.add(decode_s)
        by_size.forward.add(forward_s)

    def answered(
        self, rows: int, row_errors: int, latency_s: float, queued_s: float, requests: int = 1
    ) -> None:
        """Requests were answered, which came and left the queue together; `rows` are those of all."""
        self.rows += rows
        self.row_errors += row_errors
        self.last_ms = int(time.time() * 1000)
        self.success.add(latency_s, requests)
        self.queue.add(queued_s, requests)
        self.latency.add(latency_s, requests)

    def turned_away(self, code: str, requests: int) -> None:
        """So many requests were refused at once."""
        self.errors[code] += requests
        self.fail.add_none(requests)

    def failed(self, code: str, latency_s: float) -> None:
        """A request was refused, or failed."""
        self.errors[code] += 1
        self.fail.add(latency_s)
