"""A server's hold on the registry's lease: asked for each second, acted upon only while it surely holds.

    LeaseRepository.ask ─→ Tenure ─→ is_held, fence: asked by whoever begins what one server alone may do

Decisions are `catalog.lease`'s. A registry that is locked or away renews nothing: the tenure runs out by this
server's own clock, before the row lets another take over; where nobody did, the same fencing number goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from sqlalchemy.exc import SQLAlchemyError

from server.catalog.lease import LOOK_S, Holding, SeenServer, Tenure, Wait, decide, tenure
from server.errors import ServiceError
from server.store.leases import LeaseRepository
from server.supervision import Tasks

__all__ = ["ALONE", "Leading", "Lease", "has_ended", "seen_now"]

log = logging.getLogger("ml_udf.server.lease")

_SEEN_EVERY_S = 5.0  # that a server which waits says that it lives
_RENEW_BELOW_S = 4.0  # of a tenure's time
_LEAVE_S = 3.0  # for a registry that answers late when the server ends


class Leading(Protocol):
    """Whether this server does what only one may do."""

    @property
    def is_held(self) -> bool:
        """Whether it may begin or write something now."""

    @property
    def fence(self) -> int | None:
        """By which storage knows its writes from those of holders before and after."""


class _Alone:
    """Of a server that shares its registry with nobody, so that nothing needs to be fenced."""

    is_held = True
    fence = None


ALONE: Leading = _Alone()


class Lease:
    """`clock`: seconds that a suspended machine counts too."""

    def __init__(
        self,
        repository: LeaseRepository,
        server: SeenServer,
        tasks: Tasks | None = None,
        *,
        clock: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
        look_s: float = LOOK_S,
    ) -> None:
        self._repository = repository
        self._server = server
        self._tasks = tasks or Tasks()
        self._clock = clock
        self._look_s = look_s
        self._tenure: Tenure | None = None
        self._seen_at_s = -_SEEN_EVERY_S
        self._asking = asyncio.Lock()
        self._has_left = False
        self._is_away = False

    @property
    def server(self) -> SeenServer:
        """This one."""
        return self._server

    @property
    def is_held(self) -> bool:
        """See `Leading.is_held`."""
        return self._tenure is not None and self._tenure.holds(self._clock())

    @property
    def fence(self) -> int | None:
        """See `Leading.fence`; that of a tenure that ran out stays until another server's is known."""
        return None if self._tenure is None else self._tenure.fence

    def servers(self) -> tuple[list[SeenServer], Holding, float]:
        """All that share the registry, the lease, the database's time. Blocking. Raises `ServiceError`."""
        return self._repository.servers()

    async def start(self) -> None:
        """Ask once, and go on asking."""
        await self.step()
        self._tasks.always("lease", self._keep)

    async def leave(self) -> None:
        """Hold it no more, so that another server takes it at once."""
        if self._has_left:
            return
        self._has_left, self._tenure = True, None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LEAVE_S), self._asking:
                try:
                    await asyncio.to_thread(self._repository.leave, self._server.id)
                except (SQLAlchemyError, ServiceError, OSError) as error:
                    log.error("lease not given back, it runs out reason=%r", str(error))

    async def close(self) -> None:
        """`leave`, and stop."""
        await self.leave()
        await self._tasks.close()

    async def step(self) -> None:
        """Look at the lease once, and take or renew it where that may be."""
        async with self._asking:
            asked_s = self._clock()
            if self._has_left or (self._tenure and self._tenure.until_s - asked_s > _RENEW_BELOW_S):
                return
            try:
                found = await asyncio.to_thread(self._asked, asked_s)
            except (SQLAlchemyError, ServiceError, OSError) as error:
                if not self._is_away:
                    log.error("lease not asked for reason=%r", str(error))
                self._is_away = True
                return
            self._is_away = False
            if not self._has_left:
                self._note(found, asked_s)

    def _asked(self, asked_s: float) -> Holding:
        """The lease as it stands after this server has asked. Blocking. Writes only where it has to."""
        if self._tenure is None and asked_s - self._seen_at_s < _SEEN_EVERY_S:
            found, now_s = self._repository.holding()
            if isinstance(decide(found, self._server.id, now_s), Wait) and not self._is_gone(found):
                return found
        found = self._repository.ask(self._server, has_ended)
        self._seen_at_s = asked_s
        return found

    def _is_gone(self, found: Holding) -> bool:
        seen, _, _ = self._repository.servers()
        return any(each.id == found.holder and has_ended(each.process) for each in seen)

    def _note(self, found: Holding, asked_s: float) -> None:
        before = self.fence
        if found.holder != self._server.id:
            self._tenure = None
            if before is not None:
                log.warning("the lease is another server's now holder=%s", found.holder)
            return
        self._tenure = tenure(found.fence, asked_s)
        if before != found.fence:
            log.info("this server holds the lease fence=%d", found.fence)

    async def _keep(self) -> None:
        while not self._has_left:
            await asyncio.sleep(self._look_s)
            await self.step()


def seen_now(name: str, version: str) -> SeenServer:
    """This process, under an id that none before had."""
    host = socket.gethostname()[:30]
    return SeenServer(
        f"{host}:{os.getpid()}:{secrets.token_hex(8)}", name[:300], version, _process(os.getpid())
    )


def has_ended(process: str) -> bool:
    """Whether a process of this machine has ended for certain; False of every other machine's."""
    parts = process.split("/")
    if len(parts) != 4 or parts[:2] != [_boot(), _namespace()] or not parts[0]:
        return False
    return _process(int(parts[2])) != process


def _process(pid: int) -> str:
    """Boot, namespace, pid and start of a process of this machine; "" of none, or where nothing tells."""
    try:
        told = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    state, started = told[0], told[19]
    return "" if state in "ZX" else f"{_boot()}/{_namespace()}/{pid}/{started}"


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
