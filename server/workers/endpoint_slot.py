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

    told(reason): called, before a reply is handed on, with why the endpoint could not be asked about any of a
    batch's rows; "" where it could.
    """

    def __init__(self, model: str, number: int, process: Worker, told: Callable[[str], None]) -> None:
        self.name = f"{REMOTE} {model} {number}"
        self.info = _INFO
        self._process = process
        self._told = told

    def send(self, message: Message, on_reply: OnReply) -> int:
        """See `Worker.send`; rows whose process dies under them are no suspects: they run again elsewhere."""
        rows = len(message.rows) if isinstance(message, Infer) else 0

        def heard(reply: Message) -> None:
            if isinstance(reply, Failed) and reply.code == "worker_lost":
                reply = Failed(reply.id, "cancelled", reply.message, reply.work_s, reply.stay_s)
            elif isinstance(reply, Answer):
                down = [error.message for error in reply.errors if error.code == UNAVAILABLE]
                self._told(down[0] if rows and len(down) == rows else "")
            on_reply(reply)

        return self._process.send(message, heard)

    async def call(self, message: Message) -> Message:
        """See `Worker.call`."""
        return await self._process.call(message)

    def cancel(self, message_id: int) -> None:
        """See `Worker.cancel`."""
        self._process.cancel(message_id)

    def kill(self, reason: str) -> None:
        """Nothing: the endpoint is slow, and not the process, which others need and which keeps its time."""
