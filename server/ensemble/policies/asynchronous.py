"""`async`: Rafiki's asynchronous baseline (§7.2.2), one member per batch; no row gets a second opinion.

Where a device holds several members, they take turns, a batch each.
"""

from __future__ import annotations

from server.ensemble.policies.base import Steady
from server.ensemble.selection import ENOUGH, Choice, Ensemble, LoadView, RowEvidence, SelectionPolicy, State

__all__ = ["Asynchronous"]


class Asynchronous(Steady):
    """State: whose turn it is on the devices."""

    name = "async"
    draws_lots = False
    heeds_confidence = False

    def __init__(self, ensemble: Ensemble) -> None:
        super().__init__(ensemble)
        on = [
            [number for number in ensemble.held if ensemble.members[number].device == device]
            for device in range(ensemble.devices)
        ]
        turns = max(map(len, on))
        self._turns = tuple(
            Choice(tuple(held[turn % len(held)] for held in on if held)) for turn in range(turns)
        )

    def init(self) -> State:
        """The first member's turn."""
        return {"turn": 0}

    def steer(self, state: State, load: LoadView) -> State:
        """The next one's, each time a batch is to be cut."""
        return state if len(self._turns) == 1 else {"turn": (state["turn"] + 1) % len(self._turns)}

    def resume(self, state: State, before: SelectionPolicy) -> State:
        """The same one's, of as many as there are now."""
        return {"turn": state["turn"] % len(self._turns)}

    def select(self, state: State, row: RowEvidence) -> Choice:
        """Any one member, of those whose turn it is."""
        return ENOUGH if row.subset else self._turns[state["turn"]]
