"""Lanes of bulk rows that need not go to all members of their function.

`CascadeLane`: they are asked of one member now, and of others after it where that is not enough. Some may
have been answered by others before. It knows who is asked now; who is next is the plan's
(server/ensemble/cascade.py), and asked when a batch is back (core.py). `PlannedLane`: a worker of all members
follows the plan within each batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from server.ensemble.cascade import PlanOnWorker
from server.scheduling.lanes import Lane, LaneKey
from server.scheduling.policies.guarded import GuardedPolicy
from server.scheduling.policy import RowClass
from server.scheduling.pooled_lane import PooledLane
from server.scheduling.terms import FunctionSpec
from server.scheduling.turns import Turns

__all__ = ["CascadeLane", "LaneOfPlan", "PlannedLane"]


class LaneOfPlan(Lane):
    """`pooled`: the lane of all members, which knows the plan."""

    def __init__(
        self,
        now_s: float,
        key: LaneKey,
        spec: FunctionSpec,
        policy: GuardedPolicy,
        pooled: PooledLane,
        turns: Mapping[RowClass, Turns] | None = None,
    ) -> None:
        super().__init__(now_s, key, spec, policy, turns)
        self.pooled = pooled


class PlannedLane(LaneOfPlan):
    """Its batches go to all members at once, with what their rows are asked of them by."""

    _measured: PlanOnWorker | None = None  # the plan that its batches of late were of

    @property
    def plan(self) -> PlanOnWorker | None:
        """The last one."""
        return self.pooled.planned

    def is_slower(self, device: str) -> bool:
        """Whether its batches have been seen to take longer there than those that all members answer.

        What a plan is expected to save may be lost: passes of few rows take longer than their share. Another
        plan is tried anew.
        """
        if self._measured is not self.plan:
            self._measured = self.plan
            self.row_s.clear()
        return self.row_s.get(device, 0.0) > self.pooled.row_s.get(device, math.inf)

    def saved_s(self, rows: int) -> float:
        """Nothing that members share can be seen where not all answer."""
        return 0.0


class CascadeLane(LaneOfPlan):
    """Of one member."""

    @property
    def is_partial(self) -> bool:
        """Whether its rows make no full batch: more are likely to come, if others run before them."""
        return self.filler_rows < self.spec.max_batch
