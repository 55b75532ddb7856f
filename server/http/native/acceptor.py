"""Listening sockets whose clients become the native front's. Stands where asyncio's `Server` does."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from functools import partial

from server.http.native.connections import NativeConnections

__all__ = ["Acceptor"]

log = logging.getLogger("ml_udf.server")

_A_TURN = 512  # clients, before those that are here already are read again: a few milliseconds
_PAUSE_S = 1.0
_NO_WATCH = errno.ENOSPC  # epoll may watch no more
_SHORT = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, _NO_WATCH))


class Acceptor:
    """Accepts until it is closed; what it has accepted goes on."""

    def __init__(self, connections: NativeConnections, sockets: list[socket.socket]) -> None:
        self.sockets = sockets
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._pauses: dict[socket.socket, asyncio.TimerHandle] = {}
        for listening in sockets:
            self._listen(listening)

    @classmethod
    async def listen(cls, connections: NativeConnections, host: str, port: int, backlog: int) -> Acceptor:
        """Listen on every address of `host`. Raises OSError."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        sockets: list[socket.socket] = []
        try:
            for family, kind, protocol, _, address in dict.fromkeys(found):
                try:
                    made = socket.socket(family, kind, protocol)
                except OSError:  # this machine has none of that family
                    continue
                sockets.append(made)
                made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                made.bind(address)
                made.listen(backlog)
                made.setblocking(False)
            if not sockets:
                raise OSError(f"there is no address of {host!r} to listen on")
        except OSError:
            for made in sockets:
                made.close()
            raise
        return cls(connections, sockets)

    def close(self) -> None:
        """Accept nobody any more."""
        for pause in self._pauses.values():
            pause.cancel()
        for listening in self.sockets:
            if listening.fileno() >= 0:
                self._loop.remove_reader(listening.fileno())
                listening.close()

    async def wait_closed(self) -> None:
        """As asyncio's; nothing is left to wait for."""

    def _listen(self, listening: socket.socket) -> None:
        self._pauses.pop(listening, None)
        self._loop.add_reader(listening.fileno(), partial(self._accept, listening))

    def _accept(self, listening: socket.socket) -> None:
        try:
            self._connections.accept(listening, _A_TURN)
        except OSError as error:
            if error.errno not in _SHORT:
                raise
            # It stays readable: looked at again at once, it would take a whole core.
            log.error("no client accepted for %g s: %s", _PAUSE_S, os.strerror(error.errno))
            self._loop.remove_reader(listening.fileno())
            self._pauses[listening] = self._loop.call_later(_PAUSE_S, self._listen, listening)
