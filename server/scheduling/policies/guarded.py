"""A function's policy, which may be anybody's code, and `goodput` in its stead from the moment it faults.

A fault: a method raises, or decides what cannot be done (rows that do not wait, members that there are not).
What the policy had learned is lost; no row is. Owns the policy's state. Knows no queue and no worker.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from server.scheduling.policies.by_name import policy_named
from server.scheduling.policies.goodput import Goodput
from server.scheduling.policy import (
    BatchOutcome,
    Decision,
    Dispatch,
    FunctionView,
    Policy,
    Refuse,
    Wait,
)
from server.scheduling.terms import FunctionSpec

__all__ = ["GuardedPolicy", "PolicyFault"]


@dataclass(frozen=True, slots=True)
class PolicyFault:
    """A policy that was put aside, the method that faulted, and how."""

    function: str
    policy: str
    method: str
    error: Exception


class GuardedPolicy:
    """The policy of one lane. `faulted` is called once, when it is put aside."""

    def __init__(
        self, spec: FunctionSpec, faulted: Callable[[PolicyFault], None] = lambda fault: None
    ) -> None:
        self._spec = spec
        self._faulted = faulted
        self._policy: Policy = Goodput()
        self._state: dict[str, Any] = {}
        self._proposed: dict[str, Any] | None = None  # the state once the last dispatch is carried out
        try:
            self._policy = policy_named(spec.policy)
            self._state = self._policy.initial(dict(spec.policy_options))
        except Exception as error:
            self._fault("initial", error)

    def decide(self, view: FunctionView) -> Decision:
        """What to do now."""
        try:
            state, decision = self._policy.decide(self._state, view)
            _check(decision, view)
        except Exception as error:
            self._fault("decide", error)
            state, decision = self._policy.decide(self._state, view)
        if isinstance(decision, Dispatch):
            self._proposed = state
        else:
            self._state, self._proposed = state, None
        return decision

    def carried_out(self) -> None:
        """The batch that was decided on leaves for its worker."""
        if self._proposed is not None:
            self._state, self._proposed = self._proposed, None

    def observe(self, outcome: BatchOutcome) -> None:
        """Learn from a finished batch."""
        try:
            self._state, self._proposed = self._policy.observe(self._state, outcome), None
        except Exception as error:
            self._fault("observe", error)

    def put_aside(self) -> None:
        """Follow `goodput` from now on."""
        self._policy = Goodput()
        self._state, self._proposed = self._policy.initial({}), None

    def _fault(self, method: str, error: Exception) -> None:
        self.put_aside()
        self._faulted(PolicyFault(self._spec.name, self._spec.policy, method, error))


def _check(decision: object, view: FunctionView) -> None:
    """Raises ValueError for what cannot be done."""
    if isinstance(decision, Dispatch):
        rows, skip = decision.rows, decision.skip
        whole = rows % 1 == 0 == skip % 1
        fits = whole and 1 <= rows <= view.max_batch and 0 <= skip <= view.queued_rows - rows
        if not fits or not {member.name for member in view.members}.issuperset(decision.members):
            raise ValueError(f"{decision} of {view.queued_rows} rows in batches of {view.max_batch}")
        if decision.expected_s is not None and not 0 <= decision.expected_s < math.inf:
            raise ValueError(f"a batch cannot be expected to take {decision.expected_s} s")
    elif isinstance(decision, Refuse):
        fits = 1 <= decision.rows <= view.queued_rows and decision.rows % 1 == 0
        if not fits or math.isnan(decision.predicted_finish_s):
            raise ValueError(f"{decision} of {view.queued_rows} rows")
    elif not isinstance(decision, Wait) or math.isnan(decision.until_s):
        raise ValueError(f"{decision!r} is no Dispatch, Wait or Refuse")
