"""The native front on a port, for the length of a `with` block."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from server.http.application import Application
from server.http.connection import ConnectionLimits, Connections
from server.http.native.acceptor import Acceptor
from server.http.native.connections import NativeConnections
from tests.waiting import until

__all__ = ["serving_native"]


@contextlib.asynccontextmanager
async def serving_native(
    application: Application, limits: ConnectionLimits
) -> AsyncIterator[tuple[Connections, int]]:
    connections = NativeConnections(application, limits)
    acceptor = await Acceptor.listen(connections, "127.0.0.1", 0, backlog=2048)
    try:
        yield connections, acceptor.sockets[0].getsockname()[1]
    finally:
        acceptor.close()
        for connection in list(connections.open):
            connection.shutdown()
        await until(lambda: not connections.open)
