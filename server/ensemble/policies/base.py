"""What most selection policies share: nothing to learn, and the function's own rule of combination."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from server.ensemble.selection import Ensemble, LoadView, Probabilities, RowAnswer, State

__all__ = ["Steady", "most_probable"]


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
