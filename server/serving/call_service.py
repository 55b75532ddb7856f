"""One call from a route's point of view: queue it, notice if its client goes, count how it went."""

from __future__ import annotations

import time

from server.errors import Overloaded
from server.http.body import Receive
from server.http.disconnects import DisconnectWatch
from server.observability.metrics import Metrics
from server.serving.calls import Call, PendingReply, Reply
from server.serving.dispatcher import Dispatcher
from server.serving.fair_share import FairShare
from server.supervision import Tasks

__all__ = ["CallService"]


class CallService:
    """Shared by the routes that ask for answers."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        metrics: Metrics,
        tasks: Tasks | None = None,
        max_rows: int = 200_000,
    ) -> None:
        """max_rows: of one function that all callers share."""
        self._dispatcher = dispatcher
        self._metrics = metrics
        self._fair_share = FairShare(max_rows)
        self._disconnects = DisconnectWatch(tasks)

    async def ask(self, call: Call, receive: Receive, began_s: float) -> Reply:
        """The answers to a call whose request came at `began_s` and has been read to its end.

        Raises `ServiceError`, and `ClientGone` when nobody waits any more; the rows then have left the queue.
        """
        pending = self.begin(call)
        self._disconnects.watch(pending, receive)
        try:
            reply = await pending.future
        finally:
            self._disconnects.unwatch(pending)
            self._over(pending)
        self._count(pending, reply, began_s)
        return reply

    def begin(self, call: Call) -> PendingReply:
        """Queue a call; its `future` must be followed by `failure` or `end`. Raises `ServiceError`."""
        name, rows = call.function.name, len(call.rows)
        if not self._fair_share.take(name, call.caller, rows):
            raise Overloaded(f"this caller's rows fill its share of the queue of {name}; try again soon")
        try:
            return self._dispatcher.begin(call)
        except BaseException:
            self._fair_share.give(name, call.caller, rows)
            raise

    def failure(self, pending: PendingReply) -> BaseException | None:
        """Why a call that is over was not answered, which is then its `end`; None if it was."""
        failure = pending.future.exception()
        if failure is not None:
            self._over(pending)
        return failure

    def end(self, pending: PendingReply, began_s: float) -> Reply:
        """What `ask` answers or raises, of a call that is over."""
        self._over(pending)
        reply = pending.future.result()
        self._count(pending, reply, began_s)
        return reply

    def _over(self, pending: PendingReply) -> None:
        call = pending.call
        self._fair_share.give(call.function.name, call.caller, len(call.rows))
        self._dispatcher.end(pending)

    def _count(self, pending: PendingReply, reply: Reply, began_s: float) -> None:
        call = pending.call
        self._metrics.of(call.function).answered(
            len(call.rows), len(reply.errors), time.monotonic() - began_s, pending.first_sent_s - began_s
        )
