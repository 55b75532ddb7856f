"""Rows whose batch does not come back: when they count as late, and which of them can be rebuilt.

ParM (Kosaian et al., SOSP 2019, §3): rows of k batches are a group, and a parity model is asked of the k rows
as one. Where one of them is late, its answer follows from the others' and the parity model's. Here a group's
rows are of batches on different workers, where there are as many, so that one that stands still keeps one row
of each group. A group that does not fill while its rows wait protects none of them.

Pure: no I/O, no clock.

    sent ─→ groups that are full now, to be asked of the parity model      answered, coded, late ─→ `Rebuild`s
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

__all__ = ["CodingGroup", "CodingGroups", "Rebuild", "late_after_s"]

Told = TypeVar("Told")
RowKey = tuple[int, int]  # a request, a row of it

_TIMES = 2.0  # what a batch should take, until its rows are late
_LEAST_S = 0.01
_MOST_OPEN = 4096  # groups that wait for rows


def late_after_s(asked_s: float | None, predicted_s: float | None, slo_s: float) -> float:
    """How long after a batch was sent its rows are late. asked_s: as the function says; None = by what the
    batch should take. predicted_s: None = not known; then half of the goal.
    """
    if asked_s is not None:
        return asked_s
    return slo_s / 2 if predicted_s is None else max(_LEAST_S, _TIMES * predicted_s)


@dataclass(slots=True, eq=False)
class CodingGroup(Generic[Told]):
    """rows: each with its batch, and the worker that has it · told: what is known of them · parity: what the
    parity model said of all
    """

    rows: dict[RowKey, tuple[int, str]] = field(default_factory=dict)
    told: dict[RowKey, Told] = field(default_factory=dict)
    late: set[RowKey] = field(default_factory=set)
    parity: Told | None = None
    is_over: bool = False

    def on(self, *, apart: bool) -> Iterator[int | str]:
        """The batches that its rows are in; apart: the workers."""
        return (worker if apart else batch for batch, worker in self.rows.values())


@dataclass(frozen=True, slots=True)
class Rebuild(Generic[Told]):
    """The answer to a row follows from what the parity model said, less what is known of the others."""

    row: RowKey
    parity: Told
    others: tuple[Told, ...]


class CodingGroups(Generic[Told]):
    """Those of rows that one parity model may be asked of together, k at a time."""

    def __init__(self, k: int) -> None:
        self._k = k
        self._open: list[CodingGroup[Told]] = []  # not full yet, the oldest first
        self._of: dict[RowKey, CodingGroup[Told]] = {}

    def __len__(self) -> int:
        """How many rows are in groups."""
        return len(self._of)

    def sent(self, batch: int, worker: str, rows: Sequence[RowKey], workers: int) -> list[CodingGroup[Told]]:
        """A batch of these rows left for a worker, of so many: the groups that are full with it."""
        full: list[CodingGroup[Told]] = []
        apart = workers >= self._k
        fitting = [
            group
            for group in self._open
            if all(has != (worker if apart else batch) for has in group.on(apart=apart))
        ]
        for place, row in enumerate(rows):
            if row in self._of:  # it was sent before
                continue
            group = fitting[place] if place < len(fitting) else self._opened()
            if group is None:
                continue
            group.rows[row] = (batch, worker)
            self._of[row] = group
            if len(group.rows) == self._k:
                full.append(group)
        if full:
            self._open = [group for group in self._open if len(group.rows) < self._k]
        return full

    def answered(self, row: RowKey, told: Told | None) -> Iterator[Rebuild[Told]]:
        """A row is answered by its own batch; None: with an error, or its client is gone."""
        group = self._of.get(row)
        if group is None:
            return
        if len(group.rows) < self._k:  # a group is of rows that wait when it fills
            self._leave(group, row)
            return
        if told is None:
            self._end(group)
            return
        group.told[row] = told
        if len(group.told) == len(group.rows):  # nobody in it needs the others
            self._end(group)
            return
        yield from self._rebuildable(group)

    def coded(self, group: CodingGroup[Told], told: Told | None) -> Iterator[Rebuild[Told]]:
        """The parity model answered for a group; None: with an error."""
        if told is None:
            self._end(group)
        elif not group.is_over:
            group.parity = told
            yield from self._rebuildable(group)

    def late(self, row: RowKey) -> Iterator[Rebuild[Told]]:
        """From now on a row is answered as soon as it can be rebuilt."""
        group = self._of.get(row)
        if group is not None and row not in group.told:
            group.late.add(row)
            yield from self._rebuildable(group)

    def forget(self, rows: Iterable[RowKey]) -> None:
        """Nobody waits for these rows any more, and perhaps they are never answered."""
        for row in rows:
            group = self._of.get(row)
            if group is None or row in group.told:
                continue
            if len(group.rows) < self._k:
                self._leave(group, row)
            else:
                self._end(group)

    def _opened(self) -> CodingGroup[Told] | None:
        if len(self._open) >= _MOST_OPEN:
            return None
        group = CodingGroup[Told]()
        self._open.append(group)
        return group

    def _rebuildable(self, group: CodingGroup[Told]) -> Iterator[Rebuild[Told]]:
        missing = [row for row in group.rows if row not in group.told]
        if group.parity is None or len(missing) != 1 or missing[0] not in group.late:
            return
        others = tuple(group.told[row] for row in group.rows if row != missing[0])
        parity = group.parity
        self._end(group)
        yield Rebuild(missing[0], parity, others)

    def _leave(self, group: CodingGroup[Told], row: RowKey) -> None:
        del group.rows[row], self._of[row]
        if not group.rows:
            self._open.remove(group)

    def _end(self, group: CodingGroup[Told]) -> None:
        if group.is_over:
            return
        group.is_over = True
        for row in group.rows:
            self._of.pop(row, None)
