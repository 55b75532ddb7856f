"""The selection policies of the functions that are served: which each follows, what it learned, its faults.

Between the plans that are fitted (plans.py) and the core, which follows them. Knows no rows, batches or
workers but what these hold. Runs on the event loop.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence

from gpu_worker.wire.protocol import AskStep
from server.catalog.functions import Form, Function
from server.ensemble.cascade import PlanOnWorker
from server.ensemble.combine import OwnRule
from server.ensemble.gearing import FollowedPlans
from server.ensemble.places import places_of
from server.ensemble.policies.base import combines, learns
from server.ensemble.policies.by_name import check_selection_policy
from server.ensemble.policies.guarded import SelectionFault
from server.ensemble.select import is_own_policy
from server.ensemble.selection import Ensemble, SelectionPolicy
from server.observability.metrics import Metrics
from server.scheduling.core import Scheduler
from server.serving.plan_steps import PlanSteps
from server.serving.plans import Plans, Workers, ensemble_of
from server.serving.scheduler_adapter import LatencyOf
from server.supervision import Tasks

__all__ = ["Selecting"]

log = logging.getLogger("ml_udf.server.selecting")


class Selecting:
    """`functions`: those that are served now, by key · `wake` has the core asked again."""

    def __init__(
        self,
        core: Scheduler,
        functions: Mapping[str, Function],
        metrics: Metrics,
        latency_of: LatencyOf,
        tasks: Tasks,
        workers: Workers,
        wake: Callable[[], None],
    ) -> None:
        self._core = core
        self._functions = functions
        self._metrics = metrics
        self._latency_of = latency_of
        self._workers = workers
        self._wake = wake
        self._steps = PlanSteps()
        self._faults: dict[str, str] = {}  # function → why its own policy was put aside
        self.plans = Plans(latency_of, self.follow, tasks, workers, self._faulted)

    def check(self, function: Function) -> None:
        """Raises ValueError where the function's own policy, if it has one, cannot be made."""
        if is_own_policy(function.select):
            places = places_of([model.key for model in function.members], self._workers())
            ensemble = ensemble_of(function, self._latency_of, places, function.form)
            check_selection_policy(function.select, ensemble)

    def look(self, now_s: float, function: Function, form: Form) -> None:
        """Have plans fitted for rows of that form, if it follows any and none are there that hold."""
        if function.follows_plans:
            self.plans.look(now_s, function, form)

    def answer_as(self, before: Function, function: Function) -> None:
        """What the function has learned from labels is what it goes on from."""
        self._teach(function)
        if not function.follows_plans:
            return
        # Of a proxy's plans the evidence stays, whoever is found to be broken.
        if before.evidence is not function.evidence or before.left_out != function.left_out:
            self.plans.forget(function)  # they rest on both
            self.look(time.monotonic(), function, function.form)

    def forget(self, function: Function) -> None:
        """It is served no longer."""
        self.plans.forget(function)
        self._steps.forget(function)
        self._faults.pop(function.key, None)

    def followed(self, function: Function, form: Form) -> FollowedPlans | None:
        """The plans that its rows of that form follow, or those of another; None where they follow none."""
        return self._core.followed(function.key, form) if function.follows_plans else None

    async def learner(self, function: Function) -> SelectionPolicy | None:
        """The policy that the function follows, where that learns from feedback."""
        policy = await self.plans.policy_of(function) if function.follows_plans else None
        return policy if policy is not None and learns(policy) else None

    def fault(self, function: Function) -> str | None:
        """Why the function's own policy was put aside for `value`; None where it was not."""
        return self._faults.get(function.key)

    def steps(self, function: Function, plan: PlanOnWorker | None) -> Sequence[AskStep]:
        """A plan as its worker is told it; none where every member is to answer every row."""
        return self._steps.of(function, plan)

    def own_rule(self, function: Function, form: Form) -> OwnRule | None:
        """How the policy that the function follows combines answers, if not by the function's rule."""
        found = self._core.policy_of(function.key, form)
        if found is None or not combines(found[0]):
            return None
        policy, state = found
        place_of = {model.name: place for place, model in enumerate(function.asked)}

        def rule(evidence: Mapping[str, Sequence[float]]) -> tuple[int, float]:
            answer = policy.combine(state, {place_of[name]: told for name, told in evidence.items()})
            return answer.label, answer.confidence

        return rule

    def follow(self, function: Function, form: Form, ensemble: Ensemble, policy: SelectionPolicy) -> None:
        """Rows of that form follow the policy from now on, if it rests on what the function knows by now."""
        known = self._functions.get(function.key)  # which may have learned meanwhile
        if known is not None and known.evidence is ensemble.evidence:
            self._core.follow(time.monotonic(), function.key, form, ensemble, policy)
            self._teach(known)
            self._wake()

    def _teach(self, function: Function) -> None:
        """The function's selection policy goes on from what labels have taught it."""
        learned = None if function.feedback is None else function.feedback.selection
        if learned is not None and function.follows_plans:
            self._core.teach(function.key, learned["policy"], learned["state"])

    def _faulted(self, function: Function, fault: SelectionFault) -> None:
        log.error(
            "selection policy put aside for value function=%s policy=%s method=%s",
            function.name,
            function.select,
            fault.method,
            exc_info=fault.error,
        )
        if function.key in self._functions:
            reason = f"{function.select} was put aside for value: {fault.method}: {fault.error!r}"
            self._faults[function.key] = reason
            self._metrics.of(function).policy_faults += 1
