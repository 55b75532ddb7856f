"""`slackfit`: SuperServe's rule (NSDI 2025, §4.2), with subsets of members for its subnetworks.

Of every subset and batch size the latency is known; they stand in buckets of equal width of latency, and each
bucket keeps the largest batch it has, of those the most accurate subset. What the row that waits longest has
left picks the bucket.
"""

from __future__ import annotations

from bisect import bisect_right

from server.ensemble.evidence import members_of, subset_of
from server.ensemble.policies.base import Steady
from server.ensemble.policies.rest import Rest
from server.ensemble.selection import Choice, Ensemble, LoadView, RowEvidence, State

__all__ = ["SlackFit"]

_BUCKETS = 16


class SlackFit(Steady):
    """State: the subset for rows that come now. Batches are cut by the pool; `max_batch` bounds the table."""

    name = "slackfit"
    draws_lots = False
    heeds_confidence = False

    def __init__(self, ensemble: Ensemble, max_batch: int = 64) -> None:
        super().__init__(ensemble)
        sizes = [1 << power for power in range(max_batch.bit_length()) if 1 << power <= max_batch]
        held = subset_of(ensemble.held)
        tuples = [
            (self._latency_s(subset, rows), rows, ensemble.evidence.accuracy(subset), subset)
            for subset in ensemble.evidence.subsets
            if not subset & ~held
            for rows in sizes
        ]
        least_s, most_s = min(tuples)[0], max(tuples)[0]
        width_s = (most_s - least_s) / _BUCKETS or 1.0
        kept: dict[int, tuple[float, int, float, int]] = {}
        for each in tuples:
            bucket = min(_BUCKETS - 1, int((each[0] - least_s) / width_s))
            if bucket not in kept or each[1:3] > kept[bucket][1:3]:
                kept[bucket] = each
        ordered = [kept[bucket] for bucket in sorted(kept)]
        self._latencies_s = [each[0] for each in ordered]
        self._subsets = [each[3] for each in ordered]
        self._rest = Rest(len(ensemble.members), alone=ensemble.evidence.is_alone)

    def init(self) -> State:
        """The subset of the widest bucket."""
        return {"subset": self._subsets[-1]}

    def steer(self, state: State, load: LoadView) -> State:
        """By what the row that waits longest has left."""
        bucket = max(0, bisect_right(self._latencies_s, load.slack_s) - 1)
        subset = self._subsets[bucket]
        return state if subset == state["subset"] else {"subset": subset}

    def select(self, state: State, row: RowEvidence) -> Choice:
        """Those of the subset that neither answered nor are under way."""
        return self._rest.of(state["subset"], row)

    def _latency_s(self, subset: int, rows: int) -> float:
        """Of a batch on a subset: one after the other on one device, beside one another on several."""
        by_device: dict[int, float] = {}
        for number in members_of(subset):
            member = self._ensemble.members[number]
            took_s = member.fixed_s + rows * member.per_row_s
            by_device[member.device] = by_device.get(member.device, 0.0) + took_s
        return max(by_device.values())
