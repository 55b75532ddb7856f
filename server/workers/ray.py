"""Workers on the machines of a Ray cluster: a host a device, and sockets of our own for all that is said.

    driver (a child that speaks Ray) ── start a host on that node ──► device_host ── starts ─► gpu_worker
    this process ════════ TCP: token, between machines TLS, then the worker protocol ═════════════╝

Ray chooses nothing: nodes are chosen here, rows by the scheduler as ever. A worker is lost as soon as its
socket closes, its host's end is told, or a ping is unanswered for 3 s, which Ray itself sees after 20 to 60
s. A node that does not see this machine's files is sent them over the same sockets: models and what training
reads, photos among it, as it asks for them, rows that name files as what these hold. What training stores
there comes back by them. Imports no Ray.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_worker.wire.protocol import (
    CheckpointStored,
    Crop,
    Failed,
    FilePiece,
    GivePiece,
    Infer,
    Inspect,
    MakeVariant,
    Message,
    StoreCheckpoint,
    WantPiece,
)
from server.supervision import Tasks
from server.version import VERSION
from server.workers.channel import Channel, called
from server.workers.device_host import EXITED, Order, Place
from server.workers.driver_link import ClusterError, DriverLink
from server.workers.file_rows import FileRows, SentRows
from server.workers.nodes import Node, choose, wants_gpu
from server.workers.offered_files import OFFERS, OfferedFiles
from server.workers.offered_pictures import TAUGHT_BY_ROWS, OfferedPictures, PictureFiles
from server.workers.peers import (
    TOKEN_BYTES,
    Identity,
    PeerRefused,
    new_identity,
    prove_as_server,
    tls_context,
)
from server.workers.pool import OnReply, WorkerInfo
from server.workers.supervised_pool import SupervisedPool, Timing
from server.workers.taken_files import TakenFiles

__all__ = ["FarFiles", "NodeFiles", "RayPool", "RayWorker", "driver_command", "first_look", "ray_timing"]

log = logging.getLogger("ml_udf.server.workers")

_NODES_S = 10.0  # that the cluster has to say who is there
_HOST_S = 30.0  # that a host has to start; on a node that Ray does not know yet to be gone it never does
_COME_S = 60.0  # that a host waits for this process, which comes at once
_CONNECT_S = 5.0  # of a socket to a host, which listens already

# The command line of worker number i on a node, after the interpreter; "{fd}" stands for its socket.
CommandOn = Callable[[int, Node], Sequence[str]]


def ray_timing(start_s: float) -> Timing:
    """Of workers on other machines: one whose machine stands still is away within 3 s."""
    return Timing(start_s=start_s, backoff_most_s=2.0, ping_every_s=1.0, silent_s=3.0, term_grace_s=5.0)


def driver_command(address: str, fd: int) -> Sequence[str]:
    """Of the driver whose socket is `fd`. address: of the cluster's head; "" for the one of this machine."""
    return [sys.executable, "-m", "server.workers.ray_driver", f"--fd={fd}", f"--address={address}"]


async def first_look(
    command_for: Callable[[int], Sequence[str]], environment: Mapping[str, str] | None, within_s: float
) -> list[Node]:
    """The nodes of the cluster. Raises `ClusterError` where it cannot be joined within that time."""
    link = DriverLink(command_for, environment, lambda host, reason: None, within_s)
    try:
        return await _nodes(link)
    finally:
        await link.close()


async def _nodes(link: DriverLink) -> list[Node]:
    return [Node(**told) for told in (await link.ask("nodes", _NODES_S))["nodes"]]


@dataclass(frozen=True, slots=True)
class NodeFiles:
    """Which of this machine's files a node sees by the same paths: the server's home, the media roots.

    rows, pictures: by whom rows that name files are read for one that does not see them, as it is asked and
    as it is taught.
    """

    sees_home: Callable[[Node], bool] = lambda node: True
    sees_media: Callable[[Node], bool] = lambda node: True
    rows: FileRows | None = None
    pictures: PictureFiles | None = None


class FarFiles:
    """What a worker reads and stores of the server's files, which it does not see.

    sees_home: it sees all but those that rows name. pictures: of whom it has these; None where it sees them.
    """

    def __init__(self, pictures: PictureFiles | None = None, *, sees_home: bool = False) -> None:
        self._sees_home = sees_home
        self._offered = OfferedFiles()
        self._taken = TakenFiles()
        self._pictures = None if pictures is None else OfferedPictures(pictures)

    def moved(self, message: WantPiece | GivePiece, tell: Callable[[Message], None]) -> None:
        """It asks for a piece, or gives one."""
        if isinstance(message, GivePiece):
            self._taken.given(message, tell)
        elif not message.is_picture:
            self._offered.wanted(message, tell)
        elif self._pictures is not None:
            self._pictures.wanted(message, tell)
        else:
            tell(FilePiece(message.id, [b""], 0, "it sees the photos that it asks for"))

    def begun(self, message: Message) -> None:
        """It was sent, under its id."""
        if self._pictures is not None and isinstance(message, TAUGHT_BY_ROWS):
            self._pictures.begun(message)
        if self._sees_home:
            return
        if isinstance(message, OFFERS):
            self._offered.begun(message)
        if isinstance(message, StoreCheckpoint | MakeVariant):
            self._taken.begun(message)

    def over(self, reply: Message) -> Message:
        """The reply; of a checkpoint that has not come whole, that it is not stored."""
        if self._pictures is not None:
            self._pictures.over(reply.id)
        if self._sees_home:
            return reply
        self._offered.over(reply.id)
        whole = self._taken.over(reply.id)
        if isinstance(reply, CheckpointStored) and not any(
            name.partition(".")[0] == reply.checkpoint and name.count(".") == 1 for name in whole
        ):
            return Failed(
                reply.id, "internal", f"the checkpoint {reply.checkpoint} has not come from its node"
            )
        return reply


class RayWorker:
    """One life of a worker on a node. pid: of its host there · hosts: by which it is ended.

    files: what it has to ask for and to give; None where it sees them. rows: by which it is sent rows
    that name files; None where it reads them itself.
    """

    def __init__(
        self,
        name: str,
        host: str,
        node: Node,
        pid: int,
        channel: Channel,
        hosts: _Hosts,
        files: FarFiles | None,
        rows: SentRows | None,
    ) -> None:
        self.name = name
        self.pid: int | None = pid
        self.info = WorkerInfo("", "", 0, node=node.name, is_far=not node.is_here)
        self._host = host
        self._node = node
        self._channel = channel
        self._hosts = hosts
        self._files = files
        self._rows = rows

    @property
    def node(self) -> str:
        """See `StartedWorker.node`."""
        return self._node.name

    @property
    def sees_pictures(self) -> bool:
        """See `StartedWorker.sees_pictures`."""
        return self._rows is None

    def send(self, message: Message, on_reply: OnReply) -> int:
        """See `Worker.send`."""
        if self._rows is not None and isinstance(message, Infer | Crop) and message.form == "path":
            return self._rows.send(message, on_reply)
        if self._files is not None and isinstance(message, OFFERS | StoreCheckpoint | Inspect):
            return self._send_with_files(self._files, message, on_reply)
        return self._channel.send(message, on_reply)

    def _send_with_files(self, files: FarFiles, message: Message, on_reply: OnReply) -> int:
        message_id = self._channel.send(message, lambda reply: on_reply(files.over(reply)))
        files.begun(message)
        return message_id

    async def call(self, message: Message) -> Message:
        """See `Worker.call`."""
        return await called(self.send, message)

    def cancel(self, message_id: int) -> None:
        """See `Worker.cancel`."""
        if self._rows is None or not self._rows.cancel(message_id):
            self._channel.cancel(message_id)

    def kill(self, reason: str) -> None:
        """See `Worker.kill`."""
        log.error("worker killed worker=%s node=%s reason=%r", self.name, self._node.name, reason)
        self._hosts.kill(self._host)
        # One whose machine is gone cannot be told so; it is lost all the same.
        self._channel.abort()

    async def ended(self, reason: str) -> str:
        """See `StartedWorker.ended`."""
        told = await self._hosts.over(self._host, 1.0)
        if not told.startswith(EXITED):
            self._hosts.suspect(self._node)
        return f"{reason}; {told}" if told else reason

    async def end(self, grace_s: float) -> None:
        """See `StartedWorker.end`."""
        self._channel.close()
        if not await self._hosts.over(self._host, grace_s):
            self._hosts.kill(self._host)
            self._channel.abort()
        self._hosts.forget(self._host)


class _Hosts:
    """Starts hosts on nodes, connects to them, and knows which are over. See `Launcher`."""

    def __init__(
        self,
        link_to: Callable[[Callable[[str, str], None]], DriverLink],
        devices: Sequence[str],
        command_on: CommandOn,
        variables: Sequence[str],
        files: NodeFiles,
        ports: tuple[int, int],
        tasks: Tasks,
        always_encrypted: bool,
    ) -> None:
        self._ports = ports
        self._files = files
        self._tasks = tasks
        self._link = link_to(self._lost)
        self._devices = devices
        self._command_on = command_on
        self._variables = list(variables)
        self._always_encrypted = always_encrypted
        self._over: dict[str, asyncio.Future[str]] = {}
        self._channels: dict[str, Channel] = {}
        self._taken: dict[str, tuple[str, bool]] = {}  # by host: its node, and whether it has a GPU there
        self._failed: dict[str, float] = {}  # by node: when a host last did not come up there
        self.drained: set[str] = set()  # names or ids of nodes
        self.known: set[str] = set()  # the same, of all that were ever seen

    async def launch(self, index: int, name: str, on_lost: Callable[[str], None]) -> RayWorker:
        """See `Launcher.launch`. Raises `NoNode`, `ClusterError`, `PeerRefused`, `OSError`."""
        nodes = await _nodes(self._link)
        self.known.update(*((node.name, node.id) for node in nodes))
        device = self._devices[index % len(self._devices)]
        gpu = wants_gpu(device)
        taken = Counter(node for node, has_gpu in self._taken.values() if has_gpu == gpu)
        node = choose(nodes, taken, device, drained=self.drained, failed=self._failed)
        host = f"{name}-{uuid.uuid4().hex}"
        self._taken[host] = (node.id, gpu)
        self._over[host] = asyncio.get_running_loop().create_future()
        sees_home, sees_media = self._files.sees_home(node), self._files.sees_media(node)
        pictures = None if sees_media else self._files.pictures
        files = None
        if not sees_home or pictures is not None:
            files = FarFiles(pictures, sees_home=sees_home)
        try:
            channel, pid = await self._met(host, index, node, gpu, on_lost, files)
        except BaseException as exc:
            if isinstance(exc, Exception):
                self._failed[node.id] = time.monotonic()
            self.kill(host)
            self.forget(host)
            if isinstance(exc, Exception):
                raise ClusterError(f"no worker on node {node.name}: {str(exc) or repr(exc)}") from exc
            raise
        self._failed.pop(node.id, None)
        self._channels[host] = channel
        rows = None
        if self._files.rows is not None and not sees_media:
            rows = SentRows(channel, self._files.rows, self._tasks)
        return RayWorker(name, host, node, pid, channel, self, files, rows)

    async def close(self) -> None:
        """See `Launcher.close`."""
        await self._link.close()
        for reading in (self._files.rows, self._files.pictures):
            if reading is not None:
                reading.close()

    # ── the ends of hosts ───────────────────────────────────────────────────────────────────────────────

    def suspect(self, node: Node) -> None:
        """A worker was lost there, and no host said why: others come first, until one has started there."""
        self._failed[node.id] = time.monotonic()

    def kill(self, host: str) -> None:
        """End it by force."""
        self._link.tell("end", host=host)

    async def over(self, host: str, within_s: float) -> str:
        """How it ended; "" if it has not within that time."""
        await asyncio.wait({self._over[host]}, timeout=within_s)
        return self._over[host].result() if self._over[host].done() else ""

    def forget(self, host: str) -> None:
        """Its place is free."""
        for kept in (self._over, self._channels, self._taken):
            kept.pop(host, None)

    def _lost(self, host: str, reason: str) -> None:
        for each in [host] if host else list(self._over):
            over = self._over.get(each)
            if over is not None and not over.done():
                over.set_result(reason)
        if (channel := self._channels.get(host)) is not None:
            channel.abort()  # of a machine that is gone, no socket says so

    # ── meeting one ─────────────────────────────────────────────────────────────────────────────────────

    async def _met(
        self,
        host: str,
        index: int,
        node: Node,
        gpu: bool,
        on_lost: Callable[[str], None],
        files: FarFiles | None,
    ) -> tuple[Channel, int]:
        token = secrets.token_bytes(TOKEN_BYTES)
        # Two nodes of one machine may both have its loopback address.
        is_near = node.is_here or node.address.startswith("127.") or node.address == "::1"
        own = new_identity() if self._always_encrypted or not is_near else None
        order = Order(
            version=VERSION,
            command=list(self._command_on(index, node)),
            variables=self._variables,
            listen_on="127.0.0.1" if is_near else node.address,
            ports=self._ports,
            token=token.hex(),
            certificate="" if own is None else own.certificate,
            start_s=_COME_S,
        )
        told = await self._link.ask(
            "start",
            _HOST_S + _NODES_S,
            host=host,
            node=node.id,
            gpu=gpu,
            order=order.to_bytes().decode(),
            start_s=_HOST_S,
        )
        place = Place(**told["place"])
        async with asyncio.timeout(_CONNECT_S):
            channel = Channel(on_lost, None if files is None else files.moved)
            await _connect(channel, place, token, own)
            return channel, place.pid


async def _connect(channel: Channel, place: Place, token: bytes, own: Identity | None) -> None:
    loop = asyncio.get_running_loop()
    family = socket.AF_INET6 if ":" in place.address else socket.AF_INET
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        await loop.sock_connect(connection, (place.address, place.port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await prove_as_server(connection, token)
        if own is not None and not place.certificate:
            raise PeerRefused("the worker's host has no certificate, and one was asked for")
        secured: dict[str, Any] = {}
        if own is not None:
            context = tls_context(own, place.certificate, is_server=False)
            secured = {"ssl": context, "server_hostname": ""}
        await loop.create_connection(lambda: channel, sock=connection, **secured)
    except BaseException:
        with contextlib.suppress(OSError):
            connection.close()
        raise


class RayPool(SupervisedPool):
    """`count` workers on the nodes of a cluster; `command_on(index, node)` is the command line of each.

    devices: the device of each worker there may be, by its number. variables: names of the nodes' environment
    that workers need beside the usual ones. environment: the driver's. files: which of them a node sees; all
    of them without. ports: the first and the last that hosts listen at; (0, 0) = any. link_tasks: for what
    outlives the workers. always_encrypted: also within a machine. drained: names and ids of nodes that take
    no worker from the beginning.
    """

    def __init__(
        self,
        count: int,
        command_on: CommandOn,
        driver: Callable[[int], Sequence[str]],
        devices: Sequence[str],
        timing: Timing,
        tasks: Tasks | None = None,
        environment: Mapping[str, str] | None = None,
        variables: Sequence[str] = (),
        *,
        files: NodeFiles | None = None,
        ports: tuple[int, int] = (0, 0),
        link_tasks: Tasks | None = None,
        always_encrypted: bool = False,
        drained: Sequence[str] = (),
    ) -> None:
        tasks = tasks or Tasks()
        self._hosts = _Hosts(
            lambda lost: DriverLink(driver, environment, lost, tasks=link_tasks),
            devices,
            command_on,
            variables,
            files or NodeFiles(),
            ports,
            tasks,
            always_encrypted,
        )
        self._hosts.drained.update(drained)
        super().__init__(count, self._hosts, timing, tasks)

    def drain(self, node: str) -> Sequence[str]:
        """See `ElasticPool.drain`. node: its name, or Ray's id of it."""
        there = [status.name for status in self.states() if status.node == node]
        if not there and node not in self._hosts.known:
            raise KeyError(node)
        self._hosts.drained.add(node)
        return there

    def undrain(self, node: str) -> None:
        """See `ElasticPool.undrain`."""
        self._hosts.drained.remove(node)
