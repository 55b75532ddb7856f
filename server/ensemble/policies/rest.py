"""What is missing of a subset: the choice that fixed subsets share, made once for each."""

from __future__ import annotations

from server.ensemble.evidence import members_of
from server.ensemble.selection import ENOUGH, Choice, RowEvidence

__all__ = ["Rest"]

_WAITS = Choice((), waits=True)


class Rest:
    """Of so many members; every subset's choice is one object, by which rows are told apart.

    alone: a row is asked of one member and no second one, whatever subset counts by then.
    """

    def __init__(self, members: int, *, only: bool = False, alone: bool = False) -> None:
        self._alone = alone
        self._asks = [Choice(members_of(missing), beside=True, only=only) for missing in range(1 << members)]

    def of(self, subset: int, row: RowEvidence) -> Choice:
        """Those of the subset that neither answered nor are under way."""
        missing = subset & ~row.subset
        if self._alone and row.subset | row.under_way:
            return ENOUGH if row.subset else _WAITS
        if not missing:
            return ENOUGH
        return self._asks[missing & ~row.under_way] if missing & ~row.under_way else _WAITS
