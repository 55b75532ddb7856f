"""Batches of a pool that are under way: which rows are in them, as far as those still wait."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from server.scheduling.row_group import RowGroup

__all__ = ["PooledBatch"]


@dataclass(slots=True, eq=False)
class PooledBatch:
    """`rows`: how many there were. A group whose rows have left, or were parted, has no place in it now."""

    batch_id: int
    worker: str
    member: int
    rows: int
    groups: list[RowGroup]
    sent_s: float
    predicted_s: float

    def part(self, group: RowGroup, parts: Sequence[RowGroup]) -> None:
        """A group of it is now these, at its place: its rows go on as if each had come alone."""
        at = self.groups.index(group)
        self.groups[at : at + 1] = parts

    def waiting(self) -> list[RowGroup]:
        """Its rows that nobody has answered or given up meanwhile."""
        return [group for group in self.groups if self.batch_id in group.places]
