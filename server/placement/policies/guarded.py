"""The placement policy, which may be anybody's code, and `lru` in its stead from the moment it faults.

A fault: it raises, or decides what cannot be done (a load beyond the room, an eviction of what is not there).
Knows no worker and no link.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from server.placement.policies.lru import LeastRecentlyUsed
from server.placement.policy import (
    Abort,
    Evict,
    Fetch,
    PlacementDecision,
    PlacementPolicy,
    PlacementState,
    WorkerPlaces,
)

__all__ = ["GuardedPlacement", "PlacementFault"]


@dataclass(frozen=True, slots=True)
class PlacementFault:
    """A policy that was put aside, and why."""

    policy: str
    error: Exception


class GuardedPlacement:
    """`decide` as the policy's own, but that what it answers can be done."""

    def __init__(self, policy: PlacementPolicy) -> None:
        self._policy = policy
        self.fault: PlacementFault | None = None  # why the policy was put aside; None = it was not

    def decide(self, state: PlacementState, now_s: float) -> PlacementDecision:
        """What to do now."""
        try:
            decision = self._policy.decide(state, now_s)
            _check(decision, state)
        except Exception as error:
            name = str(getattr(self._policy, "name", type(self._policy).__name__))
            self.fault = PlacementFault(name, error)
            self._policy = LeastRecentlyUsed()
            decision = self._policy.decide(state, now_s)
        return decision

    def ahead(self, state: PlacementState, now_s: float) -> PlacementDecision:
        """What the policy would do in a state that may never come; nothing where it faults on it."""
        try:
            decision = self._policy.decide(state, now_s)
            _check(decision, state)
        except Exception:
            return PlacementDecision()
        return decision


def _check(decision: object, state: PlacementState) -> None:
    """Raises ValueError for what cannot be done."""
    if not isinstance(decision, PlacementDecision) or math.isnan(decision.until_s):
        raise ValueError(f"{decision!r} is no PlacementDecision")
    if decision.memory is not None and not isinstance(decision.memory, Mapping):
        raise ValueError(f"{decision.memory!r} is no memory: a mapping of plain values")
    left: dict[str, set[str]] = {}  # by worker, of what it held
    loading: set[str] = set()
    for action in decision.actions:
        if action.worker not in state.workers:
            raise ValueError(f"{action}: there is no such worker")
        worker = state.workers[action.worker]
        if isinstance(action, Abort):
            moving = worker.moving
            if moving is None or moving.loading != action.model or moving.aborted:
                raise ValueError(f"{action}: no such load is under way")
            continue
        if worker.moving is not None or worker.name in loading:
            raise ValueError(f"{action}: the worker's link is busy")
        gone = left.setdefault(worker.name, set())
        if isinstance(action, Evict):
            if action.model not in worker.resident or action.model in gone:
                raise ValueError(f"{action}: the model is not there")
            gone.add(action.model)
        else:
            _check_load(action, worker, gone, state)
            loading.add(worker.name)


def _check_load(action: Fetch, worker: WorkerPlaces, left: Collection[str], state: PlacementState) -> None:
    if action.model not in state.models:
        raise ValueError(f"{action}: there is no such model")
    if action.model in worker.resident and action.model not in left:
        raise ValueError(f"{action}: the model is there already")
    held_bytes = state.bytes_on(worker) - sum(map(state.size_bytes, left))
    models = len(worker.resident) - len(left) + 1
    if not worker.capacity.holds(held_bytes + state.size_bytes(action.model), models):
        raise ValueError(f"{action}: there is no room for it")
