"""A user's own selection policy, and `value` in its stead from the moment it faults.

A fault: a method raises, or decides what cannot be done (members that there are not, or that have answered;
to leave a row that nobody answered). What the policy had learned is lost; no row is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from server.ensemble.policies.base import combines, learns
from server.ensemble.policies.geared import Value
from server.ensemble.selection import (
    Choice,
    Ensemble,
    LoadView,
    Probabilities,
    RowAnswer,
    RowEvidence,
    SelectionPolicy,
    State,
    draws_lots,
    resumed,
)

__all__ = ["GuardedSelection", "SelectionFault"]

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class SelectionFault:
    """A policy that was put aside, the method that faulted, and how."""

    policy: str
    method: str
    error: Exception


class GuardedSelection:
    """State: the policy's own under `own`, or that of `value` under `value`, once it was put aside.

    `faulted` is told of each fault of a state that was still the policy's.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        policy: SelectionPolicy,
        faulted: Callable[[SelectionFault], None] = lambda fault: None,
    ) -> None:
        self.name = str(getattr(policy, "name", type(policy).__name__))
        self.draws_lots = draws_lots(policy)
        self.heeds_confidence = True  # as `value` does
        self._members = len(ensemble.members)
        self._own = policy
        self._value = Value(ensemble)
        self._faulted = faulted
        self._put_aside = False

    @property
    def combines(self) -> bool:
        """Whether its answers are its own, and not those of the function's rule."""
        return not self._put_aside and combines(self._own)

    @property
    def learns(self) -> bool:
        """Whether feedback changes what it asks or answers."""
        return not self._put_aside and learns(self._own)

    def init(self) -> State:
        """The policy's first state."""
        return self._guarded("init", lambda: {"own": self._own.init()}, self._fresh)

    def resume(self, state: State, before: SelectionPolicy) -> State:
        """As the policy resumes, or with its state as it is. Once put aside it stays so."""
        if not isinstance(before, GuardedSelection):
            return self.init()
        if "own" in state and not before._put_aside:
            own = state["own"]
            return self._guarded("resume", lambda: {"own": resumed(self._own, own, before._own)}, self._fresh)
        self._put_aside = True
        return {"value": self._value.resume(before._value_state(state), before._value)}

    def steer(self, state: State, load: LoadView) -> State:
        """As the policy steers."""
        if self._is_own(state):
            told = self._guarded("steer", lambda: self._own.steer(state["own"], load), lambda: None)
            if told is not None:
                return state if told is state["own"] else {"own": told}
        inner = self._value_state(state)
        steered = self._value.steer(inner, load)
        return state if "value" in state and steered is inner else {"value": steered}

    def select(self, state: State, row: RowEvidence) -> Choice:
        """As the policy selects, if that can be done."""
        if self._is_own(state):
            choice = self._guarded("select", lambda: self._checked(state, row), lambda: None)
            if choice is not None:
                return choice
        return self._value.select(self._value_state(state), row)

    def combine(self, state: State, evidence: Mapping[int, Probabilities]) -> RowAnswer:
        """As the policy combines. Raises ValueError if no member has answered."""
        if self._is_own(state) and evidence:
            answer = self._guarded("combine", lambda: self._answer(state, evidence), lambda: None)
            if answer is not None:
                return answer
        return self._value.combine(self._value_state(state), evidence)

    def observe(self, state: State, context: str, evidence: Mapping[int, Probabilities], label: int) -> State:
        """As the policy learns."""
        if self._is_own(state):
            return self._guarded(
                "observe",
                lambda: {"own": self._own.observe(state["own"], context, evidence, label)},
                self._fresh,
            )
        return state

    def _checked(self, state: State, row: RowEvidence) -> Choice:
        choice = self._own.select(state["own"], row)
        gone = row.subset | row.under_way
        if any(not 0 <= member < self._members or gone >> member & 1 for member in choice.ask):
            raise ValueError(f"it asks for {choice.ask} of {self._members} members, of {gone:#b} once more")
        if choice.is_enough and not gone:
            raise ValueError("it leaves a row that nobody answered")
        return choice

    def _answer(self, state: State, evidence: Mapping[int, Probabilities]) -> RowAnswer:
        answer = self._own.combine(state["own"], evidence)
        classes = len(next(iter(evidence.values())))
        if not (0 <= answer.label < classes and 0 <= answer.confidence <= 1):
            raise ValueError(f"it answers {answer} of {classes} classes")
        return answer

    def _guarded(self, method: str, do: Callable[[], _T], instead: Callable[[], _T]) -> _T:
        try:
            return do()
        except Exception as error:
            self._put_aside = True
            self._faulted(SelectionFault(self.name, method, error))
            return instead()

    def _is_own(self, state: State) -> bool:
        return not self._put_aside and "own" in state

    def _fresh(self) -> State:
        return {"value": self._value.init()}

    def _value_state(self, state: State) -> State:
        inner: State = state["value"] if "value" in state else self._value.init()
        return inner
