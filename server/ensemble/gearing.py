"""Which plan a load is met with: the richest that leaves no work over. Pure.

    load(g) = max over devices of (what waits + what is under way + what comes in half a goal) / goal

Poorer at once; richer one step at a time, and only where that one's load stays within 0.9.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from server.ensemble.evidence import NOTHING
from server.ensemble.plan import Plan
from server.ensemble.selection import LoadView, SelectionPolicy, State

__all__ = ["FollowedPlans", "Gears", "accuracy_kept", "followed_by", "held_to"]

_FULL = 1.0
_NOBODY = 1e-9  # workers that a device without any counts for
_ROOM = 0.9  # below which a richer plan is tried


@dataclass(frozen=True, slots=True)
class FollowedPlans:
    """Plans, the richest first, and the number of the one that is followed now."""

    plans: tuple[Plan, ...]
    gear: int


def followed_by(policy: SelectionPolicy, state: State) -> FollowedPlans | None:
    """What a policy follows in that state; None for one that has no plans."""
    plans, gear = getattr(policy, "plans", ()), state.get("gear")
    return FollowedPlans(plans, gear) if plans and gear is not None else None


def held_to(policy: SelectionPolicy, state: State, least_accuracy: float) -> State:
    """That state, or where its plan is expected to be right less often, that of the poorest plan that is not.

    The richest where none is right so often. The state itself by a policy that has no plans.
    """
    followed = followed_by(policy, state)
    if followed is None:
        return state
    poorest = sum(plan.accuracy >= least_accuracy for plan in followed.plans) - 1
    return state if followed.gear <= poorest else {**state, "gear": max(0, poorest)}


def accuracy_kept(policy: SelectionPolicy, least_accuracy: float) -> float:
    """The least of the plans' accuracies that is no less; inf where there is none.

    Rows are `held_to` the same plans by either. But who asks names any number, and of these there are few.
    """
    plans: Sequence[Plan] = getattr(policy, "plans", ())
    return min((plan.accuracy for plan in plans if plan.accuracy >= least_accuracy), default=math.inf)


class Gears:
    """`plans`: the richest first. Immutable."""

    def __init__(self, plans: Sequence[Plan]) -> None:
        self.plans = tuple(plans)
        self._remaining_s: NDArray[np.float64] = np.stack([plan.remaining_s.T for plan in plans])
        self._new_s = self._remaining_s[:, :, NOTHING].copy()  # gears by devices
        self._is_one_device = self._new_s.shape[1] == 1
        self._richest_remaining_s = self._remaining_s[0, 0]
        self._richest_new_s = float(self._new_s[0, 0])

    def loads(self, load: LoadView) -> NDArray[np.float64]:
        """The load of every gear, [gears]; 1 is all that the devices can do within the goal."""
        coming = load.rate * load.slo_s / 2
        work_s = self._remaining_s @ load.waiting + coming * self._new_s + np.asarray(load.busy_s)
        worst: NDArray[np.float64] = (work_s / np.maximum(load.workers, _NOBODY)).max(axis=1) / load.slo_s
        return worst

    def _richest(self, load: LoadView) -> float:
        """The load of the richest gear, on one device. Asked before every batch, and mostly all that is."""
        work_s = float(self._richest_remaining_s @ load.waiting)
        work_s += load.rate * load.slo_s / 2 * self._richest_new_s + load.busy_s[0]
        return work_s / max(load.workers[0], _NOBODY) / load.slo_s

    def shift(self, gear: int, load: LoadView) -> int:
        """The gear to follow now, of one that was followed until now."""
        if len(self.plans) == 1 or (gear == 0 and self._is_one_device and self._richest(load) <= _FULL):
            return 0
        loads = self.loads(load).tolist()
        fitting = next((number for number, each in enumerate(loads) if each <= _FULL), len(loads) - 1)
        if fitting >= gear:
            return fitting
        return gear - 1 if loads[gear - 1] <= _ROOM else gear
