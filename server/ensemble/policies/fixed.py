"""The same members for every row: `best`, `all` (Rafiki's synchronous ensemble), and `static`."""

from __future__ import annotations

from server.ensemble.policies.base import Steady
from server.ensemble.policies.rest import Rest
from server.ensemble.selection import Choice, Ensemble, RowEvidence, State

__all__ = ["Static", "all_members", "best_member"]


class Static(Steady):
    """Every row is answered by all of `subset`, a bit mask; on several devices beside one another.

    Raises ValueError for no member, or one that is none.
    """

    name = "static"
    draws_lots = False
    heeds_confidence = False

    def __init__(self, ensemble: Ensemble, subset: int) -> None:
        super().__init__(ensemble)
        if not 0 < subset < 1 << len(ensemble.members):
            raise ValueError(f"{subset:#b} is no subset of {len(ensemble.members)} members")
        self._subset = subset
        self._rest = Rest(len(ensemble.members), only=True)

    def select(self, state: State, row: RowEvidence) -> Choice:
        """Those of the subset that neither answered nor are under way."""
        return self._rest.of(self._subset, row)


def best_member(ensemble: Ensemble) -> Static:
    """The one member of the highest accuracy."""
    places = range(len(ensemble.members))
    return Static(ensemble, 1 << max(places, key=lambda place: ensemble.members[place].accuracy))


def all_members(ensemble: Ensemble) -> Static:
    """Every member, for every row."""
    return Static(ensemble, (1 << len(ensemble.members)) - 1)
