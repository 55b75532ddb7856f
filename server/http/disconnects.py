"""Notices clients that hang up while their rows wait, so that the rows do not wait for nobody.

Most requests are answered within milliseconds; only those that have waited for a while get a task that
listens for the end of their connection. A watch on every request would cost as much as its answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from server.http.body import ClientGone, Receive
from server.supervision import Tasks

__all__ = ["DisconnectWatch", "while_connected"]

_Result = TypeVar("_Result")

_LOOK_S = 0.05


class WaitingCall(Protocol):
    """A call whose client may hang up. Hashable, by identity."""

    @property
    def began_s(self) -> float:
        """When, on the clock of `time.monotonic`."""
        ...

    def fail(self, error: Exception) -> None:
        """End it; a call that has ended stays as it is."""
        ...


class DisconnectWatch:
    """Fails calls with `ClientGone`, at most about 0.1 s after their client has gone."""

    def __init__(self, tasks: Tasks | None = None) -> None:
        self._background = tasks or Tasks()
        self._watched: dict[WaitingCall, Receive] = {}
        self._tasks: dict[WaitingCall, asyncio.Task[None]] = {}
        self._look_again: asyncio.TimerHandle | None = None

    def watch(self, pending: WaitingCall, receive: Receive) -> None:
        """Begin to watch; the body has been read to its end."""
        self._watched[pending] = receive
        if self._look_again is None:
            self._look_again = asyncio.get_running_loop().call_later(_LOOK_S, self._look)

    def unwatch(self, pending: WaitingCall) -> None:
        """Stop; the call has ended."""
        self._watched.pop(pending, None)
        task = self._tasks.pop(pending, None)
        if task is not None:
            task.cancel()

    def _look(self) -> None:
        self._look_again = None
        now_s = time.monotonic()
        for pending, receive in self._watched.items():
            if pending not in self._tasks and now_s - pending.began_s >= _LOOK_S:
                self._tasks[pending] = self._background.once("watch", self._listen(pending, receive))
        if len(self._tasks) < len(self._watched):
            self._look_again = asyncio.get_running_loop().call_later(_LOOK_S, self._look)

    async def _listen(self, pending: WaitingCall, receive: Receive) -> None:
        await _gone(receive)
        pending.fail(ClientGone())


async def while_connected(receive: Receive, work: Coroutine[Any, Any, _Result]) -> _Result:
    """The result of `work`, which is cancelled when the client hangs up; then raises `ClientGone`.

    For work that takes seconds. The request's body has been read to its end.
    """
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGone
    finally:
        for task in (working, gone):
            task.cancel()
        await asyncio.gather(working, gone, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
