"""Policies that follow one of several plans, by the load: `value`, the default, and `gear`, its plain sister.

`value`: plans by the price of time (plan.py): a row is answered when one more member is not worth its device
time at the present price. `gear`: a subset of the members for every row, poorer under load.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from server.ensemble.evidence import subset_of
from server.ensemble.gearing import Gears
from server.ensemble.plan import Plan, fit_plans, fixed_plan, undominated
from server.ensemble.policies.base import Steady
from server.ensemble.policies.rest import Rest
from server.ensemble.selection import Choice, Ensemble, LoadView, RowEvidence, SelectionPolicy, State

__all__ = ["Gear", "Value"]


class _Geared(Steady):
    """State: the gear, 0 the richest."""

    draws_lots = False

    def __init__(self, ensemble: Ensemble, plans: Sequence[Plan]) -> None:
        super().__init__(ensemble)
        self.plans = tuple(plans)
        self._gears = Gears(self.plans)

    def init(self) -> State:
        """The richest."""
        return {"gear": 0}

    def steer(self, state: State, load: LoadView) -> State:
        """The richest gear that the load allows."""
        gear = self._gears.shift(state["gear"], load)
        return state if gear == state["gear"] else {"gear": gear}

    def resume(self, state: State, before: SelectionPolicy) -> State:
        """The gear by which a row takes about as many seconds of the devices as it took before."""
        if not isinstance(before, _Geared):
            return self.init()
        took_s = before.plans[state["gear"]].device_s
        off = [abs(math.log(plan.device_s / took_s)) for plan in self.plans]
        return {"gear": off.index(min(off))}


class Value(_Geared):
    """By the price of device time. `plans`: those fitted before, else they are fitted now."""

    name = "value"

    def __init__(self, ensemble: Ensemble, plans: Sequence[Plan] = ()) -> None:
        super().__init__(ensemble, plans or fit_plans(ensemble))

    def select(self, state: State, row: RowEvidence) -> Choice:
        """What the plan of the present price says of the row's evidence."""
        return self.plans[state["gear"]].choices[row.state]


class Gear(_Geared):
    """By subsets that no other beats in accuracy at less device time."""

    name = "gear"
    heeds_confidence = False

    def __init__(self, ensemble: Ensemble) -> None:
        evidence = ensemble.evidence
        held = subset_of(ensemble.held)
        there = [subset for subset in evidence.subsets if not subset & ~held]
        subsets = {fixed_plan(ensemble, subset): subset for subset in there}
        super().__init__(ensemble, undominated(list(subsets)))
        self._subsets = tuple(subsets[plan] for plan in self.plans)
        self._rest = Rest(len(ensemble.members), alone=ensemble.evidence.is_alone)

    def select(self, state: State, row: RowEvidence) -> Choice:
        """Those of the gear's subset that neither answered nor are under way."""
        return self._rest.of(self._subsets[state["gear"]], row)
