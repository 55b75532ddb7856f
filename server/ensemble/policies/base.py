"""What most selection policies share: nothing to learn, and the function's own rule of combination."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from server.ensemble.selection import (
    Ensemble,
    LoadView,
    Probabilities,
    RowAnswer,
    SelectionPolicy,
    State,
)

__all__ = ["Steady", "combines", "heeds_load", "learns", "most_probable"]


def most_probable(probabilities: Probabilities) -> RowAnswer:
    """The likeliest class."""
    label = int(np.argmax(probabilities))
    return RowAnswer(label, float(probabilities[label]))


class Steady:
    """A policy that neither learns nor heeds the load."""

    def __init__(self, ensemble: Ensemble) -> None:
        self._ensemble = ensemble

    def init(self) -> State:
        """Nothing to know."""
        return {}

    def steer(self, state: State, load: LoadView) -> State:
        """The same, whatever the load."""
        return state

    def combine(self, state: State, evidence: Mapping[int, Probabilities]) -> RowAnswer:
        """By the ensemble's combination, or the mean of the members' probabilities."""
        if not evidence:
            raise ValueError("no member has answered")
        if self._ensemble.combination is not None:
            return most_probable(self._ensemble.combination(evidence))
        return most_probable(np.mean(list(evidence.values()), axis=0).tolist())

    def observe(self, state: State, context: str, evidence: Mapping[int, Probabilities], label: int) -> State:
        """Nothing is learned."""
        return state


def combines(policy: SelectionPolicy) -> bool:
    """Whether it has a rule of combination of its own, and not that of its ensemble."""
    told = getattr(policy, "combines", None)
    return _has_own(policy, "combine") if told is None else bool(told)


def heeds_load(policy: SelectionPolicy) -> bool:
    """Whether what it selects may depend on the load."""
    return _has_own(policy, "steer")


def learns(policy: SelectionPolicy) -> bool:
    """Whether feedback changes what it asks or answers."""
    told = getattr(policy, "learns", None)
    return _has_own(policy, "observe") if told is None else bool(told)


def _has_own(policy: SelectionPolicy, method: str) -> bool:
    return getattr(type(policy), method, None) is not getattr(Steady, method)
