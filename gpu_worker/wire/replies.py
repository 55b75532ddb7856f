"""Replies on their way out of the worker: whole frames, in any order, from any thread."""

from __future__ import annotations

import logging
import socket
import threading
from collections import deque
from collections.abc import Callable

from gpu_worker.wire.protocol import Message, reply_frame

__all__ = ["Replies"]

_log = logging.getLogger(__name__)


class Replies:
    """Writes replies to a connected stream socket.

    A reply is written in the thread that brings it where the socket takes it at once, which spares waking
    another; what it does not take waits for a thread of its own (`run`), so that a reader that is slow holds
    up no model thread. `sent` is called with the id of each that is written, or never will be.
    """

    def __init__(self, connection: socket.socket, sent: Callable[[int], object]) -> None:
        self._connection = connection
        self._sent = sent
        self._rests: deque[tuple[int, memoryview]] = deque()  # the first is being written
        self._changed = threading.Condition()
        self._dropping = False
        self._closed = False

    def put(self, reply: Message) -> None:
        """Send it, soon. Never waits for the reader."""
        frame = memoryview(reply_frame(reply))
        with self._changed:
            if not self._rests:
                frame = frame[self._write_some(reply.id, frame) :]
            if frame:
                self._rests.append((reply.id, frame))
                self._changed.notify()
                return
        self._sent(reply.id)

    def drop(self) -> None:
        """From now on write nothing more; those that come count as sent."""
        self._dropping = True

    def close(self) -> None:
        """`run` returns once what is there is written."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def run(self) -> None:
        """Writes what the socket did not take at once, until `close`."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._rests or self._closed)
                if not self._rests:
                    return
                reply_id, rest = self._rests[0]
            try:
                if not self._dropping:
                    self._connection.sendall(rest)
            except OSError as exc:
                _log.debug("nobody takes the answer to %s: %s", reply_id, exc)
            with self._changed:
                self._rests.popleft()
            self._sent(reply_id)

    def _write_some(self, reply_id: int, frame: memoryview) -> int:
        """Bytes that need not be written any more."""
        if self._dropping:
            return len(frame)
        try:
            return self._connection.send(frame, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except OSError as exc:
            _log.debug("nobody takes the answer to %s: %s", reply_id, exc)
            return len(frame)
