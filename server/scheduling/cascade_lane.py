"""A lane of bulk rows that are asked of one member now, and of others after it where that is not enough.

Of those rows, some may have been answered by others before. Knows who is asked now; who is next is the
plan's (server/ensemble/cascade.py), and asked when a batch is back (core.py).
"""

from __future__ import annotations

from server.scheduling.lanes import Lane, LaneKey
from server.scheduling.policies.guarded import GuardedPolicy
from server.scheduling.pooled_lane import PooledLane
from server.scheduling.terms import FunctionSpec

__all__ = ["CascadeLane"]


class CascadeLane(Lane):
    """`pooled`: the lane of all members, which knows the plan."""

    def __init__(
        self, now_s: float, key: LaneKey, spec: FunctionSpec, policy: GuardedPolicy, pooled: PooledLane
    ) -> None:
        super().__init__(now_s, key, spec, policy)
        self.pooled = pooled

    @property
    def is_partial(self) -> bool:
        """Whether its rows make no full batch: more are likely to come, if others run before them."""
        return self.filler_rows < self.spec.max_batch
