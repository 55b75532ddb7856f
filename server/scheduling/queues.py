"""Everything that waits: the lanes of all functions, which request waits where, and whose deadline is next.

Knows nothing of workers or of when rows run.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from typing import TypeVar

from server.scheduling.cascade_lane import CascadeLane, LaneOfPlan, PlannedLane
from server.scheduling.lanes import Lane, LaneKey
from server.scheduling.policies.by_name import check_policy
from server.scheduling.policies.guarded import GuardedPolicy, PolicyFault
from server.scheduling.policy import RowClass, RowRun
from server.scheduling.pooled_lane import PooledLane
from server.scheduling.terms import FunctionSpec, Slice, Submission
from server.scheduling.turns import Turns

__all__ = ["Queues"]

# Deadlines of requests that are gone are kept until there are so many more than of those that wait.
_STALE = 64

_OfPlan = TypeVar("_OfPlan", bound=LaneOfPlan)


class Queues:
    """Lanes by function. `lanes` are those with rows, in the order in which they came to have some.

    pooled: those whose rows wait in a pool. turns: of the tenants, by class.
    """

    def __init__(self) -> None:
        self.turns: dict[RowClass, Turns] = {"interactive": Turns(), "bulk": Turns()}
        self.pooled: dict[LaneKey, PooledLane] = {}
        self._specs: dict[str, FunctionSpec] = {}
        self._lanes: dict[str, dict[LaneKey, Lane]] = {}
        self._with_rows: dict[LaneKey, Lane] = {}
        # By request; one, unless its rows wait for different members.
        self._lanes_of: dict[int, list[Lane]] = {}
        self._faults: list[PolicyFault] = []
        self._deadlines: list[tuple[float, int]] = []  # heap of (deadline, request); the request may be gone

    @property
    def lanes(self) -> Collection[Lane]:
        """The lanes in which rows wait."""
        return self._with_rows.values()

    @property
    def is_shared(self) -> bool:
        """Whether more than one tenant was here of late, of one class."""
        return self.turns["interactive"].is_shared or self.turns["bulk"].is_shared

    def tell_apart(self, row_class: RowClass, tenant: str) -> None:
        """Another tenant has come: what is known of the rows that came until now is of that one."""
        for lane in self.all():
            rhythm = lane.rhythm if row_class == "interactive" else lane.bulk_rhythm
            lane.streams.adopt(row_class, tenant, rhythm)

    @property
    def next_deadline_s(self) -> float:
        """When a request's deadline may pass next; inf if none has one."""
        return self._deadlines[0][0] if self._deadlines else math.inf

    def of(self, function: str) -> Collection[Lane]:
        """All lanes of a function, empty ones too."""
        return self._lanes[function].values()

    def spec(self, function: str) -> FunctionSpec:
        """Of a function. Raises KeyError for an unknown one."""
        return self._specs[function]

    def all(self) -> list[Lane]:
        """All lanes of all functions."""
        return [lane for lanes in self._lanes.values() for lane in lanes.values()]

    def depth(self) -> dict[str, tuple[int, int]]:
        """Function → rows and bytes that wait."""
        return {
            name: (
                sum(lane.rows for lane in lanes.values()),
                round(sum(lane.nbytes for lane in lanes.values())),
            )
            for name, lanes in self._lanes.items()
        }

    def configure(self, spec: FunctionSpec) -> None:
        """Add or replace a function. Raises ValueError, and changes nothing, if the specification is bad."""
        _check(spec)
        check_policy(spec.policy, spec.policy_options)
        self._specs[spec.name] = spec
        for lane in self._lanes.setdefault(spec.name, {}).values():
            lane.reconfigure(spec, GuardedPolicy(spec, self._put_aside))

    def take_faults(self) -> list[PolicyFault]:
        """The policies that were put aside since the last call."""
        if not self._faults:
            return []
        faults, self._faults = self._faults, []
        return faults

    def remove(self, function: str) -> list[RowRun]:
        """Forget a function: the rows that were waiting for it."""
        self._specs.pop(function, None)
        gone: list[RowRun] = []
        for lane in self._lanes.pop(function, {}).values():
            gone += (runs := lane.clear())
            self.settle(lane, runs)
            self.pooled.pop(lane.key, None)
        return gone

    def lane_for(self, now_s: float, submission: Submission) -> Lane:
        """Where a submission would wait. Raises KeyError for an unknown function or member."""
        spec = self._specs[submission.function]
        members = submission.members or spec.names
        key = (submission.function, members, submission.bucket)
        lanes = self._lanes[submission.function]
        lane = lanes.get(key)
        if lane is None:
            missing = set(members) - {member.name for member in spec.members}
            if missing:
                raise KeyError(f"{submission.function} has no member {', '.join(sorted(missing))}")
            make = PooledLane if spec.pooled and len(members) == len(spec.members) else Lane
            lane = lanes[key] = make(now_s, key, spec, GuardedPolicy(spec, self._put_aside), self.turns)
        return lane

    def cascade_lane(self, now_s: float, pooled: PooledLane, member: str) -> CascadeLane | None:
        """Where bulk rows of a pooled lane wait for that member; None if the function is there no longer."""
        function, _, bucket = pooled.key[:3]
        if self.pooled.get(pooled.key) is not pooled:
            return None
        return self._lane_of_plan(now_s, CascadeLane, (function, (member,), bucket, "cascade"), pooled)

    def lane_beside(self, now_s: float, pooled: PooledLane, members: Sequence[str]) -> Lane | None:
        """Where rows of a pooled lane wait for all of these; None if the function is there no longer."""
        function, _, bucket = pooled.key[:3]
        if self.pooled.get(pooled.key) is not pooled:
            return None
        return self.lane_for(now_s, Submission(0, function, 0, 0, members=tuple(members), bucket=bucket))

    def planned_lane(self, now_s: float, pooled: PooledLane) -> PlannedLane:
        """Where bulk rows of a pooled lane wait for a worker of all members, which follows the plan."""
        function, members, bucket = pooled.key[:3]
        return self._lane_of_plan(now_s, PlannedLane, (function, members, bucket, "planned"), pooled)

    def _lane_of_plan(self, now_s: float, kind: type[_OfPlan], key: LaneKey, pooled: PooledLane) -> _OfPlan:
        lanes, spec = self._lanes[key[0]], self._specs[key[0]]
        lane = lanes.get(key)
        if lane is None:
            lane = lanes[key] = kind(
                now_s, key, spec, GuardedPolicy(spec, self._put_aside), pooled, self.turns
            )
        assert isinstance(lane, kind), "of that key there is no other"
        return lane

    def go_on(self, now_s: float, lane: Lane, run: RowRun) -> None:
        """Bulk rows that one member has answered wait for another."""
        lane.add_bulk(now_s, run)
        self._waits(run.request_id, lane)

    def pool(self, now_s: float, function: str, bucket: str) -> PooledLane:
        """The lane of all members, whose rows wait in a pool from now on.

        Raises KeyError for an unknown function, and ValueError for one that was not configured so.
        """
        lane = self.lane_for(now_s, Submission(0, function, 0, 0, bucket=bucket))
        if not isinstance(lane, PooledLane):
            raise ValueError(f"the rows of {function} go to all of its members")
        self.pooled[lane.key] = lane
        return lane

    def put_aside(self, now_s: float, run: RowRun, pooled: PooledLane) -> None:
        """A row of a pool has missed its goal, though not its deadline: one member answers it, as it can.

        All do, where an accuracy is asked for, or was promised.
        """
        function, _, bucket = pooled.key[:3]
        members = pooled.promised
        if members is None and run.min_accuracy is None:
            members = (pooled.first_member(),)
        lane = self.lane_for(now_s, Submission(0, function, 1, 0, members=members, bucket=bucket))
        lane.put_aside(now_s, run)
        self._waits(run.request_id, lane)

    def add(self, now_s: float, lane: Lane, submission: Submission) -> None:
        """Queue a submission in its lane."""
        lane.add(now_s, submission)
        self._waits(submission.request_id, lane)
        if submission.deadline_s < math.inf:
            heappush(self._deadlines, (submission.deadline_s, submission.request_id))
            if len(self._deadlines) > 2 * len(self._lanes_of) + _STALE:
                self._deadlines = [entry for entry in self._deadlines if entry[1] in self._lanes_of]
                heapify(self._deadlines)

    def withdraw(self, request_id: int) -> list[RowRun]:
        """Take out what is left of a request."""
        gone: list[RowRun] = []
        for lane in tuple(self._lanes_of.get(request_id, ())):
            runs = lane.remove(request_id)
            self.settle(lane, runs)
            gone += runs
        return gone

    def withdraw_part(self, part: Slice) -> list[RowRun]:
        """Take out those of these rows of a request that wait."""
        gone: list[RowRun] = []
        for lane in tuple(self._lanes_of.get(part.request_id, ())):
            runs = lane.remove_part(part)
            self.settle(lane, runs)
            gone += runs
        return gone

    def expire(self, now_s: float) -> tuple[Lane, list[RowRun]] | None:
        """Take out one request whose deadline has passed: a lane of it, and its rows; or None."""
        while self.next_deadline_s <= now_s:
            _, request_id = heappop(self._deadlines)
            lanes = self._lanes_of.get(request_id)
            if lanes:
                return lanes[0], self.withdraw(request_id)
        return None

    def settle(self, lane: Lane, gone: Iterable[RowRun | Slice]) -> None:
        """Rows left a lane: forget requests of which nothing waits any more, and the lane if it is empty."""
        for request_id in dict.fromkeys([run.request_id for run in gone]):
            lanes = self._lanes_of.get(request_id)
            if lanes is not None and lane in lanes and not lane.holds(request_id):
                lanes.remove(lane)
                if not lanes:
                    del self._lanes_of[request_id]
        if not lane.rows:
            self._with_rows.pop(lane.key, None)

    def _waits(self, request_id: int, lane: Lane) -> None:
        """Rows of the request wait in that lane."""
        self._with_rows[lane.key] = lane
        lanes = self._lanes_of.setdefault(request_id, [])
        if lane not in lanes:
            lanes.append(lane)

    def _put_aside(self, fault: PolicyFault) -> None:
        """Where a policy has faulted in one lane, it decides in no other of its function either."""
        self._faults.append(fault)
        spec = self._specs.get(fault.function)
        if spec is not None:
            self._specs[fault.function] = replace(spec, policy="goodput", policy_options={})
        for lane in self._lanes.get(fault.function, {}).values():
            lane.policy.put_aside()


def _check(spec: FunctionSpec) -> None:
    sizes = spec.batch_sizes
    if not spec.members:
        raise ValueError(f"function {spec.name!r} has no members")
    if not sizes or list(sizes) != sorted(set(sizes)) or sizes[0] < 1 or sizes[-1] != spec.max_batch:
        raise ValueError(f"batch sizes of {spec.name!r} must ascend from 1 or more to max_batch, not {sizes}")
    if not spec.slo_s > 0:
        raise ValueError(f"the SLO of {spec.name!r} must be more than 0 s, not {spec.slo_s}")
