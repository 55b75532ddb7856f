"""Rows whose batch does not come back in time: sent to another worker too, or rebuilt from a parity model.

    a batch leaves ─→ sent ─┬─→ a timer ─→ late: sent anew, or answered as soon as it can be rebuilt
                            └─→ (parity) groups that are full ─→ a call of the parity model ─→ coded ─┐
    it comes back ─→ answered: what its rows say of their groups' other rows ──────────────────┴─→ rebuilt

Which rows make a group, and which can be rebuilt, is decided by `server.scheduling.stragglers`. The parity
model is asked by calls of its own, whose rows wait and run as any others; one that no group needs any more is
taken back. Only interactive rows of functions that say so. Runs on the event loop.
"""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from gpu_worker.wire.protocol import Column
from gpu_worker.wire.row_groups import in_one_row
from server.catalog.functions import Form, Function
from server.catalog.late_rows import HEDGE
from server.ensemble.answer import FunctionAnswer
from server.ensemble.parity import Scores, rebuilt_answer, rebuilt_scores
from server.errors import ServiceError
from server.observability.metrics import Metrics
from server.scheduling.core import Slice
from server.scheduling.stragglers import CodingGroup, CodingGroups, Rebuild, RowKey, late_after_s
from server.scheduling.terms import LatencyByKind
from server.serving.answers import answers_of
from server.serving.calls import Call, PendingReply
from server.serving.in_flight import BatchInFlight
from server.serving.scheduler_adapter import LatencyOf

__all__ = ["LateRowsHost", "LateRowsOf"]

_MOST_COPIES = 2  # of a row that is sent anew: the first copy may wait behind the same worker


class LateRowsHost(Protocol):
    """The dispatcher, as far as it is asked."""

    def begin(self, call: Call) -> PendingReply:
        """Queue a call's rows."""
        ...

    def end(self, pending: PendingReply) -> None:
        """Forget a call."""
        ...

    def pending_of(self, request_id: int) -> PendingReply | None:
        """A call under way."""
        ...

    def resend(self, pending: PendingReply, part: Slice) -> None:
        """Queue rows once more."""
        ...

    def workers_holding(self, model: str) -> int:
        """On how many workers a model may be asked."""
        ...

    def after(self, delay_s: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        """Have something called later."""
        ...


@dataclass(frozen=True, slots=True)
class _Alike:
    """What rows have in common that one parity model may be asked of together."""

    function: str
    form: Form
    media_roots: tuple[str, ...] | None


@dataclass(slots=True, eq=False)
class _Asked:
    """A call of a parity model. groups: one for each of its rows"""

    groups: Sequence[CodingGroup[Scores]]
    pending: PendingReply
    alike: _Alike


@dataclass(slots=True, eq=False)
class LateRowsOf:
    """One for a dispatcher."""

    host: LateRowsHost
    metrics: Metrics
    latency_of: LatencyOf
    _timers: dict[int, asyncio.TimerHandle] = field(default_factory=dict)  # by batch
    _groups: dict[_Alike, CodingGroups[Scores]] = field(default_factory=dict)
    _asked: dict[int, _Asked] = field(default_factory=dict)  # by the request of the parity model
    _copies: dict[int, bytearray] = field(default_factory=dict)  # by request: of each row

    def sent(self, sent: BatchInFlight) -> None:
        """A batch has left for its worker."""
        function, batch = sent.function, sent.batch
        if function.late_rows is None:
            return
        calls = [(part, self.host.pending_of(part.request_id)) for part in batch.slices]
        urgent = [
            (part, pending)
            for part, pending in calls
            if pending is not None and pending.call.row_class == "interactive" and not pending.done
        ]
        if not urgent:
            return
        model, form = function.members[0], urgent[0][1].call.form
        known = self.latency_of(model)
        if isinstance(known, LatencyByKind):
            known = known.on(sent.worker.info.device_name, form)
        predicted_s = known(batch.rows) if getattr(known, "is_known", True) else None
        after_s = late_after_s(function.late_rows.after_s, predicted_s, function.slo_ms / 1000)
        self._timers[batch.batch_id] = self.host.after(after_s, lambda: self._late(sent))
        if function.parity is not None and form != "tensor":  # pictures alone can be encoded
            self._join(function, sent, urgent)

    def came_back(self, sent: BatchInFlight) -> None:
        """A batch is back, whatever it brings."""
        timer = self._timers.pop(sent.batch.batch_id, None)
        if timer is not None:
            timer.cancel()

    def answered(
        self,
        pending: PendingReply,
        part: Slice,
        first: int,
        answers: FunctionAnswer,
        faulty: Iterable[int],
    ) -> None:
        """Rows are about to be answered by their own batch, from its row `first` on. faulty: of the batch."""
        if pending.call.function.parity is None:
            return
        groups = self._groups.get(_alike(pending.call))
        column = answers.columns.get("scores")
        if groups is None or not len(groups):
            return
        bad = set(faulty)
        told = None if column is None else _scores(column)
        for row in range(part.rows):
            said = None if told is None or first + row in bad else told[first + row]
            key = (part.request_id, part.offset + row)
            self._rebuild(list(groups.answered(key, said)))
        self._take_back(_alike(pending.call))

    def ended(self, pending: PendingReply) -> None:
        """A call is over: answered, or nobody waits for it."""
        self._copies.pop(pending.request_id, None)
        self._asked.pop(pending.request_id, None)
        if pending.call.function.parity is None:
            return
        alike = _alike(pending.call)
        groups = self._groups.get(alike)
        if groups is not None:
            groups.forget((pending.request_id, row) for row in range(len(pending.call.rows)))
            self._take_back(alike)
            if not len(groups):
                self._groups.pop(alike, None)

    def forget(self, function: Function) -> None:
        """A version is served no more."""
        for alike in [each for each in self._groups if each.function == function.key]:
            del self._groups[alike]

    # ── late ─────────────────────────────────────────────────────────────────────────────────────────

    def _late(self, sent: BatchInFlight) -> None:
        self._timers.pop(sent.batch.batch_id, None)
        function = sent.function
        for part in sent.batch.slices:
            pending = self.host.pending_of(part.request_id)
            if pending is None or pending.done or pending.call.row_class != "interactive":
                continue
            for left in pending.unanswered(part):
                if function.late_rows is not None and function.late_rows.by == HEDGE:
                    self._send_anew(pending, left)
                    continue
                groups = self._groups.get(_alike(pending.call))
                for row in range(left.rows) if groups is not None else ():
                    assert groups is not None
                    self._rebuild(list(groups.late((left.request_id, left.offset + row))))

    def _send_anew(self, pending: PendingReply, part: Slice) -> None:
        copies = self._copies.setdefault(pending.request_id, bytearray(len(pending.call.rows)))
        rows = [row for row in range(part.offset, part.offset + part.rows) if copies[row] < _MOST_COPIES]
        first = 0
        for at, row in enumerate(rows):
            copies[row] += 1
            if at + 1 == len(rows) or rows[at + 1] != row + 1:
                self.host.resend(pending, Slice(pending.request_id, rows[first], at + 1 - first))
                first = at + 1
        self.metrics.of(pending.call.function).resent_rows += len(rows)

    # ── groups ───────────────────────────────────────────────────────────────────────────────────────

    def _join(
        self, function: Function, sent: BatchInFlight, urgent: Sequence[tuple[Slice, PendingReply]]
    ) -> None:
        """Its rows go into groups; what is full with them is asked of the parity model."""
        assert function.late_rows is not None
        by: defaultdict[_Alike, list[RowKey]] = defaultdict(list)
        for part, pending in urgent:
            for left in pending.unanswered(part):
                by[_alike(pending.call)] += [(part.request_id, left.offset + row) for row in range(left.rows)]
        workers = self.host.workers_holding(function.members[0].key)
        for alike, rows in by.items():
            groups = self._groups.setdefault(alike, CodingGroups(function.late_rows.k))
            full = groups.sent(sent.batch.batch_id, sent.worker.name, rows, workers)
            if full:
                self._ask(function, alike, groups, full)

    def _ask(
        self,
        function: Function,
        alike: _Alike,
        groups: CodingGroups[Scores],
        full: Sequence[CodingGroup[Scores]],
    ) -> None:
        coded = function.coded
        assert coded is not None
        rows: list[bytes] = []
        asked: list[CodingGroup[Scores]] = []
        deadline_s = 0.0
        for group in full:
            calls = [(self.host.pending_of(request), row) for request, row in group.rows]
            there = [(pending.call, row) for pending, row in calls if pending is not None]
            if len(there) < len(calls):  # a call of it was answered meanwhile: its row is not here any more
                list(groups.coded(group, None))
                continue
            rows.append(in_one_row([call.rows[row] for call, row in there]))
            asked.append(group)
            deadline_s = max(deadline_s, *(call.deadline_s for call, _ in there))
        if not rows:
            return
        call = Call(
            coded,
            alike.form,
            rows,
            sum(map(len, rows)),
            outputs=("scores",),
            deadline_s=deadline_s or math.inf,
            is_traffic=False,
            is_part=True,
            answer_cache=False,
            media_roots=alike.media_roots,
        )
        try:
            pending = self.host.begin(call)
        except ServiceError:  # no room: the groups are without protection
            for group in asked:
                list(groups.coded(group, None))
            return
        self.metrics.of(function).parity_rows += len(rows)
        self._asked[pending.request_id] = one = _Asked(asked, pending, alike)
        pending.listen(self._parity_over, one)

    def _parity_over(self, pending: PendingReply, one: _Asked) -> None:
        if one.pending.request_id not in self._asked:
            return  # it was taken back
        groups = self._groups.get(one.alike)
        reply = None if isinstance(pending.outcome, BaseException) else pending.outcome
        self.host.end(pending)
        if groups is None:
            return
        column = None if reply is None else reply.columns.get("scores")
        told = None if column is None else _scores(column)
        for row, group in enumerate(one.groups):
            is_told = told is not None and reply is not None and row not in reply.errors
            self._rebuild(list(groups.coded(group, told[row] if is_told and told is not None else None)))

    def _take_back(self, alike: _Alike) -> None:
        """Calls of the parity model that no group needs any more leave the queue."""
        for one in [each for each in self._asked.values() if each.alike == alike]:
            if all(group.is_over for group in one.groups):
                self._asked.pop(one.pending.request_id, None)
                self.host.end(one.pending)

    def _rebuild(self, found: Iterable[Rebuild[Scores]]) -> None:
        for each in found:
            request_id, row = each.row
            pending = self.host.pending_of(request_id)
            if pending is None or pending.done or pending.call.function.parity is None:
                continue
            function, part = pending.call.function, Slice(request_id, row, 1)
            if not pending.unanswered(part):
                continue
            assert function.parity is not None
            scores = rebuilt_scores(each.parity, each.others)
            answer = rebuilt_answer(function.parity.key, function.classes, scores)
            self.metrics.of(function).rebuilt_rows += 1
            pending.answer(part, 0, answers_of(function, answer, 1))


def _alike(call: Call) -> _Alike:
    return _Alike(call.function.key, call.form, call.media_roots)


def _scores(column: Column) -> Scores:
    """[rows, classes] of a column of probabilities."""
    return np.frombuffer(column.data, "<f4").reshape(column.rows, -1)  # type: ignore[arg-type]  # numbers
