"""Clipper's own policies: `exp3` (§5.1) chooses one member a row, `exp4` (§5.2) weighs all of them.

Both learn from feedback alone, by the loss 0 for the right class and 1 for any other. The paper names neither
its η nor any exploration beside the lots it draws.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from server.ensemble.policies.base import Steady, most_probable
from server.ensemble.policies.fixed import Static, all_members
from server.ensemble.selection import ENOUGH, Choice, Ensemble, Probabilities, RowAnswer, RowEvidence, State

__all__ = ["Exp3", "Exp4"]


class Exp3(Steady):
    """State: by member, the logarithm of its weight s. A row asks member i with probability s_i / Σ s."""

    name = "exp3"
    draws_lots = True
    heeds_confidence = False

    def __init__(self, ensemble: Ensemble, rate: float = 0.1) -> None:
        super().__init__(ensemble)
        self._rate = rate
        self._choices = tuple(Choice((number,)) for number in range(len(ensemble.members)))

    def init(self) -> State:
        """All alike."""
        return {"log_weights": [0.0] * len(self._choices)}

    def select(self, state: State, row: RowEvidence) -> Choice:
        """The member that the row draws."""
        if row.subset:
            return ENOUGH
        left = row.draw
        shares = _shares(state)
        for choice, share in zip(self._choices, shares, strict=True):
            left -= share
            if left < 0:
                return choice
        return self._choices[max(range(len(shares)), key=shares.__getitem__)]

    def observe(self, state: State, context: str, evidence: Mapping[int, Probabilities], label: int) -> State:
        """s_i ← s_i · exp(−η · loss / p_i), of the member that was asked."""
        weights, shares = list(state["log_weights"]), _shares(state)
        for number, probabilities in evidence.items():
            loss = float(most_probable(probabilities).label != label)
            weights[number] -= self._rate * loss / max(shares[number], 1e-12)
        return {"log_weights": _centred(weights)}


class Exp4(Steady):
    """State: as `Exp3`'s. Every member answers every row; they are averaged by their weights."""

    name = "exp4"
    draws_lots = False
    heeds_confidence = False

    def __init__(self, ensemble: Ensemble, rate: float = 0.1) -> None:
        super().__init__(ensemble)
        self._rate = rate
        self._all: Static = all_members(ensemble)

    def init(self) -> State:
        """All alike."""
        return {"log_weights": [0.0] * len(self._ensemble.members)}

    def select(self, state: State, row: RowEvidence) -> Choice:
        """Every member."""
        return self._all.select(state, row)

    def combine(self, state: State, evidence: Mapping[int, Probabilities]) -> RowAnswer:
        """The weighted average of those that have answered."""
        if not evidence:
            raise ValueError("no member has answered")
        known = {number: state["log_weights"][number] for number in evidence}
        top = max(known.values())
        weights = [math.exp(each - top) for each in known.values()]
        averaged = np.average(np.array(list(evidence.values()), float), axis=0, weights=weights)
        return most_probable(averaged.tolist())

    def observe(self, state: State, context: str, evidence: Mapping[int, Probabilities], label: int) -> State:
        """s_i ← s_i · exp(−η · loss_i), of every member that answered."""
        weights = list(state["log_weights"])
        for number, probabilities in evidence.items():
            weights[number] -= self._rate * float(most_probable(probabilities).label != label)
        return {"log_weights": _centred(weights)}


def _shares(state: State) -> list[float]:
    top = max(state["log_weights"])
    weights = [math.exp(each - top) for each in state["log_weights"]]
    total = sum(weights)
    return [each / total for each in weights]


def _centred(log_weights: list[float]) -> list[float]:
    top = max(log_weights)
    return [each - top for each in log_weights]
