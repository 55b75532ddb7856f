"""uvicorn's life of a server, with connections of our own, stopped as this server wants to be stopped.

The first SIGTERM or SIGINT drains: not ready, no new rows, requests in flight finish. The second ends at
once. SIGHUP, with TLS, reads the certificate again: connections that come from then on meet the new one.
Without TLS it ends the server as SIGTERM does.
Knows HTTP servers and signals, nothing of what is served.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any, TypedDict, cast

import uvicorn
from starlette.types import ASGIApp

from server.http.application import Application
from server.http.connection import Connection, ConnectionLimits, Connections
from server.http.open_files import make_room
from server.http.tls import Tls, TlsError

__all__ = ["Listener", "Running"]

log = logging.getLogger("ml_udf.server")

_NOT_STARTED = 3
_BACKLOG = 2048
_LAST_REPLIES_S = 5  # for replies that are being written when the drain is over
_WARN_EVERY_S = 86_400.0  # of certificates that expire
_ALLOCATIONS = 50_000  # containers made and not freed, before the youngest are looked over for circles


class Running(TypedDict):
    """What the lifespan of an application yields, as its state.

    application: what requests go to · watch: is given `Connections.occupancy`, to ask whenever it likes
    drain: awaited before the doors close · greeting: from the server's address to what is said of it, once
    it answers
    """

    application: Application
    watch: Callable[[Callable[[], tuple[int, int]]], None]
    drain: Callable[[], Awaitable[None]]
    greeting: Callable[[str], Sequence[str]]


class Listener(uvicorn.Server):
    """Serves, on `host` and `port`, what the lifespan of `app` yields: a `Running`."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        host: str,
        port: int,
        port_file: Path | None = None,
        tls: Tls | None = None,
        limits: ConnectionLimits = ConnectionLimits(),  # noqa: B008  # immutable
        native: bool = False,
    ) -> None:
        """native: by the front of server/http/native, which has to be built and speaks no TLS."""
        super().__init__(
            uvicorn.Config(
                app,
                host=host,
                port=port,
                loop="uvloop",
                http=Connection,
                ws="none",
                lifespan="on",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                log_config=None,
                timeout_graceful_shutdown=_LAST_REPLIES_S,
            )
        )
        self._tls = tls
        self._limits = limits
        self._native = native
        self._port_file = port_file
        self._running: Running | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining: asyncio.Task[None] | None = None
        self._reloading = asyncio.Lock()
        self._reloads: set[asyncio.Task[None]] = set()
        self._connections: Connections | None = None
        self._warning: asyncio.TimerHandle | None = None

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen until told to stop; what is left then can be collected."""
        try:
            super().run(sockets)
        finally:
            gc.unfreeze()  # else what modules hold stays when Python ends, which libraries tell as a leak

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then say so: one line on standard output, and the port's file."""
        loop = self._loop = asyncio.get_running_loop()
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            sys.exit(_NOT_STARTED)
        running = self._running = cast(Running, self.lifespan.state)
        try:
            server = await self._first_server(running["application"])
        except OSError as exc:
            log.error("cannot listen on %s:%d: %s", self.config.host, self.config.port, exc)
            await self.lifespan.shutdown()
            sys.exit(_NOT_STARTED)
        assert self._connections is not None
        make_room(self._limits.connections)
        running["watch"](self._connections.occupancy)
        host, port = server.sockets[0].getsockname()[:2]
        if self._port_file is not None:
            try:
                _write_port(self._port_file, port)
            except OSError as exc:
                log.error("the port cannot be written to %s: %s", self._port_file, exc.strerror)
                server.close()
                await self.lifespan.shutdown()
                sys.exit(_NOT_STARTED)
        self.servers = [server]
        self.started = True
        _spare_collections()
        name = f"[{host}]" if ":" in host else host
        scheme = "http" if self._tls is None else "https"
        url = f"{scheme}://{name}:{port}"
        print(f"ml_udf server listening on {url}", flush=True)  # noqa: T201  # the promised line
        for line in running["greeting"](url):
            print(line, flush=True)  # noqa: T201  # for whoever started it
        if self._tls is None:  # its terminal is closed: what is in flight is finished all the same
            loop.add_signal_handler(signal.SIGHUP, self.handle_exit, signal.SIGHUP, None)
        else:
            self._warn_of_certificates()
            loop.add_signal_handler(signal.SIGHUP, self._reload)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal: drain, or, the second time, go."""
        if self._loop is None or self._draining is not None or self.should_exit:
            self.should_exit = self.force_exit = True
            return
        log.info("stopping signal=%d", sig)
        self._loop.call_soon_threadsafe(self.stop)

    def stop(self) -> None:
        """Drain, then end; on the event loop."""
        if self._draining is None:
            self._draining = asyncio.ensure_future(self._drain_and_exit())

    async def _first_server(self, application: Application) -> asyncio.Server:
        shared: dict[str, Any] = {
            "default_headers": lambda: self.server_state.default_headers,
            "open_ones": self.server_state.connections,
            "tasks": self.server_state.tasks,
        }
        host, port = self.config.host, self.config.port
        if not self._native:
            self._connections = Connections(application, self._limits, **shared)
            return await self._listen(self._tls, host=host, port=port)
        # Here: where it is not built, nothing of it can be imported.
        from server.http.native.acceptor import Acceptor
        from server.http.native.connections import NativeConnections

        native = self._connections = NativeConnections(application, self._limits, **shared)
        try:
            # It has what is asked of a server here: its sockets, and an end.
            return cast(asyncio.Server, await Acceptor.listen(native, host, port, _BACKLOG))
        except OSError:
            native.shutdown()
            raise

    async def _listen(self, tls: Tls | None, **where: Any) -> asyncio.Server:  # noqa: ANN401  # as create_server's
        assert self._loop is not None and self._connections is not None  # noqa: PT018
        return await self._loop.create_server(
            self._connections.new,
            **where,
            backlog=_BACKLOG,
            ssl=None if tls is None else tls.context,
            ssl_handshake_timeout=None if tls is None else self._limits.head_s,
        )

    def _reload(self) -> None:
        reload = asyncio.ensure_future(self._listen_anew())
        self._reloads.add(reload)
        reload.add_done_callback(self._reloads.discard)

    async def _listen_anew(self) -> None:
        """Read the certificate again, and let who connects from now on meet it.

        A second server takes over the socket, which stays open the while: nobody finds it closed, and whoever
        waits in it is accepted.
        """
        assert self._tls is not None
        async with self._reloading:
            try:
                tls = self._tls.read_again(datetime.now(UTC))
                sockets = [one for server in self.servers for one in server.sockets]
                same = [socket.fromfd(one.fileno(), one.family, one.type) for one in sockets]
                servers = [await self._listen(tls, sock=one) for one in same]
            except (TlsError, OSError) as error:
                log.error("certificate not read again, the old one goes on: %s", error)
                return
            olds, self.servers, self._tls = self.servers, servers, tls
            for old in olds:
                old.close()
            log.info("certificate read again")
            self._warn_of_certificates()

    def _warn_of_certificates(self) -> None:
        """At once, and each day."""
        assert self._tls is not None and self._loop is not None  # noqa: PT018
        for warning in self._tls.warnings(datetime.now(UTC)):
            log.warning("%s", warning)
        if self._warning is not None:
            self._warning.cancel()
        self._warning = self._loop.call_later(_WARN_EVERY_S, self._warn_of_certificates)

    async def _drain_and_exit(self) -> None:
        try:
            if self._running is not None:
                await self._running["drain"]()
        except Exception:
            log.exception("not drained")
        finally:
            self.should_exit = True


def _spare_collections() -> None:
    """Let requests not pay for what was there before them.

    A collection of everything takes 0.1 to 0.3 s with all modules loaded, and comes in the middle of
    requests. What is there now stays for good: it is not looked at again. Requests leave no circles behind,
    so the young need be looked over rarely; thousands of waiting requests are no reason.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_ALLOCATIONS, 20, 20)


def _write_port(path: Path, port: int) -> None:
    # Whole or not at all: whoever waits for the file may read it the moment it is there.
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".port-", delete=False) as out:
        try:
            out.write(str(port))
            out.flush()
            os.replace(out.name, path)
        except OSError:
            os.unlink(out.name)
            raise
