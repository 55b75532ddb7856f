"""Loading on demand: what is wanted is loaded, and for its room others leave by rank, the lowest first.

What the caching policies have in common; they differ in whose turn it is and in the rank. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable

from server.placement.packing import packed
from server.placement.policy import (
    Evict,
    Fetch,
    GroupKeys,
    PlacementAction,
    PlacementDecision,
    PlacementState,
    Wish,
    WorkerPlaces,
)

__all__ = [
    "Rank",
    "assigned",
    "by_last_use",
    "has",
    "least_lacking",
    "loads_on_demand",
    "open_wishes",
    "taken_up",
]

Rank = Callable[[WorkerPlaces, str], tuple[float, ...]]  # of a model on a worker: the lowest leaves first
Choice = Callable[[GroupKeys], WorkerPlaces | None]

_SERVED_WITHIN_S = 1.0  # what was loaded for rows stays for so long, if they wait still
_AGAIN_S = 0.005  # when to ask again while what must leave may not yet


def loads_on_demand(
    state: PlacementState, now_s: float, wishes: Iterable[Wish], rank: Rank, taken: Collection[str] = ()
) -> PlacementDecision:
    """The next load for each of these wishes, in this order, with the evictions that make its room.

    A group goes to the worker that lacks least of it; of equals, to one whose link is idle, then to one with
    room, then to the one from which the lowest in rank would leave. An earlier wish has its worker's link to
    itself until it is fulfilled. What was loaded for rows that wait does not leave before a batch was sent to
    it. What is offered goes into what room is left.
    taken: workers whose links are left alone.
    """
    actions: list[PlacementAction] = []
    until_s = math.inf
    stays = _unserved(state, now_s)
    busy = set(taken)
    for wish in wishes:
        if all(worker.moving is not None or worker.name in busy for worker in state.workers.values()):
            break
        without = wish.without

        def best(group: GroupKeys, without: Collection[str] = without) -> WorkerPlaces | None:
            return _cheapest(state, group, without, busy, rank, stays)

        for part, worker in assigned(state, wish, best):
            is_idle = worker.moving is None and worker.name not in busy
            busy.add(worker.name)
            if is_idle:
                why = "rows waited" if wish.group in state.waited_for else "wanted"
                found = _load(state, worker, part, rank, stays, why)
                if found is None:
                    until_s = now_s + _AGAIN_S
                else:
                    actions += found
    for worker in state.workers.values():
        if worker.moving is None and worker.name not in busy:
            actions += taken_up(state, worker)
    return PlacementDecision(tuple(actions), until_s)


def open_wishes(state: PlacementState) -> list[Wish]:
    """Those that somebody still has, in the order in which they came: rows that wanted it may be gone."""
    return [wish for wish in state.wishes if not wish.by_rows or wish.group in state.waited_for]


def assigned(state: PlacementState, wish: Wish, best: Choice) -> list[tuple[GroupKeys, WorkerPlaces]]:
    """What goes where: the group as one; in parts where it may be apart and no worker can hold it whole."""
    if not state.apart or any(_can_hold(state, worker, wish.group) for worker in state.workers.values()):
        worker = best(wish.group)
        return [] if worker is None else [(wish.group, worker)]
    counted_on = {name: worker for name, worker in state.workers.items() if name not in wish.without}
    workers = counted_on or state.workers
    found = packed(
        {key: state.size_bytes(key) for key in wish.group},
        {name: worker.capacity for name, worker in workers.items()},
        {name: [key for key in wish.group if has(worker, key)] for name, worker in workers.items()},
        {name: worker.node for name, worker in workers.items()},
        spread=state.spread,
    )
    return [
        (part, workers[name])
        for name, part in (found or {}).items()
        if not all(has(workers[name], key) for key in part)
    ]


def least_lacking(state: PlacementState, without: Collection[str], taken: Collection[str]) -> Choice:
    """A group goes to the worker that lacks least of it; of equals, to an idle link, then to the emptiest.

    without: workers that are not counted on. taken: workers whose links something else has.
    """

    def best(group: GroupKeys) -> WorkerPlaces | None:
        return min(
            (worker for worker in state.workers.values() if _can_hold(state, worker, group)),
            key=lambda worker: (*_handiness(worker, group, without, taken), len(worker.resident)),
            default=None,
        )

    return best


def _handiness(
    worker: WorkerPlaces, group: GroupKeys, without: Collection[str], taken: Collection[str]
) -> tuple[bool, int, bool]:
    lacks = sum(not has(worker, key) for key in group)
    return worker.name in without, lacks, worker.moving is not None or worker.name in taken


def _can_hold(state: PlacementState, worker: WorkerPlaces, group: GroupKeys) -> bool:
    """Whether the group fits on the worker, if nothing else is there."""
    return worker.capacity.fits([state.size_bytes(key) for key in group])


def has(worker: WorkerPlaces, key: str) -> bool:
    """Whether the model is there, and stays, or is on its way."""
    moving = worker.moving
    if moving is None:
        return key in worker.resident
    return key == moving.loading or (key in worker.resident and key not in moving.evicting)


def taken_up(state: PlacementState, worker: WorkerPlaces) -> list[PlacementAction]:
    """The next model of the first group on offer that fits beside what is there; a smaller one may pass.

    Groups that rows wait for go first.
    """
    most = worker.capacity.max_models
    if not worker.offers or (most and len(worker.resident) >= most):
        return []
    used_bytes = state.bytes_on(worker)
    for group in sorted(worker.offers, key=lambda group: group not in state.waited_for):
        missing = [key for key in group if key not in worker.resident]
        # A model that kills its workers must not keep all others from being served.
        if not missing or any(key in state.models and state.models[key].is_deadly for key in group):
            continue
        then_bytes = used_bytes + sum(map(state.size_bytes, missing))
        if worker.capacity.holds(then_bytes, len(worker.resident) + len(missing)):
            return [Fetch(worker.name, missing[0], "there was room")]
    return []


def by_last_use(state: PlacementState) -> Rank:
    """The least recently used leaves first; to be loaded is a use."""

    def rank(worker: WorkerPlaces, key: str) -> tuple[float, ...]:
        model = state.models.get(key)
        loaded_s = worker.resident[key].since_s
        return (loaded_s if model is None else max(loaded_s, model.served_s),)

    return rank


def _unserved(state: PlacementState, now_s: float) -> frozenset[tuple[str, str]]:
    """(worker, model): loaded for rows that wait still, and sent no batch yet."""
    return frozenset(
        (worker.name, key)
        for group in state.waited_for
        for key in group
        for worker in state.workers.values()
        if (there := worker.resident.get(key)) is not None
        and there.for_rows
        and not there.used
        and now_s < there.since_s + _SERVED_WITHIN_S
    )


def _cheapest(
    state: PlacementState,
    group: GroupKeys,
    without: Collection[str],
    busy: Collection[str],
    rank: Rank,
    stays: Collection[tuple[str, str]],
) -> WorkerPlaces | None:
    def cost(worker: WorkerPlaces) -> tuple[object, ...]:
        leaving = _leaving(state, worker, group, rank, stays)
        lowest = rank(worker, leaving[0]) if leaving else ()
        return leaving is None, bool(leaving), lowest, len(worker.resident)

    able = [worker for worker in state.workers.values() if _can_hold(state, worker, group)]
    if len(able) < 2:
        return able[0] if able else None
    handiness = {worker.name: _handiness(worker, group, without, busy) for worker in able}
    best = min(handiness.values())
    handiest = [worker for worker in able if handiness[worker.name] == best]
    return handiest[0] if len(handiest) == 1 or best[2] else min(handiest, key=cost)


def _load(
    state: PlacementState,
    worker: WorkerPlaces,
    group: GroupKeys,
    rank: Rank,
    stays: Collection[tuple[str, str]],
    why: str,
) -> list[PlacementAction] | None:
    """Its next load; None while those that would have to leave may not."""
    missing = [key for key in group if key not in worker.resident]
    if not missing:
        return []
    leaving = _leaving(state, worker, group, rank, stays)
    if leaving is None:
        return None
    return [*(Evict(worker.name, key) for key in leaving), Fetch(worker.name, missing[0], why)]


def _leaving(
    state: PlacementState,
    worker: WorkerPlaces,
    group: GroupKeys,
    rank: Rank,
    stays: Collection[tuple[str, str]],
) -> list[str] | None:
    """Who leaves so that all of the group, which the worker can hold, fits beside the rest; None: not yet."""
    wanted = [state.size_bytes(key) for key in group]
    held = {key: state.size_bytes(key) for key in worker.resident if key not in group}
    if worker.capacity.fits([*wanted, *held.values()]):
        return []
    leaving: list[str] = []
    may_leave = (key for key in held if (worker.name, key) not in stays)
    for key in sorted(may_leave, key=lambda key: (*rank(worker, key), key)):
        leaving.append(key)
        del held[key]
        if worker.capacity.fits([*wanted, *held.values()]):
            return leaving
    return None
