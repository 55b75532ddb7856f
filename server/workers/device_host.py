"""What stands on a node for one device: it starts the worker process there, and lets the server in to it.

    order → listen → one server admitted → python -m gpu_worker at the connection → its end

Within one machine the worker gets the server's connection itself, and nothing is between them. Between
machines this process does TLS, and hands bytes on. Either way it ends when the connection does, when nobody
came, and when the process that started it is gone: an orphan would keep the device. Knows no messages and no
models.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import os
import select
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from server.version import VERSION
from server.workers.environment import worker_environment
from server.workers.peers import Identity, PeerRefused, admit_server, new_identity, tls_context

__all__ = ["EXITED", "DeviceHost", "Order", "Place"]

log = logging.getLogger("ml_udf.workers.host")

_LOOK_S = 0.5
_ADMISSION_S = 5.0  # of one who connects and says nothing
_MOST_AT_THE_DOOR = 16
_END_S = 10.0  # that a worker has to end whose connection has closed
_PIECE_BYTES = 1 << 18

EXITED = "exit status"  # how a host begins to say why its worker is over, if it lives to say so


@dataclass(frozen=True, slots=True)
class Order:
    """What a server wants of a host. Travels as JSON.

    command: after the interpreter's own name; "{fd}" in it stands for the worker's end of the socket.
    variables: names of the environment that the worker needs beside the usual ones. listen_on: an address.
    ports: the first and the last that it may listen at; (0, 0) = whichever is free. token: in hexadecimal.
    certificate: the server's, in PEM; "" for no TLS. start_s: until the server must have come.
    """

    version: str
    command: list[str]
    variables: list[str]
    listen_on: str
    ports: tuple[int, int]
    token: str
    certificate: str
    start_s: float

    def to_bytes(self) -> bytes:
        """As it travels."""
        return json.dumps(asdict(self)).encode()


@dataclass(frozen=True, slots=True)
class Place:
    """Where a host waits for its server. certificate: its own, in PEM; "" for no TLS. pid: of the host."""

    address: str
    port: int
    pid: int
    certificate: str

    def to_bytes(self) -> bytes:
        """As it travels."""
        return json.dumps(asdict(self)).encode()


class DeviceHost:
    """One worker's life on a node: `listen` once, then `serve` once, in one event loop.

    environment: of this process; None to look itself. end: ends it, with an exit status.
    """

    def __init__(
        self,
        order: bytes,
        environment: Mapping[str, str] | None = None,
        end: Callable[[int], None] = os._exit,
    ) -> None:
        self._order = Order(**json.loads(order))
        if self._order.version != VERSION:
            raise RuntimeError(
                f"this node has ml_udf {VERSION}, and the server {self._order.version}: "
                "install the same on both"
            )
        own = dict(os.environ if environment is None else environment)
        own.pop("OMP_NUM_THREADS", None)  # the cluster's, by the cores that it counts for this process: none
        self._environment = worker_environment(own, self._order.variables)
        self._end = end
        self._listening: socket.socket | None = None
        self._identity: Identity | None = None
        self._process: asyncio.subprocess.Process | None = None
        threading.Thread(target=self._end_with_parent, args=(os.getppid(),), daemon=True).start()

    async def listen(self) -> bytes:
        """Where the server may come: a `Place`. Raises OSError for an address of another machine, and where
        no port is free.
        """
        self._listening = self._at_a_port()
        if self._order.certificate:
            self._identity = new_identity()
        port = int(self._listening.getsockname()[1])
        certificate = "" if self._identity is None else self._identity.certificate
        return Place(self._order.listen_on, port, os.getpid(), certificate).to_bytes()

    async def serve(self) -> bytes:
        """Admit the server, run the worker until its end, and end this process soon after; why it ended."""
        try:
            try:
                async with asyncio.timeout(self._order.start_s):
                    connection = await self._admitted()
            except TimeoutError:
                return f"no server came within {self._order.start_s:g} s".encode()
            return (await self._run(connection)).encode()
        finally:
            asyncio.get_running_loop().call_later(1.0, self._end, 0)  # the answer goes out first

    def _at_a_port(self) -> socket.socket:
        first, last = self._order.ports
        family = socket.AF_INET6 if ":" in self._order.listen_on else socket.AF_INET
        for port in range(first, last + 1):
            listening = socket.socket(family, socket.SOCK_STREAM)
            listening.setblocking(False)
            # A worker that ended a moment ago keeps its port from nobody.
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listening.bind((self._order.listen_on, port))
                listening.listen(_MOST_AT_THE_DOOR)  # of two that bind at once, one may
            except OSError as exc:
                listening.close()
                if exc.errno != errno.EADDRINUSE:
                    raise
            else:
                return listening
        raise OSError(errno.EADDRINUSE, f"none of the ports {first}-{last} is free (--node-ports)")

    # ── the door ────────────────────────────────────────────────────────────────────────────────────────

    async def _admitted(self) -> socket.socket:
        """The connection of the one that has the token; others are hung up on, and nobody waits for them."""
        listening = self._listening
        assert listening is not None, "listen comes first"
        loop = asyncio.get_running_loop()
        admitted: asyncio.Future[socket.socket] = loop.create_future()
        at_the_door: set[asyncio.Task[None]] = set()

        async def look(connection: socket.socket) -> None:
            try:
                async with asyncio.timeout(_ADMISSION_S):
                    await admit_server(connection, bytes.fromhex(self._order.token))
                if not admitted.done():
                    admitted.set_result(connection)
                    return
            except (TimeoutError, OSError, PeerRefused) as exc:
                log.warning("somebody was not let in reason=%r", str(exc))
            connection.close()

        async def accept() -> None:
            while True:
                connection, _ = await loop.sock_accept(listening)
                if len(at_the_door) >= _MOST_AT_THE_DOOR:
                    connection.close()
                    continue
                connection.setblocking(False)
                looking = asyncio.create_task(look(connection))
                at_the_door.add(looking)
                looking.add_done_callback(at_the_door.discard)

        accepting = asyncio.create_task(accept())
        try:
            return await admitted
        finally:
            for task in (accepting, *at_the_door):
                task.cancel()
            await asyncio.gather(accepting, *at_the_door, return_exceptions=True)
            listening.close()

    # ── the worker ──────────────────────────────────────────────────────────────────────────────────────

    async def _run(self, connection: socket.socket) -> str:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._identity is None:
            with connection:
                process = await self._started(connection)
                return await self._until_over(process, lambda: _is_hung_up(connection))
        context = tls_context(self._identity, self._order.certificate, is_server=True)
        ours, theirs = socket.socketpair()
        with theirs:
            process = await self._started(theirs)
        relay = asyncio.create_task(_relay(connection, context, ours))
        try:
            return await self._until_over(process, relay.done)
        finally:
            relay.cancel()
            await asyncio.gather(relay, return_exceptions=True)

    async def _started(self, connection: socket.socket) -> asyncio.subprocess.Process:
        connection.setblocking(True)
        descriptor = connection.fileno()
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            *(part.replace("{fd}", str(descriptor)) for part in self._order.command),
            pass_fds=(descriptor,),
            stdin=asyncio.subprocess.DEVNULL,
            env=self._environment,
            start_new_session=True,
        )
        return self._process

    async def _until_over(self, process: asyncio.subprocess.Process, is_hung_up: Callable[[], bool]) -> str:
        ending = asyncio.create_task(process.wait())
        hung_up_s = 0.0
        while not ending.done():
            await asyncio.wait({ending}, timeout=_LOOK_S)
            if not hung_up_s and is_hung_up():
                hung_up_s = time.monotonic()
            if hung_up_s and time.monotonic() - hung_up_s > _END_S and not ending.done():
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                break
        return f"{EXITED} {await ending}"

    def _end_with_parent(self, parent: int) -> None:
        """In a thread of its own, so that nothing this process is at keeps it from looking."""
        while os.getppid() == parent and not _is_dead(parent):
            time.sleep(_LOOK_S)
        process = self._process
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        self._end(1)


def _is_dead(pid: int) -> bool:
    """Also of one that nobody has waited for: a zombie is still its children's parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return False  # there is no /proc here, or the parent changes as we look


def _is_hung_up(connection: socket.socket) -> bool:
    """Without reading, which is the worker's to do."""
    looked = select.poll()
    looked.register(connection, select.POLLRDHUP)
    return bool(looked.poll(0))


async def _relay(connection: socket.socket, context: ssl.SSLContext, worker: socket.socket) -> None:
    """Bytes both ways until either side ends; then both have."""
    far_in, far_out = await _streams(connection, context)
    near_in, near_out = await _streams(worker, None)
    ways = {
        asyncio.create_task(_hand_on(far_in, near_out)),
        asyncio.create_task(_hand_on(near_in, far_out)),
    }
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        near_out.close()
        far_out.close()


async def _streams(
    connection: socket.socket, context: ssl.SSLContext | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    connection.setblocking(False)
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_PIECE_BYTES)
    protocol = asyncio.StreamReaderProtocol(reader)
    if context is None:
        transport, _ = await loop.create_connection(lambda: protocol, sock=connection)
    else:
        transport, _ = await loop.connect_accepted_socket(lambda: protocol, connection, ssl=context)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


async def _hand_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, ssl.SSLError):
        while piece := await reader.read(_PIECE_BYTES):
            writer.write(piece)
            await writer.drain()
