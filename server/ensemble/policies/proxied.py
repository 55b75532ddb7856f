"""`cascade`: the proxy first; where it is not sure to say what the full function would, that.

Each plan is of one agreement with the full function, the richest asks it at once: so `held_to` an agreement
is as `held_to` an accuracy, and what a state of evidence is worth is how often it agrees. The load changes
nothing: what was promised is kept, if need be late (`keeps_its_word`).

A proxy that saves no device time is not asked: its own time, and that of the rest for the rows of which it is
not sure, is weighed by what members cost now, for each agreement by itself. Costs that move make new plans.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from server.ensemble.costs import one_after_the_other_s
from server.ensemble.evidence import NOTHING, EvidenceStates, first_states, members_of
from server.ensemble.plan import Plan
from server.ensemble.policies.base import Steady
from server.ensemble.policies.rest import Rest
from server.ensemble.proxy import ProxyFit
from server.ensemble.selection import ENOUGH, Choice, Ensemble, RowEvidence, State

__all__ = ["Proxied", "ProxyPlace", "proxy_evidence"]


@dataclass(frozen=True, slots=True)
class ProxyPlace:
    """Where the proxy is among the members that rows may be asked of.

    full: those of the function, a bit mask; the proxy may be one of them.
    """

    proxy: int
    full: int

    @property
    def rest(self) -> tuple[int, ...]:
        """Who is asked after the proxy."""
        return members_of(self.full & ~(1 << self.proxy))

    def is_asked_first(self, plan: Plan) -> bool:
        """Whether a plan begins with the proxy."""
        return plan.choices[NOTHING].ask == (self.proxy,)

    @property
    def chain(self) -> list[int]:
        """The subsets that a row comes to, if one member is asked after the other: first the proxy alone."""
        subsets = [1 << self.proxy]
        for member in self.rest:
            subsets.append(subsets[-1] | 1 << member)
        return subsets


def proxy_evidence(fit: ProxyFit, place: ProxyPlace, members: int) -> EvidenceStates:
    """The states by which its rows are told apart: the proxy's, by the thresholds of the curve; then no more.

    members: that rows may be asked of.
    """
    chain = place.chain
    thresholds = sorted({level.threshold for level in fit.levels})
    edges: dict[int, tuple[float, ...]] = {0: (), **dict.fromkeys(chain, ())}
    edges[chain[0]] = tuple(thresholds)
    at_least = [(1.0, 1 - fit.alone)]  # of all rows: those as sure as that, and those of them that disagree
    of = {level.threshold: level for level in fit.levels}
    at_least += [(of[each].share, 1 - of[each].agrees) for each in thresholds]
    at_least.append((0.0, 0.0))
    shares = [max(0.0, here[0] - above[0]) for here, above in pairwise(at_least)]
    faults = [max(0.0, here[1] - above[1]) for here, above in pairwise(at_least)]
    agrees = [
        1 - min(1.0, fault / share) if share else 0.0 for share, fault in zip(shares, faults, strict=True)
    ]
    total = sum(shares)
    right = np.array([0.0, *agrees, *(1.0 for _ in chain[1:])])
    rows = fit.proof_rows * np.array([1.0, *(share / total for share in shares), *(1.0 for _ in chain[1:])])
    following: dict[tuple[int, int], NDArray[np.float64]] = {
        (0, place.proxy): np.array([[share / total for share in shares]])
    }
    for subset, member in zip(chain, place.rest, strict=False):
        following[subset, member] = np.ones((len(edges[subset]) + 1, 1))
    subsets = tuple(chain)
    return EvidenceStates(members, subsets, edges, first_states(subsets, edges), right, rows, following)


class Proxied(Steady):
    """State: `gear`, the number of the plan that is followed, 0 for the full function always."""

    name = "cascade"
    draws_lots = False
    keeps_its_word = True

    def __init__(self, ensemble: Ensemble, fit: ProxyFit, place: ProxyPlace) -> None:
        """ensemble: of all that rows may be asked of, with `proxy_evidence` of the fit."""
        super().__init__(ensemble)
        self._place = place
        broken = sum(1 << number for number, each in enumerate(ensemble.members) if each.is_broken)
        self._full = place.full & ~broken or place.full
        self._rest = Rest(len(ensemble.members), only=True)
        self._levels = tuple(reversed(fit.levels))
        # Who is on no worker is not waited for, as far as others can do without: it only saves time.
        self._may_ask = ensemble.members[place.proxy].is_held and not broken >> place.proxy & 1
        self._full_s = [ensemble.members[number].cost_s for number in members_of(self._full)]
        self.plans = (
            self._plan(None, 1.0),
            *(self._plan(each.threshold, each.agreement) for each in self._levels),
        )

    def init(self) -> State:
        """The agreement that was asked for when it was deployed."""
        return {"gear": len(self.plans) - 1}

    def resume(self, state: State, before: object) -> State:
        """The same: nothing is learned."""
        return self.init()

    def select(self, state: State, row: RowEvidence) -> Choice:
        """The proxy; all others, if that is not sure enough."""
        if not row.subset and not row.under_way:
            return self.plans[state["gear"]].choices[NOTHING]
        if row.subset == 1 << self._place.proxy and not row.under_way:
            return self.plans[state["gear"]].choices[row.state]
        return self._rest.of(self._full, row)

    def full_s(self, shared_s: float) -> float:
        """What a row costs that goes to the full function at once.

        shared_s: of that on each member, what those that answer together do but once.
        """
        return one_after_the_other_s(self._full_s, shared_s)

    def one_by_one(self, gear: int) -> tuple[Choice, ...] | None:
        """By state of evidence, one member or none: the same for a worker that asks one after the other.

        None where it does not begin with the proxy.
        """
        plan = self.plans[gear]
        if not self._place.is_asked_first(plan):
            return None
        rest = self._place.rest
        choices = [
            Choice(choice.ask[:1], choice.worth, only=True) if choice.ask else ENOUGH
            for choice in plan.choices[: -len(rest)]
        ]
        return (*choices, *(Choice((member,), only=True) for member in rest[1:]), ENOUGH)

    @property
    def everyone(self) -> Choice:
        """The full function, of a row that nobody has answered."""
        return self._rest.of(self._full, RowEvidence())

    def _plan(self, threshold: float | None, agreement: float) -> Plan:
        evidence, place = self._ensemble.evidence, self._place
        fresh, proxy = self.everyone, 1 << place.proxy
        here = evidence.states_of(proxy)
        remaining = np.zeros((evidence.states, self._ensemble.devices))
        choices: list[Choice] = [ENOUGH] * evidence.states
        for number, subset in enumerate(place.chain[:-1]):
            for state in range(*evidence.states_of(subset).indices(evidence.states)):
                for member in place.rest[number:]:
                    self._costs(remaining[state], member)
                choices[state] = self._rest.of(self._full, RowEvidence(subset))
        if threshold is not None:
            enough = here.start + evidence.edges[proxy].index(threshold) + 1
            for state in range(enough, here.stop):
                choices[state], remaining[state] = ENOUGH, 0.0
        if threshold is not None and self._may_ask:
            remaining[NOTHING] = evidence.following[0, place.proxy][0] @ remaining[here]
            self._costs(remaining[NOTHING], place.proxy)
            if remaining[NOTHING].sum() < sum(self._full_s):
                known = float(evidence.right[here] @ evidence.following[0, place.proxy][0])
                worth = tuple(known if number == place.proxy else 0.0 for number in range(evidence.members))
                choices[NOTHING] = Choice((place.proxy,), worth, only=True)
                return Plan(tuple(choices), remaining, agreement)
        choices[NOTHING], remaining[NOTHING] = fresh, 0.0
        for member in members_of(self._full):
            self._costs(remaining[NOTHING], member)
        return Plan(tuple(choices), remaining, agreement)

    def _costs(self, remaining_s: NDArray[np.float64], member: int) -> None:
        known = self._ensemble.members[member]
        remaining_s[known.device] += known.cost_s
