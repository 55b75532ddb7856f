"""Rows that wait for a member, in buckets of those about which the same is known, and which need the same.

A bucket holds rows of one tenant. Within it those of higher priority come first, then by their goal. Knows
neither members nor devices, nor whose turn it is.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import overload

import numpy as np
from numpy.typing import NDArray

from server.ensemble.selection import Choice
from server.scheduling.policy import RowRun
from server.scheduling.row_group import RowGroup

__all__ = ["RowBucket", "RowBuckets", "WaitingRuns", "in_order"]

_order = attrgetter("order")
_Key = tuple[int, int, int, Choice | None, float | None, str]


@dataclass(slots=True, eq=False)
class RowBucket:
    """Groups of the same subset, under way on the same members, in one state of evidence, and their choice.

    lot: whether that is what they drew, and other rows of the same evidence may have drawn another one
    least: the accuracy that is asked for them
    """

    subset: int
    under_way: int
    state: int
    choice: Choice
    lot: bool = False
    least: float | None = None
    tenant: str = ""
    groups: list[RowGroup] = field(default_factory=list)
    rows: int = 0

    @property
    def key(self) -> _Key:
        """By which it is found."""
        choice = self.choice if self.lot else None
        return self.subset, self.under_way, self.state, choice, self.least, self.tenant


class WaitingRuns(Sequence[RowRun]):
    """The first `rows` rows of groups, as a batching policy sees them: made as far as it looks at them."""

    def __init__(self, groups: Sequence[RowGroup], rows: int) -> None:
        self._groups, self._rows = groups, rows

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[RowRun]:
        left = self._rows
        for group in self._groups:
            if left <= 0:
                return
            yield group.run(left)
            left -= group.count

    @overload
    def __getitem__(self, at: int) -> RowRun: ...
    @overload
    def __getitem__(self, at: slice) -> list[RowRun]: ...
    def __getitem__(self, at: int | slice) -> RowRun | list[RowRun]:
        return self._groups[0].run(self._rows) if at == 0 else list(self)[at]


class RowBuckets:
    """`states`: how many states of evidence there are."""

    def __init__(self, states: int) -> None:
        self._buckets: dict[_Key, RowBucket] = {}
        self._states = states
        self._counts: dict[int, int] = {}  # waiting rows, by state of evidence; of many states there are none

    def __iter__(self) -> Iterator[RowBucket]:
        """None of them is empty."""
        return iter(self._buckets.values())

    def __bool__(self) -> bool:
        return bool(self._buckets)

    @property
    def counts(self) -> NDArray[np.float64]:
        """Waiting rows, by state of evidence."""
        counts = np.zeros(self._states)
        for state, rows in self._counts.items():
            counts[state] = rows
        return counts

    def tell_apart(self, states: int) -> None:
        """So many states of evidence there are from now on. Nothing may wait."""
        assert not self._buckets, "rows wait by other states"
        self._states = states
        self._counts.clear()

    def put(self, group: RowGroup, choice: Choice, lot: bool = False) -> None:
        """Have rows wait for what they need; with others of their request that do, they are one group."""
        request, state, rows = group.request, group.state, group.count
        least, tenant = request.least, request.run.tenant
        key = (group.subset, group.under_way, state, choice if lot else None, least, tenant)
        self._counts[state] = self._counts.get(state, 0) + rows
        bucket = self._buckets.get(key)
        if bucket is None:
            self._buckets[key] = group.bucket = RowBucket(
                group.subset, group.under_way, state, choice, lot, least, tenant, [group], rows
            )
            return
        groups = bucket.groups
        bucket.rows += rows
        at = len(groups)
        if group.order < groups[-1].order:
            at = bisect_right(groups, group.order, key=_order)
        if at and groups[at - 1].request is request and groups[at - 1].join(group):
            return
        group.bucket = bucket
        groups.insert(at, group)

    def take(self, groups: Iterable[RowGroup]) -> None:
        """Take out groups that wait."""
        taken: dict[RowBucket, list[RowGroup]] = {}
        for group in groups:
            bucket = group.bucket
            assert bucket is not None, "it waits"
            group.bucket = None
            bucket.rows -= group.count
            gone = taken.get(bucket)
            if gone is None:
                taken[bucket] = [group]
            else:
                gone.append(group)
        for bucket, gone in taken.items():
            self._fewer(bucket.state, sum([group.count for group in gone]))
            self._remove(bucket, gone)

    def head(self, group: RowGroup, count: int) -> RowGroup:
        """Take out the first rows of a group that waits; the others stay."""
        assert group.bucket is not None, "it waits"
        self._fewer(group.state, count)
        group.bucket.rows -= count
        return group.head(count)

    def _fewer(self, state: int, rows: int) -> None:
        left = self._counts[state] - rows
        if left:
            self._counts[state] = left
        else:
            del self._counts[state]

    def _remove(self, bucket: RowBucket, gone: Sequence[RowGroup]) -> None:
        groups = bucket.groups
        if len(gone) == len(groups):
            groups.clear()
            del self._buckets[bucket.key]
        elif len(gone) == 1:
            first = 0 if groups[0] is gone[0] else bisect_left(groups, gone[0].order, key=_order)
            del groups[groups.index(gone[0], first)]
        else:
            orders = [each.order for each in gone]
            first = bisect_left(groups, min(orders), key=_order)
            end = bisect_right(groups, max(orders), lo=first, key=_order)
            groups[first:end] = [each for each in groups[first:end] if each.bucket is bucket]


def in_order(lists: Sequence[Sequence[RowGroup]]) -> list[RowGroup]:
    """Groups of several buckets, as they would be asked."""
    merged = [group for groups in lists for group in groups]
    merged.sort(key=_order)
    return merged
