"""One call from a route's point of view: queue it, notice if its client goes, count how it went."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Protocol

from server.catalog.functions import Function
from server.errors import DeadlineExceeded, Overloaded, ServiceError
from server.http.body import ClientGone, Receive
from server.http.disconnects import DisconnectWatch
from server.observability.metrics import Metrics
from server.serving.bulk_calls import BulkCalls
from server.serving.cached_calls import CachedCall, CachedCalls
from server.serving.calls import Call, PendingReply, Reply
from server.serving.caps import Caps
from server.serving.dispatcher import Dispatcher
from server.serving.fair_share import FairShare
from server.serving.pipelines.calls import PipelineCall, PipelineCalls
from server.serving.proxy_trials import ProxyTrials
from server.serving.recent_answers import RecentAnswers
from server.serving.shadow_rows import ShadowRows
from server.serving.shared_calls import RowsOver, SharedCall, may_share
from server.serving.wishes import Wishes
from server.supervision import Tasks

__all__ = ["Asker", "CallService", "SharedAsker"]

_FEW_HITS = 0.05  # of the rows that are looked up


class Asker(Protocol):
    """Whose request a call is. came_s: when it came, on the clock of `time.monotonic`."""

    @property
    def came_s(self) -> float:
        """See above."""

    def over(self, outcome: Reply | BaseException) -> None:
        """Called once, never before `begin` returns: the reply, or why there is none.

        That is an error of `server.errors`, or what `fail` of the call under way was given.
        """


class SharedAsker(Protocol):
    """Whose requests a shared call is, a row each. came_s: when they came."""

    @property
    def came_s(self) -> float:
        """See above."""

    def rows_over(self, over: RowsOver) -> None:
        """Called for each row once, never before `begin_shared` returns; see `Asker.over`."""


class CallService:
    """Shared by the routes that ask for answers."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        metrics: Metrics,
        tasks: Tasks | None = None,
        max_rows: int = 200_000,
        shadow_rows: ShadowRows | None = None,
        recent: RecentAnswers | None = None,
        cached: CachedCalls | None = None,
        pipelines: PipelineCalls | None = None,
        bulk: BulkCalls | None = None,
        wishes: Wishes | None = None,
        proxy_trials: ProxyTrials | None = None,
    ) -> None:
        """max_rows: of one function that all callers share. shadow_rows, recent: hear what traffic was
        answered, kept answers or new ones. cached: where rows are looked up that were asked before.
        pipelines: where rows go from stage to stage. bulk: the jobs that calls are a part of. wishes: chooses
        who answers functions by wish. proxy_trials: hear what was answered without a proxy.
        """
        self._pipelines = pipelines
        self._wishes = wishes
        self._shadow_rows = shadow_rows
        self._proxy_trials = proxy_trials
        self._recent = recent
        self._dispatcher = dispatcher
        self._cached = cached
        self._bulk = bulk or BulkCalls()
        self._metrics = metrics
        self._fair_share = FairShare(max_rows)
        self._caps = Caps()
        self._disconnects = DisconnectWatch(tasks)

    async def ask(self, call: Call, receive: Receive, began_s: float) -> Reply:
        """The answers to a call whose request came at `began_s` and has been read to its end.

        Raises `ServiceError`, and `ClientGone` when nobody waits any more; the rows then have left the queue.
        """
        asker = _Awaiting(began_s)
        pending = self.begin(call, asker)
        self._disconnects.watch(pending, receive)
        try:
            return await asker.answered
        finally:
            self._disconnects.unwatch(pending)
            pending.fail(ClientGone())  # who waited was cancelled; nothing happens if the call is over

    def begin(self, call: Call, asker: Asker) -> PendingReply | CachedCall | PipelineCall:
        """Queue a call. Raises `ServiceError` where it is not queued; its `asker` then hears nothing."""
        if self._wishes is not None:
            call = self._wishes.answered_by(call)
        name, rows = call.function.name, len(call.rows)
        now_s = time.monotonic()
        call = self._bulk.enter(now_s, call)
        try:
            self._caps.take(now_s, call.caller, call.shares, rows, call.nbytes)
            try:
                if not self._fair_share.take(name, call.caller, rows):
                    raise Overloaded(
                        f"this caller's rows fill its share of the queue of {name}; try again soon"
                    )
                try:
                    pending = self._begun(call)
                except BaseException as exc:
                    self._fair_share.give(name, call.caller, rows)
                    if isinstance(exc, DeadlineExceeded | Overloaded):
                        self._over_goal(call)
                    raise
            except BaseException:
                self._caps.undo(now_s, call.caller, call.shares, rows, call.nbytes)
                raise
        except BaseException:
            self._bulk.left(now_s, call, None, answered=False)
            raise
        self._bulk.begun(call, pending)
        pending.listen(self._tell, asker)
        return pending

    def begin_shared(self, call: Call, asker: SharedAsker) -> SharedCall | None:
        """Queue rows that are a client's each; None where they are to come one by one, and nothing is done.

        Raises as `Dispatcher.begin_shared`.
        """
        if not may_share(call):
            return None
        name, caller, rows = call.function.name, call.caller, len(call.rows)
        if not self._fair_share.take(name, caller, rows):
            return None
        pending: SharedCall | None = None
        try:
            pending = (self._cached or self._dispatcher).begin_shared(call)
        except DeadlineExceeded:
            self._over_goal(call)
            raise
        finally:
            if pending is None:
                self._fair_share.give(name, caller, rows)
        if pending is not None:
            pending.listen(self._tell_shared, asker)
        return pending

    def leave(self, pending: SharedCall, row: int) -> None:
        """The client of that row has gone."""
        (self._cached or self._dispatcher).leave_shared(pending, row)

    def rest_s(self, *, is_busy: bool) -> float:
        """See `Dispatcher`."""
        return self._dispatcher.rest_s(is_busy=is_busy)

    def may_shut(self, function: Function) -> bool:
        """Whether requests for it may be refused unread: kept answers are to be had at any load."""
        cache = self._metrics.of(function).cache
        found = cache.hits + cache.coalesced
        return self._cached is None or found <= _FEW_HITS * (found + cache.misses)

    def turned_away(self, function: Function, rows: int) -> None:
        """Rows came and were refused unread: they count as what a larger server could have answered."""
        self._metrics.of(function).over_goal_rows += rows
        self._dispatcher.turned_away(function, rows)

    async def drained(self) -> None:
        """Wait until no call is under way."""
        if self._pipelines is not None:
            await self._pipelines.drained()
        if self._cached is not None:
            await self._cached.drained()
        await self._dispatcher.drained()

    def _begun(self, call: Call) -> PendingReply | CachedCall | PipelineCall:
        if call.function.pipeline is not None and self._pipelines is not None:
            return self._pipelines.begin(call)
        return self._dispatcher.begin(call) if self._cached is None else self._cached.begin(call)

    def _over_goal(self, call: Call) -> None:
        if call.row_class == "interactive" and call.is_traffic:
            self._metrics.of(call.function).over_goal_rows += len(call.rows)

    def _ended(self, pending: PendingReply | CachedCall | PipelineCall) -> None:
        if isinstance(pending, PendingReply):
            self._dispatcher.end(pending)
        elif isinstance(pending, CachedCall) and self._cached is not None:
            self._cached.end(pending)
        elif isinstance(pending, PipelineCall) and self._pipelines is not None:
            self._pipelines.end(pending)

    def _tell(self, pending: PendingReply | CachedCall | PipelineCall, asker: Asker) -> None:
        asker.over(self._over(pending, asker.came_s))

    def _tell_shared(self, pending: SharedCall, asker: SharedAsker) -> None:
        """Rows of a shared call are over: they are counted, and all of it is forgotten with the last."""
        over = pending.take_over()
        if pending.done:
            (self._cached or self._dispatcher).end_shared(pending)
        call = pending.call
        for part in over:
            rows = [call.rows[place] for place in part.places]
            self._fair_share.give(call.function.name, call.caller, len(rows))
            theirs = call.of_rows(rows, sum(map(len, rows)), call.deadline_s)
            if not isinstance(part.outcome, BaseException):
                self._count(theirs, part.outcome, asker.came_s, part.sent_s, requests=len(rows))
            elif isinstance(part.outcome, Overloaded | DeadlineExceeded):
                self._over_goal(theirs)
            asker.rows_over(part)

    def _over(
        self, pending: PendingReply | CachedCall | PipelineCall, began_s: float
    ) -> Reply | BaseException:
        """The outcome of a call that is over, which is counted and forgotten."""
        call = pending.call
        self._fair_share.give(call.function.name, call.caller, len(call.rows))
        self._ended(pending)
        now_s, reply = time.monotonic(), pending.outcome
        assert reply is not None, "it is over"
        held = call.caller, call.shares, len(call.rows), call.nbytes
        if isinstance(reply, ServiceError) and pending.first_sent_s == math.inf:
            self._caps.undo(now_s, *held)  # refused, but not at once; or it goes on with another version
        else:
            self._caps.give(*held)
        # Not raised: its traceback would hold on to the call, in a circle.
        self._bulk.left(now_s, call, pending, answered=not isinstance(reply, BaseException))
        if isinstance(reply, BaseException):
            if isinstance(reply, Overloaded | DeadlineExceeded):
                self._over_goal(call)
            return reply
        self._count(call, reply, began_s, pending.first_sent_s)
        return reply

    def _count(self, call: Call, reply: Reply, began_s: float, sent_s: float, requests: int = 1) -> None:
        """Rows were answered, of so many requests that came at `began_s`."""
        is_plain = call.is_traffic and call.function.pipeline is None
        if self._shadow_rows is not None and is_plain:
            self._shadow_rows.answered(call)
        if self._proxy_trials is not None and is_plain:
            self._proxy_trials.answered(call)
        if self._recent is not None and is_plain:
            self._recent.answered(call, reply)
        stats = self._metrics.of(call.function)
        took_s = time.monotonic() - began_s
        stats.answered(len(call.rows), len(reply.errors), took_s, sent_s - began_s, requests)
        if took_s > _goal_s(call):
            self._over_goal(call)
        stats.asked_by(call.caller, call.in_name_of, len(call.rows))
        proxy = None if call.function.proxy is None else call.function.proxy.model.name
        for first, end, members in reply.answered_by:
            if members:
                stats.answer_members.add(members.count(",") + 1, end - first)
            if members == proxy:
                stats.proxy_rows += end - first


class _Awaiting:
    """An asker that awaits its answer."""

    def __init__(self, came_s: float) -> None:
        self.came_s = came_s
        self.answered: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

    def over(self, outcome: Reply | BaseException) -> None:
        """See `Asker`."""
        if self.answered.done():  # who awaited it was cancelled
            return
        if isinstance(outcome, BaseException):
            self.answered.set_exception(outcome)
        else:
            self.answered.set_result(outcome)


def _goal_s(call: Call) -> float:
    return call.function.slo_ms / 1000 if call.slo_s is None else call.slo_s
