"""Rows of one request that are alike: the same members answered them, are at it, and left them as sure.

A thousand rows are one thing until something tells them apart: a batch that takes some of them, or a member
that is surer of some than of others. Knows neither members nor policies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from server.ensemble.selection import GOLDEN
from server.scheduling.policy import RowRun
from server.scheduling.terms import Slice

if TYPE_CHECKING:
    from server.scheduling.row_buckets import RowBucket

__all__ = ["Order", "PooledRequest", "RowGroup", "in_one_piece", "laid_out"]

Order = tuple[int, float]  # higher priority first, then the sooner goal


class PooledRequest:
    """What rows that came together have in common.

    least: the accuracy that is asked for them, as one of those that plans have
    groups: those of its rows that have neither been answered nor given up · left: how many rows those are
    """

    __slots__ = ("draw", "groups", "least", "left", "order", "run")

    def __init__(self, run: RowRun, draw: float, least: float | None = None) -> None:
        self.run = run
        self.draw = draw
        self.order: Order = (-run.priority, run.due_s)
        self.groups: dict[RowGroup, None] = {}
        self.left = run.rows
        self.least = least

    def draw_of(self, row: int) -> float:
        """A row's own number in [0, 1)."""
        at = row - self.run.offset
        return (self.draw + at * GOLDEN) % 1 if at else self.draw

    def part(self, first: int, rows: int) -> RowRun:
        """So many consecutive rows of it, as others know them."""
        return self.run if rows == self.run.rows else self.run.part(first, rows)


@dataclass(slots=True, eq=False)
class RowGroup:
    """`rows`: their numbers within the request. subset, under_way: bit masks of members.

    order: of its request · places: batch under way → which rows of the batch these are
    bucket: where they wait, if they do · is_late: their goal has passed, and what comes first is their answer
    states: of each row, where `state` is but the first of those that the subset has
    parts: the groups, in different states, that it was put together of while a batch runs
    """

    request: PooledRequest
    order: Order
    rows: Sequence[int]
    count: int
    subset: int = 0
    under_way: int = 0
    state: int = 0
    places: dict[int, Sequence[int]] = field(default_factory=dict)
    bucket: RowBucket | None = None
    is_late: bool = False
    states: Sequence[int] | None = None
    parts: Sequence[RowGroup] = ()
    _run: RowRun | None = None

    @classmethod
    def of(cls, request: PooledRequest) -> RowGroup:
        """All rows of a request that has just come."""
        run = request.run
        group = cls(request, request.order, range(run.offset, run.offset + run.rows), run.rows)
        request.groups[group] = None
        return group

    @classmethod
    def together(cls, groups: Sequence[RowGroup]) -> RowGroup:
        """Groups of one request as one, until the answer comes that they are about to be asked for.

        The same members have answered them all, and nobody is at them. What they have been told apart by is
        nothing beside what the next answer says.
        """
        first, *others = groups
        if not others:
            return first
        whole = first._like(sorted([row for each in groups for row in each.rows]), {})
        whole.parts = groups
        for each in groups:
            del first.request.groups[each]
        return whole

    def apart(self) -> Sequence[RowGroup]:
        """The groups that it was put together of, in its place: no answer has come."""
        if not self.parts:
            return (self,)
        of = self.request.groups
        del of[self]
        for each in self.parts:
            each.is_late = self.is_late
            of[each] = None
        return self.parts

    @property
    def least(self) -> float | None:
        """The accuracy that is asked for them."""
        return self.request.least

    def run(self, most: int) -> RowRun:
        """So many of the rows, or all, as a batching policy sees them."""
        count = min(most, self.count)
        if self._run is None or self._run.rows != count:
            self._run = self.request.part(self.rows[0], count)
        return self._run

    def runs(self) -> list[RowRun]:
        """The rows, as others know them."""
        return [self.request.part(first, rows) for first, rows in in_one_piece(self.rows)]

    def head(self, count: int) -> RowGroup:
        """The first rows, cut off as a group of their own; the others stay."""
        head = self._like(self.rows[:count], {batch: at[:count] for batch, at in self.places.items()})
        if self.states is not None:
            head.states, self.states = self.states[:count], self.states[count:]
        self._run = None
        self.rows = self.rows[count:]
        self.count -= count
        self.places = {batch: at[count:] for batch, at in self.places.items()}
        return head

    def pick(self, indices: Sequence[int]) -> RowGroup:
        """These of the rows as a group of their own; to be done with all before this group is forgotten."""
        places: dict[int, Sequence[int]] = {}
        for batch, at in self.places.items():
            places[batch] = [at[index] for index in indices]
        rows = self.rows
        picked = self._like([rows[index] for index in indices], places)
        if self.states is not None:
            picked.states = [self.states[index] for index in indices]
        return picked

    def join(self, other: RowGroup) -> bool:
        """Take in rows of the same evidence, if they are of the same request and none is under way."""
        if other.request is not self.request or self.places or other.places:
            return False
        if (self.states is None) != (other.states is None):
            return False
        if self.states is not None and other.states is not None:
            self.states = [*self.states, *other.states]
        if not isinstance(self.rows, list):
            self.rows = list(self.rows)
        self.rows.extend(other.rows)
        self._run = None
        self.count += other.count
        del self.request.groups[other]
        return True

    def _like(self, rows: Sequence[int], places: dict[int, Sequence[int]]) -> RowGroup:
        request = self.request
        other = RowGroup(
            request,
            self.order,
            rows,
            len(rows),
            self.subset,
            self.under_way,
            self.state,
            places,
            None,
            self.is_late,
        )
        request.groups[other] = None
        return other


def in_one_piece(rows: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(first, how many) of the rows that follow one another."""
    if isinstance(rows, range):
        yield rows.start, len(rows)
        return
    first = last = rows[0]
    for row in rows[1:]:
        if row != last + 1:
            yield first, last + 1 - first
            first = row
        last = row
    yield first, last + 1 - first


def laid_out(groups: Sequence[RowGroup], batch_id: int) -> tuple[Slice, ...]:
    """Give the rows of groups their places in a batch, and say in which slices they stand there.

    In the order of the groups; but those of one request, where they come one after the other, stand by their
    rows' numbers: rows that are told apart by how sure they are lie scattered, and each slice costs.
    """
    slices: list[Slice] = []
    last: Slice | None = None
    at = place = 0
    while at < len(groups):
        group = groups[at]
        request = group.request
        end = at + 1
        while end < len(groups) and groups[end].request is request:
            end += 1
        rows = group.rows
        in_order = end == at + 1 and (group.count == 1 or isinstance(rows, range))
        if not in_order:
            rows = sorted([row for each in groups[at:end] for row in each.rows])
            in_order = rows == group.rows
        if in_order:
            group.places[batch_id] = range(place, place + group.count)
        else:
            place_of = {row: number for number, row in enumerate(rows, place)}
            for each in groups[at:end]:
                each.places[batch_id] = [place_of[row] for row in each.rows]
        request_id = request.run.request_id
        for first, count in in_one_piece(rows):
            if last is not None and last.request_id == request_id and last.offset + last.rows == first:
                last = slices[-1] = Slice(request_id, last.offset, last.rows + count)
            else:
                last = Slice(request_id, first, count)
                slices.append(last)
        at, place = end, place + len(rows)
    return tuple(slices)
