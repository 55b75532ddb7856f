"""Rows that have no goal: the same members for all, or one after the other, whatever the load.

Time is what they are to save, so of what is right as often as the richest plan, but for a tenth of a point,
they take the cheapest: members that answer together, and so read and decode a row once; a plan that a worker
of all members follows within each batch, which does so too, and spares members; or a plan whose members are
asked one after the other in batches of their own, wherever they are. Where a proxy answers, they follow the
plan of the agreement that was promised, and what is chosen is only how, and whether it is worth asking. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from server.ensemble.ask_steps import next_members, shares_asked
from server.ensemble.costs import one_after_the_other_s
from server.ensemble.evidence import NOTHING, EvidenceStates, members_of, subset_of
from server.ensemble.gearing import accuracy_kept, held_to
from server.ensemble.one_by_one import (
    GIVEN_UP,
    TOLD_APART_S,
    is_worth_batches,
    is_worth_telling_apart,
)
from server.ensemble.plan import Plan
from server.ensemble.policies.fixed import Static
from server.ensemble.policies.proxied import Proxied
from server.ensemble.selection import (
    TYPICAL_ROWS,
    Choice,
    Ensemble,
    RowEvidence,
    SelectionPolicy,
    State,
    heeds_confidence,
)

__all__ = ["Cascade", "PlanOnWorker", "cascade_of", "economical", "plan_on_worker"]


def economical(plans: Sequence[Plan]) -> int:
    """The number of the cheapest plan that is hardly less accurate than the best one."""
    least = max(plan.accuracy for plan in plans) - GIVEN_UP
    able = [number for number, plan in enumerate(plans) if plan.accuracy >= least]
    return min(able, key=lambda number: plans[number].device_s)


@dataclass(frozen=True, slots=True, eq=False)
class PlanOnWorker:
    """choices: by state of evidence, one member or none · accuracy: of their answers, in expectation."""

    choices: tuple[Choice, ...]
    evidence: EvidenceStates
    accuracy: float


class Cascade:
    """What rows are asked by a policy in one state. accuracy: of their answers, in expectation."""

    def __init__(self, ensemble: Ensemble, policy: SelectionPolicy, state: State, accuracy: float) -> None:
        self.accuracy = accuracy
        self._evidence = ensemble.evidence
        self._policy, self._state = policy, state
        self._has_levels = isinstance(policy, Proxied)
        # By subset, state of evidence and what is asked for.
        self._choices: dict[tuple[int, int, float | None], Choice] = {}
        self.first = self._choice(0, NOTHING, None)

    def first_of(self, least: float | None) -> Choice | None:
        """Whom rows are asked of first of which so much is asked for; None where that is not to be had."""
        if self._has_levels:
            return self._choice(0, NOTHING, self._kept(least))
        return self.first if least is None or self.accuracy >= least else None

    def following(
        self, subset: int, sure: Sequence[float], least: float | None = None
    ) -> list[tuple[int, Choice]]:
        """What rows need next that these members have answered: so many rows, one after the other, alike.

        sure: of each row, how probable its answer is by all that is known. least: what is asked for.
        """
        kept = self._kept(least)
        each = (self._choice(subset, state, kept) for state in self._evidence.states_each(subset, sure))
        return [(len(list(rows)), choice) for choice, rows in groupby(each)]

    def _kept(self, least: float | None) -> float | None:
        return accuracy_kept(self._policy, least) if self._has_levels and least is not None else None

    def _choice(self, subset: int, state: int, least: float | None) -> Choice:
        found = self._choices.get((subset, state, least))
        if found is None:
            known = self._state if least is None else held_to(self._policy, self._state, least)
            found = self._policy.select(known, RowEvidence(subset, state=state))
            self._choices[subset, state, least] = found
        return found


def plan_on_worker(ensemble: Ensemble, policy: SelectionPolicy, shared_s: float) -> PlanOnWorker | None:
    """The plan by which a worker asks its members of the rows of a batch; None where that gains nothing.

    shared_s: of what a row costs on each member, what is done but once for a batch; where nothing is shared,
    a batch of its own for each member is as cheap, and fuller.
    """
    plans: Sequence[Plan] = getattr(policy, "plans", ())
    if not plans or shared_s <= 0 or ensemble.devices > 1 or not heeds_confidence(policy):
        return None
    if not any(ensemble.evidence.edges.values()):  # rows are not told apart by what members say of them
        return None
    gear = policy.init()["gear"] if isinstance(policy, Proxied) else economical(plans)
    plan = plans[gear]
    choices = policy.one_by_one(gear) if isinstance(policy, Proxied) else plan.choices
    if choices is None or any(len(choice.ask) > 1 for choice in choices):
        return None
    shares = shares_asked(next_members(choices), ensemble.evidence)
    taken_s = shared_s + TOLD_APART_S
    for member, share in zip(ensemble.members, shares, strict=True):
        if share > 0:  # a pass of few rows takes what it takes at the least
            least_s = member.fixed_s / TYPICAL_ROWS
            taken_s += max(0.0, member.cost_s - least_s - shared_s) * share + least_s
    if taken_s >= plan.device_s:
        return None
    if isinstance(policy, Proxied):
        if taken_s >= policy.full_s(shared_s):
            return None
    else:
        _, together_s = _together(ensemble, plan.accuracy, shared_s)
        if not is_worth_telling_apart(taken_s, together_s):
            return None
    return PlanOnWorker(choices, ensemble.evidence, plan.accuracy)


def cascade_of(ensemble: Ensemble, policy: SelectionPolicy, shared_s: float) -> Cascade | None:
    """How rows without a goal are asked by a policy's plans; None where all members at once are best.

    shared_s: of what a row costs on each member, what members that answer together need only once.
    """
    plans: Sequence[Plan] = getattr(policy, "plans", ())
    if not plans:
        return None
    if isinstance(policy, Proxied):
        state = policy.init()
        if plans[state["gear"]].device_s >= policy.full_s(shared_s):
            state = {"gear": 0}
        return Cascade(ensemble, policy, state, plans[state["gear"]].accuracy)
    gear = economical(plans)
    subset, together_s = _together(ensemble, plans[gear].accuracy, shared_s)
    if is_worth_batches(plans[gear].device_s, together_s):
        return Cascade(ensemble, policy, {"gear": gear}, plans[gear].accuracy)
    if subset == (1 << len(ensemble.members)) - 1:
        return None  # nobody is broken
    return Cascade(ensemble, Static(ensemble, subset), {}, ensemble.evidence.expected(subset))


def _together(ensemble: Ensemble, accuracy: float, shared_s: float) -> tuple[int, float]:
    """The cheapest members that are together at least so accurate, or else all: and what a row costs."""
    evidence, costs_s = ensemble.evidence, [member.cost_s for member in ensemble.members]
    left_out = subset_of(number for number, member in enumerate(ensemble.members) if member.is_broken)
    everyone = (1 << len(costs_s)) - 1 & ~left_out or left_out
    able = [each for each in evidence.subsets if not each & ~everyone and evidence.expected(each) >= accuracy]
    taken_s: dict[int, float] = {}
    for subset in (*able, everyone):
        each_s = [costs_s[member] for member in members_of(subset)]
        taken_s[subset] = one_after_the_other_s(each_s, shared_s)
    cheapest = min(taken_s, key=lambda subset: taken_s[subset])
    return cheapest, taken_s[cheapest]
