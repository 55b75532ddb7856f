"""`lru`: which models a worker holds, and which leave when another one is wanted: least recently used first.

Pure. A worker's device is a cache of models (Rafiqi §3.1, its LRU order); a group is the members of one
function. `local:` calls `evictions` too: its engine is a worker with nobody to decide for it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from server.placement.policies.demand import assigned, least_lacking, taken_up
from server.placement.policy import (
    Capacity,
    Evict,
    Fetch,
    GroupKeys,
    PlacementAction,
    PlacementDecision,
    PlacementState,
    WorkerPlaces,
)

__all__ = ["Capacity", "LeastRecentlyUsed", "Stay", "evictions"]

_PROTECTED_LOADS = 5.0  # a model that is wanted stays at least this many times its own load time,
_PROTECTED_LEAST_S = 0.25  # and at least this long


@dataclass(frozen=True, slots=True)
class Stay:
    """A resident model: when it was last used, and, while it is wanted, until when it must stay."""

    size_bytes: int
    last_used_s: float
    wanted: bool = False
    protected_until_s: float = -math.inf


def evictions(
    now_s: float, wanted: Mapping[str, int], resident: Mapping[str, Stay], capacity: Capacity
) -> tuple[str, ...] | float | None:
    """Who leaves so that all of `wanted` (key → bytes) fit: keys; or when to ask again; or None, never.

    Models that nobody wants leave first, then by last use. One that is wanted stays until it has served for a
    while (`protected_until_s`), or two models in one place would do nothing but swap.
    """
    if not capacity.fits(list(wanted.values())):
        return None
    held = {key: stay for key, stay in resident.items() if key not in wanted}

    def rank(key: str) -> tuple[float, float, str]:
        stay = held[key]
        stays_until_s = max(now_s, stay.protected_until_s) if stay.wanted else -math.inf
        return stays_until_s, stay.last_used_s, key

    leaving: list[str] = []
    for key in sorted(held, key=rank):
        if capacity.fits([*wanted.values(), *(stay.size_bytes for stay in held.values())]):
            break
        if held[key].wanted and now_s < held[key].protected_until_s:
            return held[key].protected_until_s
        leaving.append(key)
        del held[key]
    return tuple(leaving)


class LeastRecentlyUsed:
    """Wishes in the order in which they came; then what is offered, in its order, into free room.

    A wish goes to the worker that lacks least of the group; of equals, to one whose link is idle, then to the
    emptiest. An earlier wish has its worker's link to itself until it is fulfilled.
    """

    name = "lru"

    def decide(self, state: PlacementState, now_s: float) -> PlacementDecision:
        """One load a worker at most, with the evictions that make its room."""
        actions: list[PlacementAction] = []
        until_s = math.inf
        taken: set[str] = set()  # workers whose link an earlier wish has, or waits for
        wanted = {key for group in state.waited_for for key in group}
        wanted.update(key for wish in state.wishes for key in wish.group)
        for wish in state.wishes:
            for group, worker in assigned(state, wish, least_lacking(state, wish.without, taken)):
                is_idle = worker.moving is None and worker.name not in taken
                taken.add(worker.name)
                if is_idle:
                    why = "rows waited" if wish.group in state.waited_for else "wanted"
                    found = _make_room(state, now_s, worker, group, wanted, why)
                    if isinstance(found, float):
                        until_s = min(until_s, found)
                    else:
                        actions += found
        for worker in state.workers.values():
            if worker.moving is None and worker.name not in taken:
                actions += taken_up(state, worker)
        return PlacementDecision(tuple(actions), until_s)


def _make_room(
    state: PlacementState,
    now_s: float,
    worker: WorkerPlaces,
    group: GroupKeys,
    wanted: Collection[str],
    why: str,
) -> list[PlacementAction] | float:
    """The next load of the group and what leaves for it; or when to ask again."""
    missing = [key for key in group if key not in worker.resident]
    sizes = {key: state.size_bytes(key) for key in group}
    stays = {
        key: Stay(
            size_bytes=state.size_bytes(key),
            last_used_s=_last_used_s(state, key),
            wanted=key in wanted,
            protected_until_s=there.since_s + max(_PROTECTED_LEAST_S, _PROTECTED_LOADS * there.load_s),
        )
        for key, there in worker.resident.items()
    }
    found = evictions(now_s, sizes, stays, worker.capacity)
    if isinstance(found, float):
        return found
    if found is None or not missing:
        return []
    return [*(Evict(worker.name, key) for key in found), Fetch(worker.name, missing[0], why)]


def _last_used_s(state: PlacementState, key: str) -> float:
    return state.models[key].last_used_s if key in state.models else 0.0
