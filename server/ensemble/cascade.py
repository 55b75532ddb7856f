"""Rows that have no goal, asked of one member after the other: the same plan for all, whatever the load.

Time is what they are to save, so their plan is the cheapest one that is right as often as the richest, but
for a tenth of a point. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from server.ensemble.evidence import NOTHING
from server.ensemble.plan import Plan
from server.ensemble.selection import Choice, Ensemble, RowEvidence, SelectionPolicy

__all__ = ["Cascade", "cascade_of", "economical"]

_GIVEN_UP = 0.001  # of the accuracy of the richest plan


def economical(plans: Sequence[Plan]) -> int:
    """The number of the cheapest plan that is hardly less accurate than the best one."""
    least = max(plan.accuracy for plan in plans) - _GIVEN_UP
    able = [number for number, plan in enumerate(plans) if plan.accuracy >= least]
    return min(able, key=lambda number: _takes_s(plans[number]))


class Cascade:
    """What rows are asked by one gear of a policy. accuracy: of their answers, in expectation."""

    def __init__(self, ensemble: Ensemble, policy: SelectionPolicy, gear: int, accuracy: float) -> None:
        self.accuracy = accuracy
        self._evidence = ensemble.evidence
        self._policy, self._state = policy, {"gear": gear}
        self._choices: dict[tuple[int, int], Choice] = {}  # by subset and state of evidence
        self.first = self._choice(0, NOTHING)

    def following(self, subset: int, sure: Sequence[float]) -> list[tuple[int, Choice]]:
        """What rows need next that these members have answered: so many rows, one after the other, alike.

        sure: of each row, how probable its answer is by all that is known.
        """
        each = (self._choice(subset, state) for state in self._evidence.states_each(subset, sure))
        return [(len(list(rows)), choice) for choice, rows in groupby(each)]

    def _choice(self, subset: int, state: int) -> Choice:
        found = self._choices.get((subset, state))
        if found is None:
            found = self._policy.select(self._state, RowEvidence(subset, state=state))
            self._choices[subset, state] = found
        return found


def cascade_of(ensemble: Ensemble, policy: SelectionPolicy, together_s: float) -> Cascade | None:
    """How rows without a goal are asked by a policy's plans; None where all members at once are as cheap.

    together_s: what a row takes on all members at once, which share its decoding.
    """
    plans: Sequence[Plan] = getattr(policy, "plans", ())
    if not plans:
        return None
    gear = economical(plans)
    if _takes_s(plans[gear]) >= together_s:
        return None
    return Cascade(ensemble, policy, gear, plans[gear].accuracy)


def _takes_s(plan: Plan) -> float:
    """Seconds of all devices that a row takes."""
    return float(plan.remaining_s[NOTHING].sum())
