"""One request at a time to a model behind another server, as a worker that the scheduler may count on.

An endpoint that takes four requests at once is four such workers: each batch has one for itself, so what a
batch takes is learned and predicted as on any device, and one endpoint's slowness holds no other's rows up.
They share one process. Knows no scheduler.
"""

from __future__ import annotations

from collections.abc import Callable

from gpu_worker.wire.devices import REMOTE
from gpu_worker.wire.protocol import Answer, Failed, Infer, Message
from server.workers.pool import OnReply, Worker, WorkerInfo

__all__ = ["UNAVAILABLE", "EndpointSlot"]

UNAVAILABLE = "remote_unavailable"

_INFO = WorkerInfo(REMOTE, REMOTE, 0, in_flight=1)


class EndpointSlot:
    """Number `number` of a model's, on `process`.

    troubled(message): called, before the reply is handed on, where the endpoint answered none of a batch's
    rows since it cannot be asked, or where it hangs.
    """

    def __init__(self, model: str, number: int, process: Worker, troubled: Callable[[str], None]) -> None:
        self.name = f"{REMOTE} {model} {number}"
        self.info = _INFO
        self._process = process
        self._troubled = troubled
        self._sent: set[int] = set()

    def send(self, message: Message, on_reply: OnReply) -> int:
        """See `Worker.send`; rows whose process dies under them are no suspects: they run again elsewhere."""
        rows = len(message.rows) if isinstance(message, Infer) else 0

        def heard(reply: Message) -> None:
            self._sent.discard(reply.id)
            if isinstance(reply, Failed) and reply.code == "worker_lost":
                reply = Failed(reply.id, "cancelled", reply.message, reply.work_s, reply.stay_s)
            elif isinstance(reply, Answer):
                down = [error.message for error in reply.errors if error.code == UNAVAILABLE]
                if rows and len(down) == rows:
                    self._troubled(down[0])
            on_reply(reply)

        message_id = self._process.send(message, heard)
        self._sent.add(message_id)
        return message_id

    async def call(self, message: Message) -> Message:
        """See `Worker.call`."""
        return await self._process.call(message)

    def cancel(self, message_id: int) -> None:
        """See `Worker.cancel`."""
        self._process.cancel(message_id)

    def kill(self, reason: str) -> None:
        """The endpoint hangs, and not the process, which others need: what it has is given up."""
        self._troubled(reason)
        for message_id in tuple(self._sent):
            self._process.cancel(message_id)
