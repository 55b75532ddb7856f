"""Which of the rows of a pool a free worker could run next, as one batch, and on which member.

Those whose choice asks for a member that it holds; fresh ones that are too late for the members they ask, but
not for this one; else, of several workers, fresh ones that it would finish sooner; else up to 32 that would
gain by it. How many rows a batch takes is the batching policy's.

Where rows of several tenants wait, a batch is decided of those of the one whose turn it is (turns.py); rows
of the others fill it up, as far as all make their goals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from server.scheduling.policy import (
    SHORTEST_WAIT_S,
    DecidesAtEase,
    Dispatch,
    FunctionView,
    MemberView,
    Policy,
    Refuse,
    Wait,
    rows_within,
)
from server.scheduling.pool_workers import PoolWorker, PoolWorkers
from server.scheduling.row_buckets import RowBucket, RowBuckets, WaitingRuns, in_order
from server.scheduling.row_group import RowGroup
from server.scheduling.turns import Turns

__all__ = ["Offer", "Offers"]

_FILL_ROWS = 32
_FILL_GAIN = 1e-3
_IN_VIEW = 6  # batches of waiting rows that a decision looks at


@dataclass(slots=True, eq=False)
class Offer:
    """Rows that a free worker could run next on a member: `rows` of the groups', after the `skip` first ones.

    batching: the batching policy's state, once it is sent
    """

    member: int
    groups: Sequence[RowGroup]
    rows: int
    takes_s: float
    batching: dict[str, Any] | None = None
    skip: int = 0
    _parts: list[tuple[RowGroup, int]] | None = None

    @property
    def parts(self) -> list[tuple[RowGroup, int]]:
        """Of each group so many."""
        if self._parts is None:  # of several offers one is sent
            self._parts = _portion(self.groups, self.skip, self.rows)
        return self._parts

    @property
    def priority(self) -> int:
        """The highest of its rows: that of the first."""
        return -self._first.order[0]

    @property
    def due_s(self) -> float:
        """The soonest goal of its rows."""
        first = self._first
        if first.order[0] == self.groups[-1].order[0]:  # one priority: they come by their goals
            return first.order[1]
        return min(group.order[1] for group, _ in self.parts)

    @property
    def _first(self) -> RowGroup:
        return self.parts[0][0] if self.skip else self.groups[0]

    @property
    def gain(self) -> float:
        """How many more of its rows will be right for it, in expectation."""
        gain = 0.0
        for group, rows in self.parts:
            if group.bucket is not None and group.bucket.choice.worth:
                gain += rows * group.bucket.choice.worth[self.member]
        return gain

    @property
    def density(self) -> float:
        """What it brings per second; a row that nobody has answered counts for one more."""
        fresh = sum(rows for group, rows in self.parts if not group.subset)
        return (self.gain + fresh) / self.takes_s


class Offers:
    """Of the rows in `waiting`, to `workers`.

    give_up: is told of rows that nobody can answer in time · refuses: whether such rows are given up at all
    """

    def __init__(
        self,
        waiting: RowBuckets,
        workers: PoolWorkers,
        batching: Policy,
        give_up: Callable[[Sequence[RowGroup]], None],
        *,
        slo_s: float,
        max_batch: int,
        batch_sizes: tuple[int, ...],
        refuses: bool,
        turns: Turns,
    ) -> None:
        self._waiting, self._workers, self._batching = waiting, workers, batching
        self._give_up, self._refuses = give_up, refuses
        self._turns = turns
        self._slo_s, self._max_batch, self._batch_sizes = slo_s, max_batch, batch_sizes
        self._most = _IN_VIEW * max_batch
        self._at_ease = batching.at_ease if isinstance(batching, DecidesAtEase) else None
        self._soonest_s: dict[int, float] = {}  # by member: when it could have answered one row, now

    def to(self, now_s: float, worker: PoolWorker, *, may_try: bool = False) -> Offer | float:
        """What the worker could run next, or until when it has nothing to do here, if nothing happens.

        may_try: a row that is too late for it, to learn what that takes; else a wrong l̂ could have all rows
        refused, and never learn that it is wrong.
        """
        self._soonest_s.clear()
        offers: list[Offer] = []
        until_s = math.inf
        tried: Offer | None = None
        starts_s = worker.starts_s(now_s)
        asking = self._asking(now_s, worker)
        for member in worker.members:
            by_tenant = asking.get(member, [])
            for turn, groups in enumerate(by_tenant):
                found = self._cut(now_s, starts_s, member, groups)
                while isinstance(found, int):
                    lost, groups = groups[:found], groups[found:]
                    if may_try and starts_s <= now_s:
                        tried = Offer(member, lost[:1], 1, self._workers.members[member].latency_s(1))
                        break
                    self._give_up([group for group in lost if self._is_lost(now_s, group, member)])
                    asking = self._asking(now_s, worker)  # for the members that follow: some may have left
                    found = self._cut(now_s, starts_s, member, groups) if groups else math.inf
                if isinstance(found, Offer):
                    offers.append(self._filled_up(starts_s, found, by_tenant[turn + 1 :]))
                    break
                if isinstance(found, float):
                    until_s = min(until_s, found)
        if not offers and tried is not None:
            return tried
        if not offers and len(self._workers.by_name) > 1 and until_s == math.inf:
            offers = self._stolen(now_s, worker) or self._filling(now_s, worker)
        return self._chosen(worker.starts_s(now_s), offers) if offers else until_s

    def _cut(
        self, now_s: float, starts_s: float, member: int, groups: list[RowGroup], most: int | None = None
    ) -> Offer | float | int:
        """A batch of these rows, until when to wait for it, or how many of the first groups are lost to it.

        starts_s: when the worker could start it · most: how many of the rows are to be had.
        """
        known = self._workers.members[member]
        rows = groups[0].count if len(groups) == 1 else sum([group.count for group in groups])
        if most is not None:
            rows = min(rows, most)
        if self._at_ease is not None:
            taken = min(rows, self._max_batch)
            whole = self._at_ease(known.batching, known.latency_s, starts_s, groups[0].order[1], taken)
            if whole is not None:
                return Offer(member, groups, taken, whole[1], whole[0])
        about = self._workers.ensemble.members[member]
        view = FunctionView(
            now_s=now_s,
            slo_s=self._slo_s,
            max_batch=self._max_batch,
            batch_sizes=self._batch_sizes,
            queue=WaitingRuns(groups, rows),
            queued_rows=rows,
            members=(MemberView(about.name, about.accuracy, known.latency_s, starts_s),),
        )
        state, decision = self._batching.decide(known.batching, view)
        if isinstance(decision, Dispatch):
            taken = min(decision.rows, rows - decision.skip)
            takes_s = decision.expected_s or known.latency_s(taken)
            return Offer(member, groups, taken, takes_s, state, decision.skip)
        known.batching = state
        if isinstance(decision, Wait):
            return max(decision.until_s, now_s + SHORTEST_WAIT_S)
        assert isinstance(decision, Refuse)
        return _holding(groups, decision.rows)

    def _is_lost(self, now_s: float, group: RowGroup, member: int) -> bool:
        """Whether nobody else can answer the rows in time, which this member cannot."""
        if not self._refuses or group.under_way or group.bucket is None:
            return False
        choice = group.bucket.choice
        able = choice.ask if choice.only or group.subset else range(len(self._workers.members))
        return not any(each != member and self._fits(now_s, each, group) for each in able)

    def _filled_up(self, starts_s: float, offer: Offer, others: Sequence[Sequence[RowGroup]]) -> Offer:
        """The same with rows of other tenants, in their turn, as far as all of them make their goals."""
        own = sum([group.count for group in offer.groups]) - offer.skip
        if not others or own > offer.rows:
            return offer  # it is as long as it shall be
        latency_s = self._workers.members[offer.member].latency_s
        left_s = min(group.order[1] for group in offer.groups) - starts_s
        there = own + sum(group.count for groups in others for group in groups)
        most = rows_within(latency_s, min(there, self._max_batch), left_s)
        if most <= own:
            return offer
        finish_s = starts_s + latency_s(most)
        groups, rows = list(offer.groups), own
        for group in (group for each in others for group in each if group.order[1] >= finish_s):
            if rows >= most:
                break
            groups.append(group)
            rows += group.count
        rows = min(rows, most)
        return Offer(offer.member, groups, rows, latency_s(rows), offer.batching, offer.skip)

    def _asking(self, now_s: float, worker: PoolWorker) -> dict[int, list[list[RowGroup]]]:
        """By member of the worker, the waiting rows that want it, and strays: a list for each tenant, whose
        turn it is first; in it the soonest goal first.
        """
        lists: dict[int, dict[str, list[list[RowGroup]]]] = {}
        cheapest = worker.cheapest
        for bucket in self._waiting:
            ask = bucket.choice.ask
            for member in ask:
                if member in worker.members:
                    theirs = lists.setdefault(member, {}).setdefault(bucket.tenant, [])
                    theirs.append(bucket.groups[: self._most])
            if cheapest not in ask and self._may_stray(bucket, cheapest):
                strays = self._strays(now_s, cheapest, bucket)
                if strays:
                    lists.setdefault(cheapest, {}).setdefault(bucket.tenant, []).append(strays)
        return {member: self._in_turn(by_tenant) for member, by_tenant in lists.items()}

    def _in_turn(self, by_tenant: dict[str, list[list[RowGroup]]]) -> list[list[RowGroup]]:
        tenants = sorted(by_tenant, key=self._turns.begins_s) if len(by_tenant) > 1 else by_tenant
        parts = [by_tenant[tenant] for tenant in tenants]
        return [each[0] if len(each) == 1 else in_order(each) for each in parts]

    def _may_stray(self, bucket: RowBucket, member: int) -> bool:
        """Whether its rows may go to a member that they do not ask, which is not at them already."""
        fresh = not bucket.subset and not bucket.under_way >> member & 1
        return fresh and self._refuses and not bucket.choice.only

    def _strays(self, now_s: float, member: int, bucket: RowBucket) -> list[RowGroup]:
        """Fresh rows that are too late for those whom they ask, and not for this one."""
        strays: list[RowGroup] = []
        asked_s = min([self._answers_s(now_s, asked) for asked in bucket.choice.ask])
        for group in bucket.groups[: self._most]:
            if asked_s <= group.order[1]:
                break  # those behind have more time
            if self._fits(now_s, member, group):
                strays.append(group)
        return strays

    def _fits(self, now_s: float, member: int, group: RowGroup) -> bool:
        """Whether the member could still answer a row of them, alone, after what its worker is at."""
        return self._answers_s(now_s, member) <= group.order[1]

    def _answers_s(self, now_s: float, member: int) -> float:
        """When the member could have answered one row."""
        found = self._soonest_s.get(member)
        if found is None:
            found = self._soonest_s[member] = self._workers.finish_s(now_s, member, 1)
        return found

    def _stolen(self, now_s: float, worker: PoolWorker) -> list[Offer]:
        """Fresh rows that ask for others, and that this worker would finish sooner."""
        found: list[Offer] = []
        starts_s = worker.starts_s(now_s)
        for bucket in self._waiting:
            choice = bucket.choice
            if bucket.subset or choice.beside or choice.only:
                continue
            rows = min(bucket.rows, self._max_batch)
            theirs_s = min(self._workers.finish_s(now_s, asked, rows) for asked in choice.ask)
            for member in worker.members:
                cut = self._cut(now_s, starts_s, member, bucket.groups[: self._max_batch], rows)
                if isinstance(cut, Offer) and starts_s + cut.takes_s < theirs_s:
                    found.append(cut)
        return found

    def _filling(self, now_s: float, worker: PoolWorker) -> list[Offer]:
        """Rows that wait for others, and would gain by a member of this idle worker."""
        found: list[Offer] = []
        starts_s = worker.starts_s(now_s)
        for member in worker.members:
            groups = in_order(
                [
                    bucket.groups[:_FILL_ROWS]
                    for bucket in self._waiting
                    if bucket.choice.worth
                    and not bucket.choice.beside
                    and bucket.choice.worth[member] > _FILL_GAIN
                    and not (bucket.subset | bucket.under_way) >> member & 1
                ]
            )
            cut = self._cut(now_s, starts_s, member, groups[:_FILL_ROWS], _FILL_ROWS) if groups else 0
            if isinstance(cut, Offer):
                found.append(cut)
        return found

    def _chosen(self, start_s: float, offers: list[Offer]) -> Offer:
        """The fullest batch, if all others can still start after it; else by Moore and Hodgson's rule."""
        if len(offers) == 1:
            return offers[0]
        fullest = max(offers, key=self._fullness)
        after_s = start_s + fullest.takes_s
        if all(after_s + each.takes_s <= each.due_s for each in offers if each is not fullest):
            return fullest
        kept: list[Offer] = []
        for offer in sorted(offers, key=lambda each: each.due_s):
            kept.append(offer)
            if start_s + sum(each.takes_s for each in kept) > offer.due_s:
                kept.remove(min(kept, key=lambda each: each.density))
        return kept[0] if kept else max(offers, key=lambda each: each.density)

    def _fullness(self, offer: Offer) -> float:
        whole_s = self._workers.members[offer.member].latency_s(self._max_batch)
        return offer.rows * whole_s / offer.takes_s


def _portion(groups: Sequence[RowGroup], skip: int, rows: int) -> list[tuple[RowGroup, int]]:
    """So many rows, after the `skip` first ones; of a group it matters not which."""
    parts: list[tuple[RowGroup, int]] = []
    for group in groups:
        count = group.count
        if skip >= count:
            skip -= count
            continue
        count = min(count - skip, rows)
        skip = 0
        parts.append((group, count))
        rows -= count
        if not rows:
            break
    return parts


def _holding(groups: Sequence[RowGroup], rows: int) -> int:
    """How many of the first groups hold so many rows."""
    number = 0
    for group in groups:
        if rows <= 0:
            break
        rows -= group.count
        number += 1
    return number
