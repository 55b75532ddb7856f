"""`lru-blocking` and `lru-overlapped`: the least recently used order of Rafiqi, as it was published.

Rafiqi goes through the models that rows wait for in the order of their last use (§3.2), and loads the one
whose turn it is if it must; the one least recently used leaves (§4.2), and being loaded is a use. Published
is the blocking form: whoever's turn it is, the others wait until its rows are on their way. The overlapped
form is what its §7.2 asks for: those that are resident run meanwhile, and hold up nobody. Pure.

A device that computes nothing while a model moves is the simulator's affair (`Workload.loads_block`).
"""

from __future__ import annotations

import math
from dataclasses import replace

from server.placement.policies.demand import by_last_use, has, loads_on_demand, open_wishes
from server.placement.policy import GroupKeys, PlacementDecision, PlacementState, Wish

__all__ = ["LruBlocking", "LruOverlapped"]

_AGAIN_S = 0.005  # when to ask again while another has its turn


class LruOverlapped:
    """Loads whose turn it is among those that are not resident."""

    name = "lru-overlapped"

    def decide(self, state: PlacementState, now_s: float) -> PlacementDecision:
        """One load a worker at most; who was used longest ago has the first turn, and leaves first."""
        return loads_on_demand(state, now_s, _by_turn(state), by_last_use(state))


class LruBlocking:
    """As `lru-overlapped`, but that a resident model whose turn it is keeps its worker's link still."""

    name = "lru-blocking"

    def decide(self, state: PlacementState, now_s: float) -> PlacementDecision:
        """Loads only what comes before all that wait for a batch there."""
        wishes = _by_turn(state)
        first_s = _served_s(state, wishes[0].group) if wishes else -math.inf
        before = {
            worker.name
            for group in state.waited_for
            if _served_s(state, group) < first_s
            for worker in state.workers.values()
            if all(has(worker, key) for key in group)
        }
        decision = loads_on_demand(state, now_s, wishes, by_last_use(state), before)
        return replace(decision, until_s=min(decision.until_s, now_s + _AGAIN_S)) if before else decision


def _by_turn(state: PlacementState) -> list[Wish]:
    return sorted(open_wishes(state), key=lambda wish: _served_s(state, wish.group))


def _served_s(state: PlacementState, group: GroupKeys) -> float:
    return max(state.models[key].served_s if key in state.models else 0.0 for key in group)
