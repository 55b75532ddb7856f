"""The plans that workers follow within a batch, as they are told them: made once for each plan and fit."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_worker.wire.protocol import AskStep
from server.catalog.functions import Function
from server.ensemble.ask_steps import ask_steps
from server.ensemble.cascade import PlanOnWorker
from server.ensemble.fit import Fit

__all__ = ["PlanSteps"]


class PlanSteps:
    """Of all functions that are served; the last ones of each are kept."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[PlanOnWorker, Fit, list[AskStep]]] = {}

    def of(self, function: Function, plan: PlanOnWorker | None) -> Sequence[AskStep]:
        """By the weights that the function answers by now; none where every member is to answer every row."""
        fit = function.rule.fit
        if plan is not None and function.proxy is not None:
            fit = function.proxy.weighed
        elif plan is None or fit is None or function.combine != "log_pool":
            return ()
        made = self._made.get(function.key)
        if made is None or made[0] is not plan or made[1] is not fit:
            made = self._made[function.key] = plan, fit, ask_steps(plan.choices, plan.evidence, fit)
        return made[2]

    def forget(self, function: Function) -> None:
        """It is served no longer."""
        self._made.pop(function.key, None)
