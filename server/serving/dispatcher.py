"""The live shell around the scheduler's core: rows wait here, batches leave from here, answers come back.

    begin ──→ core.submit ──→ pump: core.next_action ──→ worker.send ──→ answers_of ──→ PendingReply.answer
                 ↑               ↑ ↓ Idle(until)                │  │        ↑ all members
                 │               timer                          │  └─→ evidence: members on other workers
                 └──────────────────────── once more ───────────┘ worker lost

A function may follow plans (plans.py): then a row is asked of one member after the other, and the core says
from which of them it is answered. Owns payloads and futures by request id, the batches in flight, the clock.
Every decision is the core's.
Runs on the event loop alone, and what changes its state awaits nothing, so none changes under its feet.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVarTuple

from gpu_worker.wire.protocol import Answer, Failed, Message, RowError
from server.catalog.functions import Form, Function
from server.ensemble.answer import FunctionAnswer
from server.ensemble.gearing import FollowedPlans
from server.ensemble.selection import SelectionPolicy
from server.errors import (
    BadOption,
    Overloaded,
    RemoteUnavailable,
    ServiceError,
    ShuttingDown,
    VersionGone,
    WorkerLost,
)
from server.http.body import ClientGone
from server.observability.metrics import Metrics
from server.placement.policy import WaitingRows
from server.placement.residency import Group, Residency, ResidencyListener
from server.scheduling.core import (
    AnswerKnown,
    RefuseRows,
    Rejection,
    RunBatch,
    Scheduler,
    Slice,
    Waiting,
    WorkerView,
)
from server.scheduling.policies.by_name import check_policy
from server.serving.absent import MemberOut, asked_now, faulty_rows, unanswered
from server.serving.answers import answers_of, check_members, part_of
from server.serving.calls import Call, PendingReply
from server.serving.contexts import Contexts
from server.serving.evidence import Span
from server.serving.in_flight import BatchInFlight, InFlight
from server.serving.known import combine_known
from server.serving.late_rows import LateRowsOf
from server.serving.like_rows import LikeRows
from server.serving.outcomes import Outcomes
from server.serving.quarantine import REFUSALS, REFUSED_S, Quarantine
from server.serving.scheduler_adapter import (
    LatencyOf,
    QueueBounds,
    error_of,
    late_of,
    overdue_of,
    spec_of,
    submission_of,
    submission_of_like,
    times_of,
)
from server.serving.selecting import Selecting
from server.serving.shared_calls import SharedCall
from server.supervision import Tasks
from server.workers.pool import Worker, shares_cores

__all__ = ["Dispatcher"]

log = logging.getLogger("ml_udf.server.dispatcher")

# Of a batch that could not be run, or need not be: its rows run once more, those that anybody waits for.
_AGAIN = frozenset(("worker_lost", "unknown_function", "overloaded", "cancelled", "remote_unavailable"))
_REST_S = 0.004  # at the most, between two looks for new rows
_BUSY_REST_S = 0.001
_REST_OF_GOAL = 0.04  # and no more of the least goal that waits, or that there is

_Args = TypeVarTuple("_Args")


class Dispatcher:
    """`latency_of(model)` is l̂ of a model, one object per model.

    `residency_of(listener)` is where models are kept; each of the two calls the other, so it is made here.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        bounds: QueueBounds,
        latency_of: LatencyOf,
        metrics: Metrics,
        residency_of: Callable[[ResidencyListener], Residency],
        tasks: Tasks | None = None,
        contexts: Contexts | None = None,
    ) -> None:
        self._core = scheduler
        self._bounds = bounds
        self._latency_of = latency_of
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._outcomes = Outcomes()
        self._functions: dict[str, Function] = {}
        self._least_goal_s: float | None = None  # of all functions; None = not looked for yet
        self._workers: dict[str, Worker] = {}
        self._pending: dict[int, PendingReply] = {}
        self._in_flight = InFlight(self._returned)
        self._quarantine = Quarantine(self)
        self._late_rows = LateRowsOf(self, metrics, latency_of)
        self._contexts = contexts or Contexts()
        self._selecting = Selecting(
            scheduler, self._functions, metrics, latency_of, tasks or Tasks(), self._held, self._wake
        )
        self._resident: dict[str, frozenset[str]] = {}  # worker → keys of what may be asked of it
        self._held_changes = 0
        self._retired: set[str] = set()  # workers that take no more rows
        self._ids = itertools.count(1)
        self._like = LikeRows(self._ids.__next__, scheduler.room)
        self._pump_soon: asyncio.Handle | None = None
        self._pump_at: asyncio.TimerHandle | None = None
        self._idle_until_s = 0.0  # the core has nothing to do, unless something happens
        self._out: dict[str, MemberOut] = {}  # by model's key
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_draining = False
        self._arrived: dict[str, tuple[Function, int]] = {}  # interactive rows of this turn, by function
        self._came: dict[str, tuple[Function, int]] = {}  # the same of any class, as far as they were queued
        self.residency = residency_of(self)

    # ── what is served ──────────────────────────────────────────────────────────────────────────────

    def check(self, function: Function) -> None:
        """Raises `BadOption` if one of the function's policies, or an option of one, cannot be."""
        if function.pipeline is not None:  # its stages have policies
            return
        try:
            check_policy(function.policy, function.policy_options)
            self._selecting.check(function)
        except ValueError as exc:
            raise BadOption(f"function {function.name}: {exc}") from exc

    def configure(self, function: Function) -> None:
        """Serve a function, or serve it differently. Raises `BadOption` as `check` does.

        Of a pipeline the rows are counted; they come as its stages'.
        """
        if function.pipeline is not None:
            self._metrics.serve(function)
            return
        spec = spec_of(function, self._bounds, self._latency_of, self.residency.swap_s)
        try:
            self._core.configure(time.monotonic(), spec)
        except ValueError as exc:
            raise BadOption(str(exc)) from exc
        for candidate in function.candidates[1:] if not function.is_candidate else ():
            self.configure(function.by(candidate))
        if (coded := function.coded) is not None:
            self.configure(coded)
        self._functions[function.key] = function
        self._least_goal_s = None
        latencies_s = [member.latency for member in spec.members]
        self.residency.serve(
            function.key, function.asked, spec.slo_s, latencies_s, spec.max_batch, in_part=spec.pooled
        )
        self._metrics.serve(function)
        self._selecting.look(time.monotonic(), function, function.form)

    def answer_as(self, function: Function) -> None:
        """A version that is served answers by another rule from its next batch on; nothing else is new."""
        before = self._functions.get(function.key)
        if before is None:
            return
        self._functions[function.key] = function
        self._selecting.answer_as(before, function)

    async def learner(self, function: Function) -> SelectionPolicy | None:
        """The policy that the function follows, where that learns from feedback."""
        return await self._selecting.learner(function)

    def select_fault(self, function: Function) -> str | None:
        """Why the function's own selection policy was put aside for `value`; None where it was not."""
        return self._selecting.fault(function)

    def remove(self, function: Function) -> None:
        """Serve a version no longer; its waiting rows fail, those on a worker are answered."""
        if function.pipeline is not None:
            self._metrics.forget(function)
            return
        for candidate in function.candidates[1:] if not function.is_candidate else ():
            self.remove(function.by(candidate))
        if (coded := function.coded) is not None:
            self.remove(coded)
        gone = VersionGone(f"version {function.version} of {function.name} is no longer served")
        self._fail(self._like.own_slices(self._core.remove(time.monotonic(), function.key)), gone)
        for pending in self._like.forget(function.key):
            pending.fail(gone)
        self._wake()  # rows may be answered from what is known of them
        self._functions.pop(function.key, None)
        self._least_goal_s = None
        self.residency.serve_no_more(function.key)
        self._selecting.forget(function)
        self._contexts.forget(function)
        self._late_rows.forget(function)
        self._metrics.forget(function)

    def serves(self, key: str) -> bool:
        """Whether that version of a function, named with it, is served."""
        return key in self._functions

    def check_open(self) -> None:
        """Raises `ShuttingDown` once it takes no more calls."""
        if self._is_draining:
            raise ShuttingDown()

    def current(self, function: Function) -> Function:
        """That version of a function as it answers now. Raises `VersionGone`."""
        found = self._functions.get(function.key)
        if found is None:
            raise VersionGone(f"version {function.version} of {function.name} is no longer served")
        return found

    def saved_s(self, function: Function, form: Form, rows: int) -> float:
        """What each member of a batch after the first saves by what it shares with the others."""
        return self._core.saved_s(function.key, form, rows) if function.key in self._functions else 0.0

    def held(self) -> Collection[frozenset[str]]:
        """The models that each worker holds."""
        return self._resident.values()

    def held_changes(self) -> int:
        """How often what workers hold has changed."""
        return self._held_changes

    def backlog_s(self) -> dict[str, float]:
        """By worker, how long an interactive row that came now would wait there."""
        return self._core.backlog_s(time.monotonic())

    def holdings(self) -> Iterable[tuple[str, frozenset[str], str]]:
        """Each worker that is up, the keys of what it holds, and its kind."""
        return [
            (name, self._resident[name], worker.info.device_name) for name, worker in self._workers.items()
        ]

    def followed(self, function: Function, form: Form) -> FollowedPlans | None:
        """The plans that its rows of that form follow, or those of another; None where they follow none."""
        return self._selecting.followed(function, form)

    def workers(self) -> Collection[Worker]:
        """Those that live."""
        return self._workers.values()

    def served(self) -> Collection[Function]:
        """Every version that is served; of one by wish, as its first candidate answers it."""
        return [function for function in self._functions.values() if not function.is_candidate]

    def rest_s(self, *, is_busy: bool) -> float:
        """How long nobody need look for new rows; 0 = not at all.

        While rows wait and nothing of them is to be sent yet, to read each request as it comes wakes the
        event loop for one or two of them, and takes the core away from a worker's pass. Where workers have
        cores of their own nothing would be gained. And while the event loop is busy: what a turn and a batch
        take beside their rows is ten times what a row does, on either side.
        """
        return max(self._busy_rest_s() if is_busy else 0.0, self._waiting_rest_s())

    def _busy_rest_s(self) -> float:
        if self._least_goal_s is None:
            goals_ms = [function.slo_ms for function in self._functions.values()]
            self._least_goal_s = min(goals_ms, default=math.inf) / 1000
        return min(_BUSY_REST_S, _REST_OF_GOAL * self._least_goal_s)

    def _waiting_rest_s(self) -> float:
        """That of rows that would wait as long anyway."""
        if self._pump_soon is not None or not any(shares_cores(one.info) for one in self._workers.values()):
            return 0.0
        goal_s = self._core.least_goal_waiting_s()
        if goal_s == math.inf:
            return 0.0
        return min(_REST_S, _REST_OF_GOAL * goal_s, self._idle_until_s - time.monotonic())

    def shares(self) -> dict[str, float]:
        """Worker → the share of its time that interactive rows took in the last second or so."""
        return self._core.shares(time.monotonic())

    def queue_depth(self) -> dict[tuple[str, int], tuple[int, int]]:
        """(function, version) → rows and bytes that wait."""
        self._submit_due()
        found: dict[tuple[str, int], tuple[int, int]] = {}
        for key, (rows, nbytes) in self._core.queue_depth().items():
            function = self._functions[key]  # by wish, the rows of each candidate wait in a queue of its own
            known = found.get((function.name, function.version), (0, 0))
            found[function.name, function.version] = (known[0] + rows, known[1] + nbytes)
        return found

    def at_rest(self) -> bool:
        """Whether nobody waits for anything: no row in a queue, none on a worker."""
        return not self._pending

    # ── calls ─────────────────────────────────────────────────────────────────────────────────────────

    def begin(self, call: Call) -> PendingReply:
        """Queue a call's rows; `listen` to it, or await its `future`, then `end` it, whatever comes.

        Raises `Overloaded`, `DeadlineExceeded`, `VersionGone`; what only the turn's end shows of calls that
        are like one before them is their outcome.
        """
        if not call.is_part:
            self.check_open()
        now_s = time.monotonic()
        pending = PendingReply(self._outcomes, next(self._ids), call, now_s)
        if call.row_class == "interactive":
            _count_in(self._arrived, call)
        if self._out or not self._like.join(pending):
            if self._like.is_full:
                self._submit_due()
            rejection = self._submit(now_s, pending, 0, len(call.rows))
            if rejection is not None:
                self._tell_arrived()
                self.residency.lost(call.function.asked, len(call.rows))
                raise error_of(rejection, call.function, now_s)
            if pending.done:  # no member of it can be asked, and each row has that for its answer
                return pending
            self._like.begin(call)
            self._selecting.look(now_s, call.function, call.form)
        if call.function.late_members == "leave_out" and call.row_class == "interactive":
            goal_s = now_s + (call.function.slo_ms / 1000 if call.slo_s is None else call.slo_s)
            if goal_s < call.deadline_s:
                pending.timers = (self._call_at(goal_s, self._at_goal, pending),)
        self._begun(pending)
        return pending

    def _begun(self, pending: PendingReply) -> None:
        call = pending.call
        self._pending[pending.request_id] = pending
        self._idle.clear()
        if call.deadline_s < math.inf:
            pending.timers += (self._call_at(call.deadline_s, self._overdue, pending),)
        _count_in(self._came, call)
        self._wake()

    def begin_shared(self, call: Call) -> SharedCall | None:
        """As `begin`, of rows that are a client's each; None where they are to come one by one.

        Raises `VersionGone`, `ShuttingDown`; `DeadlineExceeded` where the first would be late, and so all.
        """
        self.check_open()
        room_rows, room_bytes = self._core.room(self.current(call.function).key)
        if self._out or room_rows < len(call.rows) or room_bytes < call.nbytes:
            return None
        now_s = time.monotonic()
        pending = SharedCall(self._outcomes, next(self._ids), call, now_s)
        rejection = self._submit(now_s, pending, 0, len(call.rows))
        if rejection is not None and rejection.code == "overloaded":
            return None  # there may be room for some of them
        _count_in(self._arrived, call)
        if rejection is not None:
            self._tell_arrived()
            self.residency.lost(call.function.asked, len(call.rows))
            raise error_of(rejection, call.function, now_s)
        self._selecting.look(now_s, call.function, call.form)
        self._begun(pending)
        return pending

    def end_shared(self, pending: SharedCall) -> None:
        """As `end`."""
        self.end(pending)

    def leave_shared(self, pending: SharedCall, row: int) -> None:
        """The client of a row has gone: it leaves the queue, and with the last one workers are told."""
        if pending.done or pending.is_over(row):
            return
        if pending.missing == 1:
            pending.fail(ClientGone())
        else:
            part = Slice(pending.request_id, row, 1)
            self._core.cancel_part(time.monotonic(), part)
            pending.fail_part(part, ClientGone())
            self._wake()

    def turned_away(self, function: Function, rows: int) -> None:
        """Rows came that nobody read: the residency counts them as those that were refused."""
        if function.key in self._functions:
            self.residency.arrived(function.asked, rows)
            self.residency.lost(function.asked, rows)

    def end(self, pending: PendingReply) -> None:
        """Forget a call. If it is not answered, its rows leave the queue and the workers at once."""
        self._pending.pop(pending.request_id, None)
        if not self._pending:
            self._idle.set()
        for timer in pending.timers:
            timer.cancel()
        guarded = pending.is_answered is not None
        if guarded or not pending.call.is_traffic:
            self._late_rows.ended(pending)
        # Answered rows may wait for a late member, or be there twice.
        if pending.missing or guarded or pending.evidence is not None:
            self._leave_queue(time.monotonic(), pending)
        if not pending.missing and not guarded:
            return  # a late member's batch runs on: what it takes is learned
        pending.cancel()
        self._in_flight.cancel_unwanted(pending.batches, self._pending)
        self._quarantine.leave(pending)
        self._wake()

    def fail_all(self, error: ServiceError) -> None:
        """End every call under way with an error."""
        for pending in self._pending.values():
            pending.fail(error)

    def end_hung_workers(self, patience_s: float) -> None:
        """Kill the workers that hang; their rows run again elsewhere.

        Patience is a multiple of what was predicted; `patience_s` with batches of which nothing is known.
        What rows wait for, and only a worker holds that may well hang, is loaded elsewhere meanwhile.
        """
        now_s = time.monotonic()
        doubtful = self._core.doubtful(now_s)
        for group in self.waited_for() if doubtful else ():
            self.residency.want(group, without=doubtful)
        for name, silent_s in self._core.hung(now_s, patience_s):
            rows = ", ".join(self._in_flight.on(self._workers[name]))
            self._workers[name].kill(f"it hangs: no batch came back for {silent_s:.1f} s ({rows})")
        worker = self._quarantine.hung(patience_s)
        if worker is not None:
            worker.kill(f"it hangs in one row that another died under, for over {patience_s:g} s")

    def retire(self, worker: str) -> None:
        """Send the worker nothing new; it finishes what it has."""
        self._retired.add(worker)
        self._show_again(worker)

    def readmit(self, worker: str) -> None:
        """It may be sent rows again, if it is there; or another of that name, once it is."""
        self._retired.discard(worker)
        self._show_again(worker)

    def has_finished(self, worker: str) -> bool:
        """Whether no rows are on the worker; on one that is lost none are."""
        live = self._workers.get(worker)
        return live is None or (self.is_idle(live) and not self._quarantine.keeps(live))

    @property
    def is_draining(self) -> bool:
        """Whether it takes no more calls."""
        return self._is_draining

    def drain(self) -> None:
        """Take no more calls; those under way are answered."""
        self._is_draining = True

    async def drained(self) -> None:
        """Wait until no call is under way."""
        await self._idle.wait()

    def _submit(
        self,
        now_s: float,
        pending: PendingReply,
        offset: int,
        rows: int,
        members: tuple[str, ...] | None = None,
    ) -> Rejection | None:
        call = pending.call
        self.current(call.function)
        if self._out:
            part = Slice(pending.request_id, offset, rows)
            members, out = asked_now(call, members, self._out)
            if out:
                self._leave_out(pending, part, out, is_last=not members)
            if members == ():
                return None
        rejection = self._core.submit(now_s, submission_of(pending, offset, rows, members))
        if rejection is None:
            self._wake()
        return rejection

    def _submit_due(self) -> None:
        """Queue what came in this turn and is like what came before: the turn ends, or somebody counts."""
        for group in self._like.due():
            now_s = time.monotonic()
            function = group.first.function
            calls = [pending for pending in group.calls if pending is not None]
            if self._out or function.key not in self._functions:
                rejection: Rejection | None = None
                is_queued = False
            else:
                rejection = self._core.submit(now_s, submission_of_like(group.request_id, calls))
                is_queued = rejection is None
            if is_queued:
                self._like.queued(group)
                continue
            self._like.dissolve(group)
            for pending in calls:  # there may be room for some of them
                self._submit_alone(now_s, pending, rejection)

    def _submit_alone(self, now_s: float, pending: PendingReply, together: Rejection | None) -> None:
        """Queue a call by itself. together: why it was not queued with others."""
        function = pending.call.function
        rejection = together
        if together is None or together.code == "overloaded":
            try:
                rejection = self._submit(now_s, pending, 0, len(pending.call.rows))
            except VersionGone as error:
                pending.fail(error)
                return
        if rejection is not None:
            self.residency.lost(function.asked, len(pending.call.rows))
            pending.fail(error_of(rejection, function, now_s))

    def _leave_queue(self, now_s: float, pending: PendingReply) -> int:
        """Take out a call's rows that wait: how many."""
        part = self._like.leave(pending)
        if part is not None:
            return self._core.cancel_part(now_s, part)
        return self._core.cancel(now_s, pending.request_id)

    def _at_goal(self, pending: PendingReply) -> None:
        """From now on a row's answer is what has come of its members, where anything has."""
        pending.is_late = True
        if pending.evidence is not None and not pending.done:
            with contextlib.suppress(ServiceError):  # the rows have failed for it
                self._combine_all(pending, pending.evidence.begun())

    def _overdue(self, pending: PendingReply) -> None:
        function = pending.call.function
        if function.late_members == "leave_out" or (function.follows_plans and function.proxy is None):
            self._at_goal(pending)
        pending.fail(overdue_of(function, time.monotonic() - pending.began_s))

    def _call_at(
        self, at_s: float, callback: Callable[[*_Args], object], *args: *_Args
    ) -> asyncio.TimerHandle:
        # Not the loop's own clock: uvloop's stands still within a turn and counts milliseconds, too coarse
        # to learn latencies by. Its timers round, so half of one more: the core must not be asked early.
        return self._loop.call_later(max(0.0, at_s - time.monotonic()) + 0.0005, callback, *args)

    # ── batches ───────────────────────────────────────────────────────────────────────────────────────

    def _wake(self) -> None:
        # Not at once: what else arrives in this turn of the loop may join the same batch.
        if self._pump_soon is None:
            self._pump_soon = self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Do what the core says until it is idle."""
        self._pump_soon = None
        self._want_what_came()
        self._submit_due()
        if self._pump_at is not None:
            self._pump_at.cancel()
            self._pump_at = None
        while True:
            now_s = time.monotonic()
            try:
                action = self._core.next_action(now_s)
            except Exception as exc:
                self._scheduling_failed(now_s, exc)
                return
            finally:
                self._tell_faults()
            if isinstance(action, RunBatch):
                batch = self._of_calls(action)
                try:
                    self._send(now_s, batch)
                except Exception as exc:
                    self._sending_failed(now_s, batch, exc)
            elif isinstance(action, RefuseRows):
                function = self._functions[action.function]
                self.residency.lost(function.asked, sum(part.rows for part in action.slices))
                self._fail(self._like.own_slices(action.slices), late_of(action, function, now_s))
            elif isinstance(action, AnswerKnown):
                self._answer_known(action)
            else:
                self._idle_until_s = action.until_s
                if action.until_s < math.inf:
                    self._pump_at = self._call_at(action.until_s, self._wake)
                self._quarantine.step()
                return

    def _of_calls(self, batch: RunBatch) -> RunBatch:
        """It, and what is sent with it, with each row as a part of its own call."""
        slices = self._like.own_slices(batch.slices)
        if slices is not batch.slices:
            beside = tuple(replace(one, slices=slices) for one in batch.beside)
            batch = replace(batch, slices=slices, beside=beside)
        if not batch.riders:
            return batch
        riders = tuple(replace(one, slices=self._like.own_slices(one.slices)) for one in batch.riders)
        return replace(batch, riders=riders)

    def _send(self, now_s: float, batch: RunBatch) -> None:
        if batch.riders:
            self._send_parts(now_s, batch)
            return
        function = self._functions[batch.function]
        each = (batch, *batch.beside)
        together = tuple(member for one in each for member in one.members) if batch.beside else None
        if batch.choices:
            together = batch.choices
        for one in each:
            worker = self._workers[one.worker]
            steps = self._selecting.steps(function, one.plan)
            sent = self._in_flight.send(now_s, one, worker, function, self._pending, together, steps)
            self.residency.touch(one.members, one.rows, one.worker)
            self._late_rows.sent(sent)

    def _send_parts(self, now_s: float, batch: RunBatch) -> None:
        """Send rows of several functions that go through one network first."""
        parts = [(one, self._functions[one.function]) for one in (batch, *batch.riders)]
        self._in_flight.send_parts(now_s, parts, self._workers[batch.worker], self._pending)
        for place, (one, function) in enumerate(parts):
            self.residency.touch(one.members, one.rows, one.worker)
            if place:
                self._metrics.of(function).riding_rows += one.rows

    def _returned(self, sent: BatchInFlight, reply: Message) -> None:
        """A batch came back, one way or another."""
        batch = sent.batch
        now_s = time.monotonic()
        self.residency.idle(batch.members, sent.worker)
        self._late_rows.came_back(sent)
        cancelled = isinstance(reply, Failed) and reply.code == "cancelled"
        faulty_batch = unanswered(reply, batch.rows, choices=bool(batch.choices))
        failed = (not cancelled and not isinstance(reply, Answer)) or faulty_batch is not None
        worked = times_of(reply) if isinstance(reply, Answer | Failed) else None
        sure: Sequence[float] = ()
        fault: Exception | None = None
        if batch.choices and isinstance(reply, Answer) and faulty_batch is None:
            try:
                sure = self._keep(sent, reply)
            except Exception as exc:
                fault, failed = exc, True
        try:
            if not sent.is_rider:
                self._core.finished(
                    now_s, batch.batch_id, failed=failed, cancelled=cancelled, worked=worked, sure=sure
                )
        except Exception as exc:  # a bug of ours: it costs no answer, and no worker its channel
            self._loop.call_exception_handler({"message": "a batch taught nothing", "exception": exc})
        self._wake()
        if faulty_batch is not None and batch.choices:
            reply = faulty_batch
        if isinstance(reply, Answer):
            try:
                if fault is not None:
                    raise fault
                if not batch.choices:  # of those the core says which rows that is enough for
                    self._scatter(sent, reply)
            except Exception as exc:
                log.error("batch unusable function=%s worker=%s", batch.function, batch.worker, exc_info=exc)
                unusable = ServiceError(f"a worker's answer for {sent.function.name} cannot be used")
                self._fail_batch(sent, exc if isinstance(exc, ServiceError) else unusable)
            return
        if not isinstance(reply, Failed):
            reply = Failed(0, "internal", f"the worker answered a batch with {reply.kind!r}")
        self.told_of_models(sent.worker, batch.members, reply)
        # A proxy's faults are its own: others answer its rows. Of several members or parts in one batch it
        # shows who is at fault when each is asked alone, as they are from now on.
        if reply.code in _AGAIN or _is_of_proxy(sent) or sent.beside:
            self._run_again(now_s, sent, reply)
            return
        log.error(
            "batch failed function=%s worker=%s rows=%d code=%s",
            batch.function,
            batch.worker,
            batch.rows,
            reply.code,
        )
        error_type = BadOption if reply.code == "bad_option" else ServiceError
        self._fail_batch(sent, error_type(f"{sent.function.name}: {reply.message}"))

    def _scatter(self, sent: BatchInFlight, reply: Answer) -> None:
        began_s = time.monotonic()
        answers: FunctionAnswer | None = None  # to all rows of the batch, in no context
        if sent.apart:
            check_members(sent.function, reply, sent.batch.members, sent.batch.rows)
        for pending, part, first in self._under_way(sent.batch):
            if part.request_id in sent.apart:
                self.collect(pending, part, first, reply)
                continue
            if (shifts := self.shifts(pending.call)) is not None and pending.is_answered is None:
                own = part_of(reply, first, part.rows)
                self._tell(pending, part, 0, own)
                pending.answer(part, 0, answers_of(sent.function, own, part.rows, shifts))
                continue
            answers = answers or answers_of(sent.function, reply, sent.batch.rows)
            if pending.is_answered is not None:
                self._answer_once(pending, part, first, reply, answers)
            else:
                self._tell(pending, part, first, reply)
                pending.answer(part, first, answers)
        self._batch_done(sent, reply, began_s)

    def _under_way(self, batch: RunBatch) -> Iterator[tuple[PendingReply, Slice, int]]:
        """The calls of a batch that wait yet, their parts of it, and the number of each one's first row."""
        first = 0
        for part in batch.slices:
            pending = self._pending.get(part.request_id)
            if pending is not None:
                yield pending, part, first
            first += part.rows

    def _answer_once(
        self, pending: PendingReply, part: Slice, first: int, reply: Answer, answers: FunctionAnswer
    ) -> None:
        """Rows that other batches may have answered before, or that are rebuilt."""
        faulty = [error.index for error in reply.errors]
        for left in pending.unanswered(part):
            at = first + left.offset - part.offset
            self._late_rows.answered(pending, left, at, answers, faulty)
            self._tell(pending, left, at, reply)
            pending.answer(left, at, answers)

    @staticmethod
    def _tell(pending: PendingReply, part: Slice, first: int, said: Answer) -> None:
        """What each member said of rows that are about to be answered, where that is asked for; not of those
        that others answered. first: number of the part's first row in what was said.
        """
        if pending.call.with_members:
            for left in pending.unanswered(part):
                pending.tell(left.offset, part_of(said, first + left.offset - part.offset, left.rows))

    def collect(self, pending: PendingReply, part: Slice, first: int, reply: Answer) -> None:
        """Take what some members say of rows, from number `first` of the batch; all there, they are answered.

        Raises ServiceError if what the members say cannot be combined.
        """
        if pending.evidence is None or pending.done:
            return
        spans = pending.evidence.take(part, first, reply)
        if pending.is_late:
            spans += pending.evidence.begun()
        self._combine_all(pending, spans)
        if pending.missing and not pending.batches:  # what is missing may have nowhere to run
            self._want(pending)

    def _keep(self, sent: BatchInFlight, reply: Answer) -> list[float]:
        """Take what one member says of rows that may be asked of others yet; how sure they are now, by row.

        Raises ServiceError if it cannot be combined with what the others said.
        """
        began_s = time.monotonic()
        batch = sent.batch
        check_members(sent.function, reply, batch.members, batch.rows)
        spans: list[tuple[PendingReply, Span]] = []
        for pending, part, first in self._under_way(batch):
            if pending.evidence is not None and not pending.done:
                spans += [(pending, span) for span in pending.evidence.keep(part, first, reply)]
        by = self._selecting.own_rule(sent.function, spans[0][0].call.form) if spans else None
        known = [(span, self.shifts(pending.call)) for pending, span in spans]
        sure = combine_known(sent.function, known, reply, batch.rows, by)
        for pending, span in spans:
            if span.is_complete:
                self._answer_span(pending, span)
        if spans:
            self._selecting.look(time.monotonic(), sent.function, spans[0][0].call.form)
        self._batch_done(sent, reply, began_s)
        return sure

    def _batch_done(self, sent: BatchInFlight, reply: Answer, began_s: float) -> None:
        """began_s: when its answers began to be combined and handed out."""
        self._metrics.of(sent.function).batch_done(
            sent.batch.rows, reply.decode_s, reply.forward_s, time.monotonic() - began_s, reply.spared_rows
        )

    def _answer_known(self, action: AnswerKnown) -> None:
        function = self._functions.get(action.function)
        if action.cut_rows and function is not None:
            stats = self._metrics.of(function)
            stats.goal_rows += action.cut_rows
            stats.late_members += action.late_members
        for part, _ in action.parts:
            pending = self._pending.get(part.request_id)
            if pending is not None and pending.evidence is not None:
                for span in pending.evidence.waiting(part):
                    self._answer_span(pending, span)

    def _answer_span(self, pending: PendingReply, span: Span) -> None:
        """Answer rows from what is known of them."""
        part = Slice(pending.request_id, span.offset, span.rows)
        if pending.evidence is None or span.known is None or not pending.evidence.close(part):
            return
        found, first = span.known
        if pending.call.with_members:
            self._tell(pending, part, 0, span.answer())
        pending.answer(part, first, found)

    def _held(self) -> Iterable[tuple[frozenset[str], str]]:
        """What each worker holds, and its kind."""
        return [(self._resident[name], worker.info.device_name) for name, worker in self._workers.items()]

    def _leave_out(
        self, pending: PendingReply, part: Slice, out: Mapping[str, MemberOut], *, is_last: bool
    ) -> None:
        """These rows wait for these members no more; is_last: nor for any other."""
        stats = self._metrics.of(pending.call.function)
        stats.absent_members += len(out) * part.rows
        if pending.evidence is not None:
            for span in pending.evidence.leave_out(part, {key: why.error for key, why in out.items()}):
                self._combine(pending, span)
        elif is_last:
            error = next(iter(out.values())).error
            pending.answer(part, 0, faulty_rows(pending.call.function, part.rows, error))

    def _combine_all(self, pending: PendingReply, spans: Sequence[Span]) -> None:
        """Answer rows that wait for nobody any more. Raises what `_combine` does: they have failed for it, as
        no batch brings them an answer.
        """
        for place, span in enumerate(spans):
            try:
                self._combine(pending, span)
            except ServiceError as error:
                for left in spans[place:]:
                    pending.fail_part(Slice(pending.request_id, left.offset, left.rows), error)
                raise

    def _combine(self, pending: PendingReply, span: Span) -> None:
        """Raises ServiceError if what the members say cannot be combined."""
        part = Slice(pending.request_id, span.offset, span.rows)
        if not span.found:
            error = next(iter(span.absent.values()))
            pending.answer(part, 0, faulty_rows(pending.call.function, span.rows, error))
            return
        call, told = pending.call, span.answer()
        late = sum(member not in span.found and member not in span.absent for member in span.wanted)
        if late:
            stats = self._metrics.of(call.function)
            stats.goal_rows += span.rows
            if not call.function.follows_plans:  # by a plan some may not have been asked
                stats.late_members += late * span.rows
        answers = answers_of(call.function, told, span.rows, self.shifts(call))
        self._tell(pending, part, 0, told)
        pending.answer(part, 0, answers)

    def shifts(self, call: Call) -> tuple[float, ...] | None:
        """How its members are weighed in the context in which it is asked; None as everywhere."""
        if not call.context:
            return None
        return self._contexts.shifts(self._functions.get(call.function.key, call.function), call.context)

    def _want(self, pending: PendingReply) -> None:
        function = pending.call.function
        if not self.residency.is_resident(function.asked):
            self.residency.want(function.asked)

    def _tell_arrived(self) -> None:
        """Tell the residency which rows have come in this turn, whether they were let in or not."""
        if self._arrived:
            arrived, self._arrived = self._arrived, {}
            for function, rows in arrived.values():
                if function.key in self._functions:  # else it was removed since, or before
                    self.residency.arrived(function.asked, rows)

    def _want_what_came(self) -> None:
        """Have loaded what the rows of this turn lack; they count as hits or misses."""
        self._tell_arrived()
        if not self._came:
            return
        came, self._came = self._came, {}
        for function, rows in came.values():
            if function.key not in self._functions:
                continue  # it was removed since
            stats = self._metrics.of(function)
            if self.residency.is_resident(function.asked):
                stats.resident_rows += rows
            else:
                stats.absent_rows += rows
                self.residency.want(function.asked)

    def _run_again(self, now_s: float, sent: BatchInFlight, reply: Failed) -> None:
        """Queue a batch's rows once more; those under which the worker died run alone from now on."""
        if _is_of_proxy(sent):
            if reply.code not in _AGAIN:
                log.error("proxy failed function=%s: %s: %s", sent.function.name, reply.code, reply.message)
            self._leave_out_of(sent, RowError(0, reply.code, reply.message))
        refused = Overloaded(
            f"workers refused rows of {sent.function.name} again and again: {reply.message}", 1.0
        )
        if reply.code == RemoteUnavailable.code:
            self._leave_out_of(sent, RowError(0, reply.code, reply.message))
        for pending, part, members in self._unanswered(sent):
            self._metrics.of(sent.function).rerun_rows += part.rows
            if reply.code == WorkerLost.code:
                self._quarantine.add(pending, part, members)
                continue
            if pending.refused(part) > REFUSALS:
                self._give_up(pending, part, refused)
            elif reply.code == Overloaded.code:
                self._loop.call_later(REFUSED_S, self._resubmit_later, pending, part, members)
            else:
                self._resubmit(now_s, pending, part, members)

    def _leave_out_of(self, sent: BatchInFlight, error: RowError) -> None:
        """The batch's member answers none of its rows, now or later; others may be asked of them."""
        for part in sent.batch.slices:
            pending = self._pending.get(part.request_id)
            if pending is not None and pending.evidence is not None and not pending.done:
                out = {member: MemberOut(error) for member in sent.batch.members}
                self._leave_out(pending, part, out, is_last=False)

    def _unanswered(
        self, sent: BatchInFlight
    ) -> Iterator[tuple[PendingReply, Slice, tuple[str, ...] | None]]:
        """The rows of a batch that failed that still wait for it, and the members that they are to run on.

        None for all that the call asks for. Rows that went to one member after the other go to all that they
        lack now and that some worker holds, once; where nobody does, they are answered from what is known.
        """
        for part in sent.batch.slices:
            pending = self._pending.get(part.request_id)
            if pending is None or pending.done:
                continue
            if part.request_id not in sent.apart:
                for left in pending.unanswered(part):
                    yield pending, left, None
            elif not sent.batch.choices:
                if pending.waits_for(part, sent.batch.members):  # else they were answered without
                    yield pending, part, sent.batch.members
            elif pending.evidence is not None:
                for span in pending.evidence.waiting(part):
                    lacking = self._lacking(span, is_promised=sent.function.proxy is not None)
                    if not lacking:
                        self._answer_span(pending, span)
                    elif not span.is_resubmitted:
                        span.is_resubmitted = True
                        yield pending, Slice(pending.request_id, span.offset, span.rows), lacking

    def _lacking(self, span: Span, *, is_promised: bool) -> tuple[str, ...]:
        """The members that rows are to run on yet, of those that need not go to all; from now on no others.

        All that they lack where nobody holds one and none has answered: then they wait for a load. So they do
        for what was promised.
        """
        held = frozenset().union(*self._resident.values()) - span.absent.keys()
        if not is_promised and (span.found or not held.isdisjoint(span.wanted)):
            span.wanted = tuple(member for member in span.wanted if member in span.found or member in held)
        return tuple(
            member for member in span.wanted if member not in span.found and member not in span.absent
        )

    def _resubmit(
        self, now_s: float, pending: PendingReply, part: Slice, members: tuple[str, ...] | None
    ) -> None:
        """Queue rows again, for these members; None: for all that the call asks for.

        Not those that are over: their client may have gone while they waited for this, or another worker died
        under them, alone.
        """
        for left in _waiting(pending, part, members):
            if pending.done or pending.request_id not in self._pending:
                return
            try:
                rejection = self._submit(now_s, pending, left.offset, left.rows, members)
            except VersionGone as error:
                self._give_up(pending, left, error)
                continue
            if rejection is None:
                self._want(pending)
            elif rejection.code == "overloaded":
                # They were admitted before, and are in memory anyway: they wait here for their place.
                wait_s = max(0.01, rejection.retry_after_s or 0.0)
                self._loop.call_later(wait_s, self._resubmit_later, pending, left, members)
            else:
                self._give_up(pending, left, error_of(rejection, pending.call.function, now_s))

    def _resubmit_later(self, pending: PendingReply, part: Slice, members: tuple[str, ...] | None) -> None:
        self._resubmit(time.monotonic(), pending, part, members)

    def _fail_batch(self, sent: BatchInFlight, error: ServiceError) -> None:
        """Fail the calls whose rows were on it; not those that were answered without it, or its members."""
        for part in sent.batch.slices:
            pending = self._pending.get(part.request_id)
            if pending is None or (part.request_id in sent.apart and not _waits(pending, part, sent)):
                continue
            self._give_up(pending, part, error)

    def _fail(self, slices: Iterable[Slice], error: ServiceError) -> None:
        for part in slices:
            pending = self._pending.get(part.request_id)
            if pending is not None:
                self._give_up(pending, part, error)

    def _give_up(self, pending: PendingReply, part: Slice, error: ServiceError) -> None:
        """These rows get no answer; but those that were sent twice may be on another worker, which answers
        them yet, or fails as well.
        """
        left = [part] if pending.is_answered is None else self._in_flight.not_there(pending, part)
        for each in left:
            pending.fail_part(each, error)

    def _scheduling_failed(self, now_s: float, exc: Exception) -> None:
        # A bug of ours: a policy that faults is put aside. Nobody can say whose rows it was about, and it
        # would come again.
        log.error("scheduling failed", exc_info=exc)
        error = ServiceError(f"scheduling failed: {exc!r}")
        for pending in self._pending.values():
            if self._leave_queue(now_s, pending):
                pending.fail(error)

    def _sending_failed(self, now_s: float, batch: RunBatch, exc: Exception) -> None:
        # A bug of ours too. Here it is known whose rows they are: they alone fail, and the worker has room.
        log.error("a batch could not be sent", exc_info=exc)
        error = ServiceError(f"a batch could not be sent: {exc!r}")
        for one in (batch, *batch.beside, *batch.riders):
            if self._in_flight.forget(one, self._pending):
                self._core.finished(now_s, one.batch_id, failed=True)
            self._fail(one.slices, error)

    def _tell_faults(self) -> None:
        for fault in self._core.take_faults():
            log.error(
                "policy put aside for goodput function=%s policy=%s method=%s",
                fault.function,
                fault.policy,
                fault.method,
                exc_info=fault.error,
            )
            function = self._functions.get(fault.function)
            if function is not None:
                self._metrics.of(function).policy_faults += 1

    # ── workers and what they hold (ResidencyListener) ────────────────────────────────────────────

    def resident_changed(self, worker: Worker, resident: frozenset[str]) -> None:
        """These models may be asked of the worker now."""
        self._workers[worker.name] = worker
        self._resident[worker.name] = resident
        self._held_changes += 1
        self._show(worker)
        for function in self._functions.values():
            if function.follows_plans and not resident.isdisjoint(model.key for model in function.asked):
                self._selecting.look(time.monotonic(), function, function.form)

    def member_out(self, model: str, reason: str, *, waits: bool) -> None:
        """The model cannot be asked; rows that wait for it go to their other members.

        waits: rows that have no other wait until more is known.
        """
        error = RowError(0, RemoteUnavailable.code, reason)
        self._out[model] = MemberOut(error, waits=waits)
        for pending in list(self._pending.values()):
            function = pending.call.function
            if not function.follows_plans and any(one.key == model for one in function.members):
                self._submit_otherwise(pending)

    def member_back(self, model: str) -> None:
        """It can."""
        self._out.pop(model, None)

    def _submit_otherwise(self, pending: PendingReply) -> None:
        """Queue what still waits of a call anew, as it would come now."""
        now_s = time.monotonic()
        if pending.place is not None and not pending.place[0].request_id:
            return  # the end of this turn sees to it
        if (together := self._like.leave(pending)) is not None:
            self._core.cancel_part(now_s, together)
            self._resubmit(now_s, pending, Slice(pending.request_id, 0, len(pending.call.rows)), None)
            return
        for part in self._core.take_back(now_s, pending.request_id):
            spans = [] if pending.evidence is None else pending.evidence.waiting(part)
            for span in spans:  # some members have these rows already
                lacking = tuple(each for each in span.wanted if each not in span.found)
                self._resubmit(now_s, pending, Slice(part.request_id, span.offset, span.rows), lacking)
            if not spans:
                self._resubmit(now_s, pending, part, None)

    def worker_lost(self, worker: Worker) -> None:
        """Send it nothing more; its batches fail right after this and run again."""
        self._quarantine.worker_lost(worker)
        self._resident.pop(worker.name, None)
        self._held_changes += 1
        if self._workers.pop(worker.name, None) is not None:
            self._core.set_worker(
                time.monotonic(), WorkerView(worker.name, alive=False, resident=frozenset())
            )

    def load_failed(self, group: Group, error: ServiceError) -> None:
        """The rows that wait for the group have nowhere to run."""
        keys = {model.key for model in group if not model.endpoint}
        for pending in list(self._pending.values()):
            others = {model.key for model in pending.call.function.asked if not model.endpoint}
            if keys == others and not pending.batches:
                pending.fail(error)

    def waited_for(self) -> Iterable[Group]:
        """The groups for which rows wait."""
        depth = self._core.queue_depth()
        alone = self._quarantine.functions
        return [f.asked for key, f in self._functions.items() if depth[key][0] or key in alone]

    def demand(self) -> Mapping[Group, WaitingRows]:
        """The same, with how many rows, and when their goals are missed."""
        self._submit_due()
        waiting = self._core.waiting()
        waiting.update((key, Waiting(0)) for key in self._quarantine.functions if key not in waiting)
        found: dict[Group, Waiting] = {}
        for key, one in waiting.items():
            function = self._functions.get(key)
            if function is not None:
                found[function.asked] = found.get(function.asked, Waiting(0)).with_others(one)
        return {
            group: WaitingRows(each.rows, each.due_s, each.fillers, each.deadline_s)
            for group, each in found.items()
        }

    # ── rows that run alone (QuarantineHost) ────────────────────────────────────────────────────────────────

    def holders(self, function: Function, members: Sequence[str]) -> list[tuple[Worker, tuple[str, ...]]]:
        """The workers that hold most of these members, with those that each holds.

        None until each member is somewhere; then they are asked for.
        """
        there = {name: held for name, held in self._resident.items() if name not in self._retired}
        if not frozenset().union(*there.values()).issuperset(members):
            self.residency.want(function.asked)
            return []
        held = [
            (self._workers[name], tuple(member for member in members if member in found))
            for name, found in there.items()
        ]
        most = max(len(found) for _, found in held)
        return [pair for pair in held if len(pair[1]) == most]

    def is_idle(self, worker: Worker) -> bool:
        """Whether no batch is on it."""
        return not self._in_flight.on(worker)

    def told_of_models(self, worker: Worker, members: Sequence[str], reply: Failed) -> None:
        """The residency hears which models a worker that took no rows does not hold, or has no room for."""
        if reply.code == "unknown_function":
            self.residency.not_there(worker, reply.missing or members)
        if reply.code == "overloaded" and reply.wanted_bytes:
            self.residency.short_of_memory(worker, members)

    def set_aside(self, worker: Worker, aside: bool) -> None:
        """The scheduler sends it nothing from now on, or may again."""
        if self._workers.get(worker.name) is worker:
            self._show(worker, aside=aside)

    def is_wanted(self, pending: PendingReply) -> bool:
        """Whether somebody waits for it, and its function is served."""
        function = pending.call.function
        if function.key not in self._functions:
            pending.fail(VersionGone(f"version {function.version} of {function.name} is no longer served"))
        return not pending.done and pending.request_id in self._pending

    def wake(self) -> None:
        """Have the scheduler asked again."""
        self._wake()

    # ── rows that are late (LateRowsHost) ───────────────────────────────────────────────────────────────────

    def pending_of(self, request_id: int) -> PendingReply | None:
        """A call under way."""
        return self._pending.get(request_id)

    def resend(self, pending: PendingReply, part: Slice) -> None:
        """Queue a copy of rows that a worker has; where that is refused, they wait for the worker alone."""
        with contextlib.suppress(VersionGone):
            if self._submit(time.monotonic(), pending, part.offset, part.rows) is None:
                self._want(pending)

    def workers_holding(self, model: str) -> int:
        """On how many workers a model may be asked."""
        return sum(model in held for held in self._resident.values())

    def after(self, delay_s: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        """Have something called later."""
        return self._call_at(time.monotonic() + delay_s, callback)

    def _show_again(self, name: str) -> None:
        if (worker := self._workers.get(name)) is not None:
            self._show(worker)

    def _show(self, worker: Worker, *, aside: bool | None = None) -> None:
        kept = self._quarantine.keeps(worker) if aside is None else aside
        kept = kept or worker.name in self._retired
        view = WorkerView(
            worker.name,
            alive=True,
            resident=self._resident[worker.name],
            in_flight_limit=worker.info.in_flight,
            device=worker.info.device_name,
            is_far=worker.info.is_far,
        )
        self._core.set_worker(time.monotonic(), replace(view, in_flight_limit=0) if kept else view)
        self._wake()


def _count_in(rows_of: dict[str, tuple[Function, int]], call: Call) -> None:
    """Count a call's rows with those of its function."""
    function = call.function
    counted = rows_of.get(function.key)
    rows = len(call.rows)
    rows_of[function.key] = (function, rows if counted is None else counted[1] + rows)


def _waits(pending: PendingReply, part: Slice, sent: BatchInFlight) -> bool:
    """Whether rows of a batch that failed have nothing but it to hope for.

    Those that may be asked of others yet have left the scheduler with it, though what it said may be kept.
    """
    if not sent.batch.choices:
        return pending.waits_for(part, sent.batch.members)
    return pending.evidence is not None and bool(pending.evidence.waiting(part))


def _is_of_proxy(sent: BatchInFlight) -> bool:
    """Whether it asked a proxy alone, of rows that others may answer."""
    proxy = sent.function.proxy
    return proxy is not None and sent.batch.members == (proxy.model.key,) and bool(sent.batch.choices)


def _waiting(pending: PendingReply, part: Slice, members: tuple[str, ...] | None) -> list[Slice]:
    """The rows of a part that are not over; where some members are named, those that wait for one of them."""
    left, evidence = pending.unanswered(part), pending.evidence
    if members is None or evidence is None:
        return left
    return [
        Slice(part.request_id, span.offset, span.rows)
        for one in left
        for span in evidence.waiting(one)
        if not span.missing.isdisjoint(members)
    ]
