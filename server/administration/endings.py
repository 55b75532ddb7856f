"""Streams end with what let their reader in: a token is revoked or expires, a session is logged out. On the
event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TypeVar

from server.access.caller import Caller
from server.access.tokens import Tokens

__all__ = ["Endings"]

T = TypeVar("T")


class Endings:
    """Who waits for the end of what let which caller in; `look` tells those that it has come for."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._waiting: dict[asyncio.Future[None], Caller] = {}

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def look(self) -> None:
        """Call it after each change of tokens and sessions, and once in a while, as time ends tokens too."""
        for future, caller in list(self._waiting.items()):
            if not future.done() and not self._tokens.counts(caller):
                future.set_result(None)

    async def of(self, caller: Caller) -> None:
        """Wait until what let a caller in counts no more."""
        if not self._tokens.counts(caller):
            return
        future = asyncio.get_running_loop().create_future()
        self._waiting[future] = caller
        try:
            await future
        finally:
            del self._waiting[future]

    async def stream(self, caller: Caller, events: AsyncIterator[T]) -> AsyncGenerator[T]:
        """The events, as long as what let the caller in counts."""
        ended = asyncio.ensure_future(self.of(caller))
        coming: asyncio.Future[T] | None = None
        try:
            while True:
                coming = asyncio.ensure_future(_next(events))
                await asyncio.wait((ended, coming), return_when=asyncio.FIRST_COMPLETED)
                if ended.done():
                    return
                try:
                    event = coming.result()
                except StopAsyncIteration:
                    return
                yield event
        finally:
            for task in (ended, coming):
                if task is not None:
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration):
                        await task
            if isinstance(events, AsyncGenerator):
                await events.aclose()


async def _next(events: AsyncIterator[T]) -> T:
    return await anext(events)
