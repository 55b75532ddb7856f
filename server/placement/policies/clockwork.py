"""`clockwork`: what has most demand that its copies cannot meet is loaded, the least recently used leaves.

Clockwork's rule (Gujarati et al., Serving DNNs like Clockwork, OSDI 2020, §5.3, and its controller's
`load_tracker`). The demand of a function is the seconds of work of its rows that wait. It is shared among the
workers that hold it, each counting for the less the more it has to do. The priority of a load is the demand
of the rows that a load begun now would come in time for, less what those workers will do of it within the
goal; the function of the highest, above 0, is loaded. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from server.placement.policies.demand import by_last_use, has, loads_on_demand, open_wishes
from server.placement.policy import GroupKeys, PlacementDecision, PlacementState, Wish, WorkerPlaces

__all__ = ["Clockwork"]

_NO_GOAL_S = 0.1  # of rows without one: Clockwork's own default
_LEAST_ROW_S = 1e-3  # while l̂ is not known
_ROUNDS = 3  # in which shares and what the workers have to do settle


class Clockwork:
    """Loads by priority, evicts by last use; what is wanted though no row waits for it comes last."""

    name = "clockwork"

    def decide(self, state: PlacementState, now_s: float) -> PlacementDecision:
        """One load a worker at most."""
        wished = {wish.group: wish for wish in open_wishes(state)}
        loads_s = _load_priorities_s(state, now_s)
        wishes = [
            wished.get(group) or Wish(group, now_s, _holders(state, group))
            for group in sorted(loads_s, key=lambda group: -loads_s[group])
            if loads_s[group] > 0
        ]
        wishes += [wish for wish in wished.values() if not wish.by_rows and wish not in wishes]
        return loads_on_demand(state, now_s, wishes, by_last_use(state))


def _load_priorities_s(state: PlacementState, now_s: float) -> dict[GroupKeys, float]:
    """Function → seconds of demand that a load would serve and no worker that holds it does."""
    demand_s = {group: rows.rows * _row_s(state, group) for group, rows in state.waited_for.items()}
    holders = {group: _holders(state, group) for group in demand_s}
    outstanding_s = _outstanding_s(demand_s, holders, state.workers)
    priorities_s: dict[GroupKeys, float] = {}
    for group, rows in state.waited_for.items():
        if len(holders[group]) == len(state.workers):
            continue
        row_s = _row_s(state, group)
        in_time_s = now_s + _load_s(state, group) + row_s
        # Those that are late already have no deadline, and must be answered too.
        lost = sum(now_s <= due_s < in_time_s for due_s in rows.due_s)
        savable_s = (rows.rows - lost) * row_s
        weights = {name: 1 / max(outstanding_s[name], 1e-9) for name in holders[group]}
        served_s = sum(
            _goal_s(state, group)
            * savable_s
            * weight
            / sum(weights.values())
            / max(outstanding_s[name], 1e-9)
            for name, weight in weights.items()
        )
        priorities_s[group] = savable_s - served_s
    return priorities_s


def _outstanding_s(
    demand_s: Mapping[GroupKeys, float],
    holders: Mapping[GroupKeys, Collection[str]],
    workers: Collection[str],
) -> dict[str, float]:
    """Worker → seconds of demand that it has to do."""
    outstanding_s = dict.fromkeys(workers, 0.0)
    weights = dict.fromkeys(workers, 1.0)
    for _ in range(_ROUNDS if len(workers) > 1 else 1):
        outstanding_s = dict.fromkeys(workers, 0.0)
        for group, seconds in demand_s.items():
            whole = sum(weights[name] for name in holders[group])
            for name in holders[group]:
                outstanding_s[name] += seconds * weights[name] / whole
        weights = {name: 1 / max(seconds, 1e-3) for name, seconds in outstanding_s.items()}
    return outstanding_s


def _holders(state: PlacementState, group: GroupKeys) -> frozenset[str]:
    return frozenset(
        worker.name for worker in state.workers.values() if all(has(worker, key) for key in group)
    )


def _row_s(state: PlacementState, group: GroupKeys) -> float:
    return max(_LEAST_ROW_S, sum(state.models[key].batch_s(1) for key in group))


def _goal_s(state: PlacementState, group: GroupKeys) -> float:
    goal_s = min(state.models[key].goal_s for key in group)
    return goal_s if goal_s < math.inf else _NO_GOAL_S


def _load_s(state: PlacementState, group: GroupKeys) -> float:
    """On the worker where it would be soonest."""
    return min((_missing_s(state, worker, group) for worker in state.workers.values()), default=math.inf)


def _missing_s(state: PlacementState, worker: WorkerPlaces, group: GroupKeys) -> float:
    return sum(state.models[key].load_s.get(worker.link, 0.0) for key in group if not has(worker, key))
