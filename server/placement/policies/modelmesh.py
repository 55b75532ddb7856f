"""`modelmesh`: a distributed LRU cache of models, by the rule of KServe's ModelMesh.

From its source (kserve/modelmesh, `ModelMesh.java`): a model that is asked for and loaded nowhere goes to the
worker with room that holds fewest models, else to the one whose least recently used model was used longest
ago (`PLACEMENT_ORDER`), and models leave in that order. A full worker refuses to load while the model that
would leave was used more recently than the minimal churn age ("Cache churn threshold exceeded"): ten times
what a load is assumed to take (`min_churn_age_ms`). A model with more than 2,000 requests a minute a copy
gets another copy (`scaleup_rpm_threshold`); its copies are counted every 10 s (`ratecheck_freq_ms`). Left
out: a second copy for what was used 7 to 40 minutes ago, which it makes only while a tenth of all memory is
free. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from server.placement.policies.demand import Rank, by_last_use, has, loads_on_demand, open_wishes
from server.placement.policy import (
    Evict,
    Fetch,
    PlacementAction,
    PlacementDecision,
    PlacementState,
    Wish,
    WorkerPlaces,
)

__all__ = ["ModelMesh"]

_CHURN_LOADS = 10.0
_COPY_ROWS_PER_S = 2000 / 60
_COUNTED_EVERY_S = 10.0


class ModelMesh:
    """Wishes in the order in which they came, as far as the churn allows; then copies of what is hot."""

    name = "modelmesh"

    def decide(self, state: PlacementState, now_s: float) -> PlacementDecision:
        """One load a worker at most; asks again when what is too recent to leave no longer is."""
        rank = by_last_use(state)
        decision = loads_on_demand(state, now_s, _wishes(state, now_s), rank)
        until_s = decision.until_s
        actions: list[PlacementAction] = []
        for worker_actions in _by_worker(decision.actions):
            may_leave_s = _may_leave_s(state, worker_actions, rank)
            if may_leave_s <= now_s:
                actions += worker_actions
            else:
                until_s = min(until_s, may_leave_s)
        return PlacementDecision(tuple(actions), until_s)


def _wishes(state: PlacementState, now_s: float) -> list[Wish]:
    """What is asked for, and after it a copy of each model that has too few."""
    wishes = open_wishes(state)
    if len(state.workers) == 1:
        return wishes
    return wishes + [Wish((key,), now_s, holders) for key, holders in _hot(state, now_s)]


def _hot(state: PlacementState, now_s: float) -> list[tuple[str, frozenset[str]]]:
    """Models with more rows than their copies should have, and where those are."""
    found: list[tuple[str, frozenset[str]]] = []
    for key in dict.fromkeys(key for worker in state.workers.values() for key in worker.resident):
        rate = state.models[key].arrivals_per_s(now_s) if key in state.models else 0.0
        holders = [worker for worker in state.workers.values() if has(worker, key)]
        newest_s = max((_since_s(worker, key, now_s) for worker in holders), default=now_s)
        if len(holders) == len(state.workers) or now_s - newest_s < _COUNTED_EVERY_S:
            continue
        if rate > _COPY_ROWS_PER_S * len(holders):
            found.append((key, frozenset(worker.name for worker in holders)))
    return found


def _since_s(worker: WorkerPlaces, key: str, now_s: float) -> float:
    there = worker.resident.get(key)
    return now_s if there is None else there.since_s


def _by_worker(actions: Collection[PlacementAction]) -> list[list[PlacementAction]]:
    names = dict.fromkeys(action.worker for action in actions)
    return [[action for action in actions if action.worker == name] for name in names]


def _may_leave_s(state: PlacementState, actions: Collection[PlacementAction], rank: Rank) -> float:
    """When the churn allows it: −inf where nothing leaves."""
    loads_s = [
        state.models[action.model].load_s.get(state.workers[action.worker].device, 0.0)
        for action in actions
        if isinstance(action, Fetch)
    ]
    used_s = [rank(state.workers[one.worker], one.model)[0] for one in actions if isinstance(one, Evict)]
    return min(used_s) + _CHURN_LOADS * max(loads_s, default=0.0) if used_s else -math.inf
