"""Browsers log out: here at once, and within two seconds on other servers of the registry.

On the event loop; the registry is asked in threads. What it cannot be told at once counts here all the same,
and is told later.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime

from sqlalchemy.exc import SQLAlchemyError

from server.access.ended_sessions import EndedSessions
from server.access.sessions import Session
from server.administration.endings import Endings
from server.errors import ServiceError
from server.store.sessions import EndedSession, EndedSessionRepository
from server.supervision import Tasks

__all__ = ["SessionService"]

log = logging.getLogger("ml_udf.server.sessions")

_LOOK_EVERY_S = 1.0
_MOST_WAITING = 10_000


class SessionService:
    """Ends sessions; keeps `ended` what the registry has. endings: of the streams that they opened."""

    def __init__(
        self,
        repository: EndedSessionRepository,
        ended: EndedSessions,
        endings: Endings,
        tasks: Tasks | None = None,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        look_every_s: float = _LOOK_EVERY_S,
    ) -> None:
        self._repository = repository
        self._ended = ended
        self._endings = endings
        self._tasks = tasks or Tasks()
        self._clock = clock
        self._look_every_s = look_every_s
        self._state: int | None = None
        self._waiting: deque[EndedSession] = deque(maxlen=_MOST_WAITING)
        self._following = asyncio.Lock()

    def start(self) -> None:
        """Begin to look for what other servers do."""
        self._tasks.always("look for log-outs", self._look)

    async def close(self) -> None:
        """Stop, after a last try to tell the registry."""
        await self._tasks.close()
        await asyncio.wait({self._tasks.once("look for log-outs", self._try_to_follow())})

    async def end(self, session: Session) -> None:
        """Every copy of its cookie counts no more, and every stream that was opened with it ends."""
        caller = session.caller
        if not caller.session or session.expires_s is None:  # where nobody is logged in
            return
        ended = EndedSession(caller.digest, caller.session, datetime.fromtimestamp(session.expires_s, UTC))
        self._ended.keep(ended)
        self._waiting.append(ended)
        self._endings.look()
        await self._try_to_follow()

    async def refresh(self) -> None:
        """Tell the registry what it does not know, and look at once what other servers have ended."""
        async with self._following:
            while self._waiting:
                ended = self._waiting.popleft()
                try:
                    await asyncio.to_thread(self._repository.add, ended, self._clock())
                except BaseException:
                    self._waiting.appendleft(ended)
                    raise
            state = await asyncio.to_thread(self._repository.state)
            if state != self._state:
                found = await asyncio.to_thread(self._repository.all)
                self._ended.replace([*found, *self._waiting])
                self._state = state
                self._endings.look()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(self._look_every_s)
            await self._try_to_follow()

    async def _try_to_follow(self) -> None:
        try:
            await self.refresh()
        except (SQLAlchemyError, ServiceError, OSError) as error:  # what is known goes on to count
            log.warning("log-outs not followed waiting=%d error=%r", len(self._waiting), str(error))
