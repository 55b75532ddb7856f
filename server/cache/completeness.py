"""Whether a row was answered by all who were to answer it: only then would it be answered so again.

At a goal, under load, after a worker's death, a row may be answered by fewer members than were chosen. That
answer is the caller's who waited for it, and nobody else's. Of a function that follows plans the members of
a row are not named beforehand: then it is enough where the plan that holds when nobody waits would ask
nobody else. Pure.
"""

from __future__ import annotations

import math

from server.cache.key import Scope
from server.ensemble.cascade import economical
from server.ensemble.evidence import NOTHING, EvidenceStates, subset_of
from server.ensemble.fit import Fit
from server.ensemble.gearing import FollowedPlans
from server.ensemble.plan import Plan

__all__ = ["Completeness"]


class Completeness:
    """Of the rows of one scope. plans: those that its function follows now; None where it follows none."""

    def __init__(self, scope: Scope, plans: FollowedPlans | None) -> None:
        self._scope = scope
        self._all: dict[str, bool] = {}  # by who answered
        self._plan: Plan | None = None
        proxy = scope.function.proxy
        if proxy is not None:  # which answers alone only where it may, whatever the load
            self._all[proxy.model.name] = scope.asked.members is None
            return
        fit = scope.function.rule.fit
        if plans is None or fit is None or fit.evidence is None or scope.asked.members is not None:
            return
        # The richest, which holds when nobody waits; of rows without a goal that which they always follow.
        gear = economical(plans.plans) if scope.asked.row_class == "bulk" else 0
        plan = plans.plans[gear]
        if len(plan.choices) == fit.evidence.states:
            self._plan, self._fit, self._evidence = plan, fit, fit.evidence

    def of(self, answered_by: str, confidence: float = math.nan) -> bool:
        """Whether these members, comma-separated, are all who were to answer a row that is so sure now."""
        is_all = self._all.get(answered_by)
        if is_all is None:
            is_all = self._all[answered_by] = frozenset(answered_by.split(",")) == self._scope.members
        return is_all or (self._plan is not None and self._is_enough(answered_by, confidence))

    def _is_enough(self, answered_by: str, confidence: float) -> bool:
        fit: Fit = self._fit
        evidence: EvidenceStates = self._evidence
        names = answered_by.split(",")
        if not set(names) <= set(fit.members):
            return False
        subset = subset_of(fit.members.index(name) for name in names)
        state = evidence.state_of(subset, confidence)
        if state == NOTHING or self._plan is None:
            return False
        if self._plan.choices[state].is_enough:
            return True
        # Rows without a goal may go to members that answer together, if they are right as often.
        is_bulk = self._scope.asked.row_class == "bulk"
        return is_bulk and evidence.expected(subset) >= self._plan.accuracy
