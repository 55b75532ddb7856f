"""One call from a route's point of view: queue it, notice if its client goes, count how it went."""

from __future__ import annotations

import time

from server.calls import Call, Reply
from server.dispatcher import Dispatcher
from server.metrics import Metrics
from server.routes.body import Receive
from server.routes.vanished import VanishedClients

__all__ = ["Asker"]


class Asker:
    """Shared by the routes that ask for answers."""

    def __init__(self, dispatcher: Dispatcher, metrics: Metrics) -> None:
        self._dispatcher = dispatcher
        self._metrics = metrics
        self._vanished = VanishedClients()

    async def ask(self, call: Call, receive: Receive, began_s: float) -> Reply:
        """The answers to a call whose request came at `began_s` and has been read to its end.

        Raises `ServiceError`, and `ClientGone` when nobody waits any more; the rows then have left the queue.
        """
        pending = self._dispatcher.begin(call)
        self._vanished.watch(pending, receive)
        try:
            reply = await pending.future
        finally:
            self._vanished.unwatch(pending)
            self._dispatcher.end(pending)
        self._metrics.of(call.function).answered(
            len(call.rows), len(reply.errors), time.monotonic() - began_s, pending.first_sent_s - began_s
        )
        return reply
