"""The rows of one lane and class that wait, a queue for each tenant: whose turn it is, its own order decides.

Higher priority goes first, whoever's rows have it; then the tenant that has had least (turns.py), of those
alike the one with the earliest goal. With rows of one tenant it is that tenant's queue and nothing else.
Knows nothing of batches or workers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from heapq import heapify, heappop, heappush, merge

from server.scheduling.policy import RowRun
from server.scheduling.row_queue import RowQueue
from server.scheduling.terms import Slice
from server.scheduling.turns import Turns

__all__ = ["TenantQueue"]

_STALE = 64  # ranks that hold no longer are kept until there are so many more than tenants
_Rank = tuple[int, float, float, int, str]  # -priority, where it begins, goal, order of ranking, tenant


class TenantQueue:
    """`rows` and `nbytes` are totals of all tenants."""

    __slots__ = (
        "_ahead_s",
        "_order",
        "_queues",
        "_rank_of",
        "_ranks",
        "_sole",
        "_tenant",
        "_tenants_of",
        "_turns",
        "nbytes",
        "rows",
    )

    def __init__(self, turns: Turns) -> None:
        self.rows = 0
        self.nbytes = 0.0
        self._turns = turns
        self._tenant = ""
        self._sole: RowQueue | None = RowQueue()  # while there is one tenant: its queue
        self._queues: dict[str, RowQueue] = {}  # of several; none is empty
        self._tenants_of: dict[int, str] = {}  # by request, of several
        self._ranks: list[_Rank] = []  # heap; who has had more since is ranked anew when it comes first
        self._rank_of: dict[str, _Rank] = {}
        self._order = 0
        self._ahead_s: dict[str, float] = {}  # where tenants begin once what is being taken is charged

    @property
    def is_shared(self) -> bool:
        """Whether rows of several tenants wait."""
        return self._sole is None

    @property
    def tenant(self) -> str:
        """Whose turn it is."""
        return self._tenant if self._sole is not None else self._first()

    @property
    def begins_s(self) -> float:
        """Where the tenant begins whose turn it is; one who begins sooner has had less."""
        return self._turns.begins_s(self.tenant)

    def in_turn(self, heavy: Collection[str]) -> Collection[str]:
        """The tenant whose turn it is, if it is one of these; else all the others."""
        tenant = self.tenant
        return (tenant,) if tenant in heavy else [each for each in self._queues if each not in heavy]

    @property
    def first(self) -> RowRun:
        """Of the tenant whose turn it is. Raises IndexError if nothing waits."""
        return self._next.runs[0]

    @property
    def rows_in_turn(self) -> int:
        """How many rows the tenant has whose turn it is."""
        return self._next.rows

    def view(self, of: Collection[str] | None = None) -> tuple[Sequence[RowRun], int]:
        """The runs of these tenants, or of all, by priority and goal, and how many rows they are.

        To read and not to keep.
        """
        if self._sole is not None:
            return self._sole.runs, self.rows
        queues = self._queues.values() if of is None else [self._queues[tenant] for tenant in of]
        return list(_by_goal(queues)), sum(queue.rows for queue in queues)

    def rows_of(self, tenant: str) -> int:
        """Rows of a tenant."""
        if self._sole is not None:
            return self.rows if tenant == self._tenant else 0
        queue = self._queues.get(tenant)
        return 0 if queue is None else queue.rows

    def rows_before(self, tenant: str, priority: int, due_s: float) -> int:
        """How many rows of a tenant would run before one of it that came now, at least."""
        queue = self._sole if tenant == self._tenant else None
        if self._sole is None:
            queue = self._queues.get(tenant)
        return 0 if queue is None else queue.rows_before(priority, due_s)

    def by_goal(self, of: Collection[str] | None = None) -> Iterable[RowRun]:
        """The runs of these tenants, or of all, in the order of priority and goal."""
        if self._sole is not None:
            return self._sole.runs
        return _by_goal(self._queues.values() if of is None else [self._queues[tenant] for tenant in of])

    def __contains__(self, request_id: int) -> bool:
        return request_id in (self._tenants_of if self._sole is None else self._sole)

    def add(self, run: RowRun) -> None:
        """Queue a run."""
        if self._sole is not None and (run.tenant == self._tenant or not self.rows):
            if not self.rows:
                self._tenant = run.tenant
                self._turns.waits(run.tenant, 1)
            self._sole.add(run)
            self.rows, self.nbytes = self._sole.rows, self._sole.nbytes
            return
        if self._sole is not None:
            self._part(self._sole)
        queue = self._queues.get(run.tenant)
        if queue is None:
            queue = self._queues[run.tenant] = RowQueue()
            self._turns.waits(run.tenant, 1)
        queue.add(run)
        self._tenants_of[run.request_id] = run.tenant
        self.rows += run.rows
        self.nbytes += run.rows * run.row_bytes
        if queue.runs[0] is run:
            self._rank(run.tenant)

    def after(self, skip: int, of: Collection[str] | None = None) -> RowRun:
        """The run after so many rows of these tenants, or of all, by goal. Raises IndexError past the end."""
        if self._sole is not None:
            return self._sole.after(skip)
        for run in self.by_goal(of):
            if skip < run.rows:
                return run
            skip -= run.rows
        raise IndexError(f"no row after {skip} more than the queue holds")

    def take(self, rows: int, skip: int = 0, of: Collection[str] | None = None) -> list[RowRun]:
        """Remove rows of these tenants, or of all, by goal, after the `skip` first ones.

        Raises ValueError if there are not so many.
        """
        if self._sole is not None:
            taken = self._sole.take(rows, skip)
            self._left_sole(self._sole)
            return taken
        parts = self._parts(rows, skip, of)
        taken = [run for tenant, part in parts.items() for run in self._queues[tenant].take(*part)]
        self._left(parts, taken)
        return taken

    def take_in_turn(
        self,
        rows: int,
        row_s: float,
        *,
        without: Collection[str] = (),
        joins: Callable[[RowRun, int], int] | None = None,
    ) -> list[RowRun]:
        """Remove up to `rows` rows, of each tenant as many as are due to it; their priorities go first.

        row_s: what a row takes. without: tenants that have their part already. joins: how many rows of a run
        may be taken beside so many, when it is its turn; with 0 its tenant has none after it.
        """
        if self._sole is not None:
            if not without and joins is None:
                return self.take(min(rows, self.rows)) if self.rows else []
            self._part(self._sole)
        taken: list[RowRun] = []
        left = rows
        touched: dict[str, None] = {}
        for tenant in without:
            if self._rank_of.pop(tenant, None) is not None:
                touched[tenant] = None
        while left and self._rank_of:
            tenant = self._first()
            touched[tenant] = None
            queue = self._queues[tenant]
            head = queue.runs[0]
            most = min(left, head.rows)
            if joins is not None:
                most = min(most, joins(head, rows - left))
            if most < 1:
                del self._rank_of[tenant]
                continue
            begins_s, a_row_s = self._begins_s(tenant), row_s / self._turns.weight(tenant)
            most = min(most, self._due_rows(begins_s, a_row_s, -head.priority))
            taken += queue.take(most)
            left -= most
            self._ahead_s[tenant] = begins_s + most * a_row_s
            if queue.rows:
                self._rank(tenant)
            else:
                del self._rank_of[tenant]
        self._ahead_s.clear()
        self._left(touched, taken)
        return taken

    def remove(self, request_id: int) -> list[RowRun]:
        """Take out what is left of a request; empty if it is not here."""
        return self._remove(request_id, lambda queue: queue.remove(request_id))

    def remove_part(self, part: Slice) -> list[RowRun]:
        """Take out those of these rows of a request that are here."""
        return self._remove(part.request_id, lambda queue: queue.remove_part(part))

    def clear(self) -> list[RowRun]:
        """Take out everything."""
        if self._sole is not None:
            gone = self._sole.clear()
            self._left_sole(self._sole)
            return gone
        gone = [run for queue in self._queues.values() for run in queue.clear()]
        self._left(list(self._queues), gone)
        return gone

    def _remove(self, request_id: int, take: Callable[[RowQueue], list[RowRun]]) -> list[RowRun]:
        if self._sole is not None:
            gone = take(self._sole)
            self._left_sole(self._sole)
            return gone
        tenant = self._tenants_of.get(request_id)
        if tenant is None:
            return []
        gone = take(self._queues[tenant])
        self._left([tenant], gone)
        return gone

    @property
    def _next(self) -> RowQueue:
        return self._sole if self._sole is not None else self._queues[self._first()]

    def _begins_s(self, tenant: str) -> float:
        ahead_s = self._ahead_s.get(tenant)
        return self._turns.begins_s(tenant) if ahead_s is None else ahead_s

    def _first(self) -> str:
        """Of several, whose turn it is."""
        while True:
            rank = self._ranks[0]
            tenant = rank[4]
            if self._rank_of.get(tenant) != rank:
                heappop(self._ranks)
            elif self._begins_s(tenant) > rank[1]:
                self._rank(tenant)
            else:
                return tenant

    def _parts(self, rows: int, skip: int, of: Collection[str] | None) -> dict[str, tuple[int, int]]:
        """Tenant → how many rows of it, after how many, are the rows after the `skip` first ones by goal."""
        there = self.rows if of is None else sum(self._queues[tenant].rows for tenant in of)
        if rows < 1 or skip < 0 or skip + rows > there:
            raise ValueError(f"cannot take {rows} rows after {skip} of a queue of {there}")
        skipped: dict[str, int] = {}
        parts: dict[str, tuple[int, int]] = {}
        for run in self.by_goal(of):
            over = min(skip, run.rows)
            skip -= over
            skipped[run.tenant] = skipped.get(run.tenant, 0) + over
            count = min(rows, run.rows - over)
            if count:
                before, first = parts.get(run.tenant, (0, skipped[run.tenant]))
                parts[run.tenant] = before + count, first
                rows -= count
            if not rows:
                break
        return parts

    def _due_rows(self, begins_s: float, a_row_s: float, order: int) -> int:
        """How many rows of the first tenant there are until the next one has had less."""
        others = [rank for rank in self._ranks[1:3] if rank[0] == order]  # one of these is the second
        if not others or a_row_s <= 0:
            return sys.maxsize
        return 1 + int(max(0.0, min(others)[1] - begins_s) / a_row_s)

    def _rank(self, tenant: str) -> None:
        head = self._queues[tenant].runs[0]
        self._order += 1
        rank = (-head.priority, self._begins_s(tenant), head.due_s, self._order, tenant)
        self._rank_of[tenant] = rank
        heappush(self._ranks, rank)
        if len(self._ranks) > 2 * len(self._rank_of) + _STALE:
            self._ranks = list(self._rank_of.values())
            heapify(self._ranks)

    def _part(self, sole: RowQueue) -> None:
        """Other tenants come, and each has a queue."""
        self._sole = None
        if sole.rows:
            self._queues[self._tenant] = sole
            self._tenants_of = dict.fromkeys(sole.requests, self._tenant)
            self._rank(self._tenant)

    def _left_sole(self, sole: RowQueue) -> None:
        if self.rows and not sole.rows:
            self._turns.waits(self._tenant, -1)
        self.rows, self.nbytes = sole.rows, sole.nbytes

    def _left(self, tenants: Iterable[str], gone: Sequence[RowRun]) -> None:
        """Of several, rows of these have left."""
        for run in gone:
            queue = self._queues[run.tenant]
            if run.request_id not in queue:
                self._tenants_of.pop(run.request_id, None)
        self.rows -= sum(run.rows for run in gone)
        self.nbytes = self.nbytes - sum(run.rows * run.row_bytes for run in gone) if self.rows else 0.0
        for tenant in tenants:
            if self._queues[tenant].rows:
                self._rank(tenant)
            else:
                del self._queues[tenant]
                self._rank_of.pop(tenant, None)
                self._turns.waits(tenant, -1)
        if len(self._queues) < 2:
            self._alone()

    def _alone(self) -> None:
        """One is left, or none."""
        self._tenant, self._sole = next(iter(self._queues.items()), (self._tenant, RowQueue()))
        self._queues = {}
        self._tenants_of = {}
        self._ranks.clear()
        self._rank_of.clear()


def _by_goal(queues: Iterable[RowQueue]) -> Iterable[RowRun]:
    return merge(*(queue.runs for queue in queues), key=lambda run: (-run.priority, run.due_s))
