"""`make bench-front`: what a row costs the server's own thread, stage by stage, in CPU µs.

One process: kept connections, the infer route, the scheduler with a server's own policy, the worker's frames
to and from a stand-in that answers at once. Every connection sends a row a turn: 32 together as it is at
capacity, 1 as where rows come by themselves. Each stage is its own time, without those that it calls; `all`
is measured apart, without the clocks that the stages need.

Without `--fronts` connections are a transport that only counts, and what the kernel takes for sockets comes
on top. With it they are sockets of the fronts named, which are measured in turns; what clients take is left
out.

FLAGS='--kbytes 15 --rows 9600 --together 32 --rounds 3 --kept --members 3 --fronts python,native'; with
PYTHONPATH of another tree it measures that one. Of several members rows follow a plan, by the default policy:
every second row is so sure that its first member is enough.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import itertools
import select
import socket
import statistics
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import uvloop
from rich.table import Table

from gpu_worker.wire.protocol import Answer, Column, Done, Infer, Load, Loaded, MemberAnswer, decode, encode
from server.access.caller import NOBODY
from server.cache.choice import choose_store
from server.cache.files import FileStamps
from server.cache.stores import new_store
from server.catalog.catalog import Catalog
from server.ensemble.fit import Fit
from server.http.application import Admitted
from server.http.backpressure import Backpressure
from server.http.connection import Connection, Connections
from server.http.large_json import LargeJson
from server.http.native.choice import FrontMissing, choose_front
from server.observability.metrics import Metrics
from server.placement.policy import Capacity
from server.placement.residency import Residency
from server.routes.codec import Codec
from server.routes.infer import InferRoute
from server.scheduling.core import Scheduler
from server.scheduling.latency_model import LatencyModel
from server.serving.cached_calls import CachedCalls
from server.serving.call_service import CallService
from server.serving.dispatcher import Dispatcher
from server.serving.scheduler_adapter import QueueBounds
from server.supervision import Tasks
from server.training.promotion.combination import choose_combination
from server.workers.channel import Channel
from server.workers.pool import OnReply, WorkerInfo
from tests.benchmarks.report import console, write_json
from tests.unit.ensemble.ensembles import drawn
from tests.unit.server.served import CLASSES, function, image_model

_WARM_UP = 1600  # rows
_STRETCH = 128  # rows, of which the least disturbed is told too
_KEPT_BYTES = 64 << 20
_STAGES: tuple[tuple[str, type, str], ...] = (
    ("HTTP: head and body", Connection, "data_received"),
    ("who gets in this turn", Backpressure, "_turn"),
    ("who gets in this turn", Backpressure, "answer"),
    ("who gets in this turn", Backpressure, "answer_alike"),
    ("request to call", InferRoute, "answer"),
    ("request to call", InferRoute, "answer_alike"),
    ("caps, shares, counts", CallService, "begin"),
    ("caps, shares, counts", CallService, "begin_shared"),
    ("caps, shares, counts", CallService, "_over"),
    ("caps, shares, counts", CallService, "_tell_shared"),
    ("kept answers", CachedCalls, "begin"),
    ("kept answers", CachedCalls, "_part_over"),
    ("into the queue", Dispatcher, "begin"),
    ("into the queue", Dispatcher, "begin_shared"),
    ("into the queue", Dispatcher, "_submit_due"),
    ("out of the queue: decide, cut", Dispatcher, "_pump"),
    ("frame to the worker", Channel, "send"),
    ("frame from the worker", Channel, "buffer_updated"),
    ("answers to calls", Dispatcher, "_returned"),
    ("call to reply", InferRoute, "_answered"),
    ("call to reply", InferRoute, "_answered_together"),
    ("HTTP: reply", Connection, "_reply"),
)
# Of the native front; by name, since it may not be built.
_NATIVE_STAGES = (
    ("HTTP: sockets, head and body", "_turn"),
    ("HTTP: head and body", "_asked"),
    ("HTTP: head and body", "_ask_alike"),
    ("HTTP: reply", "_reply"),
    ("HTTP: reply", "_reply_filled"),
    ("HTTP: sockets, replies", "_flush"),
)
_STAND_IN = "(the stand-in worker)"


@dataclass
class _Clock:
    """CPU seconds by stage, each without what it calls."""

    spent_s: dict[str, float] = field(default_factory=dict)
    _stack: list[str] = field(default_factory=list)
    _since_s: float = 0.0

    def wrap(self, stage: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._turn_to(stage)
            try:
                return method(*args, **kwargs)
            finally:
                self._turn_back()

        return timed

    def _turn_to(self, stage: str) -> None:
        now_s = time.thread_time()
        if self._stack:
            self._add(now_s)
        self._stack.append(stage)
        self._since_s = now_s

    def _turn_back(self) -> None:
        now_s = time.thread_time()
        self._add(now_s)
        self._stack.pop()
        self._since_s = now_s

    def _add(self, now_s: float) -> None:
        stage = self._stack[-1]
        self.spent_s[stage] = self.spent_s.get(stage, 0.0) + now_s - self._since_s


class _Wire(asyncio.Transport):
    """A transport that hands what is written to `take`, a turn later."""

    def __init__(self, take: Callable[[Any], None]) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self._take = take

    def write(self, data: Any) -> None:  # bytes of any kind
        self._take(data)

    def writelines(self, parts: Any) -> None:
        self._take(parts)

    def is_closing(self) -> bool:
        return False

    def close(self) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0


class _Clients:
    """The other ends of as many sockets. cpu_s: what they took so far, of this process."""

    def __init__(self, count: int, replied: Callable[[bytes], None]) -> None:
        self.cpu_s = 0.0
        self._replied = replied
        self._epoll = select.epoll()
        self._ours: dict[int, socket.socket] = {}
        self.theirs: list[socket.socket] = []
        for _ in range(count):
            ours, theirs = socket.socketpair()
            for end in (ours, theirs):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
            self.theirs.append(theirs)
            self._ours[ours.fileno()] = ours
            self._epoll.register(ours, select.EPOLLIN)
        asyncio.get_running_loop().add_reader(self._epoll, self._read)

    def send(self, requests: Iterator[bytes]) -> None:
        """One on each."""
        began_s = time.process_time()
        for one in self._ours.values():
            one.sendall(next(requests))
        self.cpu_s += time.process_time() - began_s

    def close(self) -> None:
        """Hang up."""
        asyncio.get_running_loop().remove_reader(self._epoll)
        self._epoll.close()
        for one in self._ours.values():
            one.close()

    def _read(self) -> None:
        began_s = time.process_time()
        for fd, _ in self._epoll.poll(0):
            self._replied(self._ours[fd].recv(1 << 16))
        self.cpu_s += time.process_time() - began_s


class _Worker:
    """A real channel to a stand-in that answers every row with the first class."""

    def __init__(self, name: str, clock: _Clock | None, *, tells_scores: bool = False) -> None:
        self.name = name
        self._tells_scores = tells_scores
        self.info = WorkerInfo("cpu", "stand-in", 0)
        self._channel = Channel(lambda reason: None)
        take = self._take if clock is None else clock.wrap(_STAND_IN, self._take)
        self._channel.connection_made(_Wire(take))
        self._answers: dict[int, bytes] = {}

    def send(self, message: Any, on_reply: OnReply) -> int:
        return self._channel.send(message, on_reply)

    async def call(self, message: Any) -> Any:
        return await self._channel.call(message)

    def cancel(self, message_id: int) -> None:
        self._channel.cancel(message_id)

    def kill(self, reason: str) -> None:
        raise AssertionError(reason)

    def _take(self, frame: Any) -> None:
        asyncio.get_running_loop().call_soon(self._receive, self._reply(frame))

    def _receive(self, reply: bytes) -> None:
        room = self._channel.get_buffer(len(reply))
        room[: len(reply)] = reply
        self._channel.buffer_updated(len(reply))

    def _reply(self, frame: bytes | list[bytes]) -> bytes:
        message = decode(frame if isinstance(frame, bytes) else b"".join(frame))
        if isinstance(message, Infer):
            rows = len(message.rows)
            tops = [0.999 if row[-1] % 2 else 0.4 for row in message.rows]
            columns = [
                Column("label", "BYTES", (), [CLASSES[0]] * rows),
                Column("confidence", "FP32", (), struct.pack(f"<{rows}f", *tops)),
            ]
            if self._tells_scores:
                others = len(CLASSES) - 1
                scores = [each for top in tops for each in (top, *[(1 - top) / others] * others)]
                data = struct.pack(f"<{len(scores)}f", *scores)
                columns.append(Column("scores", "FP32", (len(CLASSES),), data))
            members = [MemberAnswer(model, columns) for model in message.models]
            return encode(Answer(message.id, members, [], 0.001, 0.001, 0.001, 0.001, [[0.001, 0.0]]))
        return encode(Loaded(message.id, 1, 0.0) if isinstance(message, Load) else Done(message.id))


class _Front:
    """Everything between a socket and a worker, put together as `server.app` does.

    front: which reads sockets, `python` or `native`; "" for connections without any
    """

    def __init__(
        self, clock: _Clock | None, together: int, front: str, *, keeps: bool, members: int = 1
    ) -> None:
        metrics, latency = Metrics(), LatencyModel({1: 0.001, 32: 0.002})
        self._dispatcher = Dispatcher(
            Scheduler(),
            QueueBounds(100_000, 1 << 30),
            lambda model: latency,
            metrics,
            lambda listener: Residency(listener, lambda worker: Capacity(), lambda *_: None),
        )
        fields: dict[str, Any] = {}
        if members > 1:
            fields = {"combine": "log_pool", "fit": _fitted(members), "select": "value"}
        self._served = served = function(
            *(image_model(f"m{number}") for number in range(members)),
            name="photo",
            form="image",
            max_batch=32,
            batch_sizes=(1, 8, 32),
            slo_ms=1000.0,
            policy="goodput",
            **fields,
        )
        self._dispatcher.configure(served)
        for number in range(2):
            self._dispatcher.residency.worker_up(_Worker(f"w{number}", clock, tells_scores=members > 1))
        catalog = Catalog(lambda model: function(model))
        catalog.add_function(served, 2)
        cached = None
        if keeps:
            store = new_store(choose_store("auto").name, _KEPT_BYTES)
            cached = CachedCalls(self._dispatcher, store, FileStamps([]), metrics)
        calls = CallService(self._dispatcher, metrics, cached=cached)
        codec = Codec(100_000, lambda model, form: latency)
        route = InferRoute(catalog, calls, codec, metrics, LargeJson(), Tasks(), 64 << 20)
        self._backpressure = Backpressure(route)
        self.answer = self._backpressure.answer
        self.answer_alike = self._backpressure.answer_alike
        self.rest_s = lambda *, is_busy: 0.0
        self._together = together
        self._missing = self._asked = 0
        self._all_here: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._clients = _Clients(together, self._replied) if front else None
        # As much of an application as rows need.
        self._open = _native(self) if front == "native" else Connections(self)  # type: ignore[arg-type]
        self._connections: list[Connection] = []

    async def connect(self) -> None:
        """Have the models loaded and plans made, and the clients' connections taken."""
        await self._dispatcher.residency.load(self._served.members)
        await self._dispatcher.learner(self._served)
        if self._clients is None:
            self._connections = [self._open.new() for _ in range(self._together)]
            for connection in self._connections:
                connection.connection_made(_Wire(self._replied))
            return
        for theirs in self._clients.theirs:
            if not hasattr(self._open, "adopt"):
                await asyncio.get_running_loop().connect_accepted_socket(self._open.new, theirs)
            else:
                self._open.adopt(theirs)

    async def close(self) -> None:
        """Let the clients go."""
        if self._clients is not None:
            self._clients.close()
            await asyncio.sleep(0.05)
            for each in list(self._open.open):
                each.shutdown()

    def admit(self, head: Any, address: str) -> Admitted:
        return Admitted(head.target.decode(), b"", True, 64 << 20, NOBODY)

    def still_admits(self, admitted: Admitted) -> bool:
        return True

    @property
    def cpu_s(self) -> float:
        """Of this process, without its clients."""
        return time.process_time() - (0.0 if self._clients is None else self._clients.cpu_s)

    async def turns(self, count: int, request: bytes) -> None:
        """Every connection sends a row, and waits for its answer; so often."""
        requests = self._requests(request)
        for _ in range(count):
            self._all_here = asyncio.get_running_loop().create_future()
            self._missing = self._together
            if self._clients is not None:
                self._clients.send(requests)
            for connection in self._connections:
                connection.data_received(next(requests))
            await self._all_here

    def _requests(self, request: bytes) -> Iterator[bytes]:
        while True:
            self._asked += 1  # no two rows are the same, as where they are looked up
            yield b"%b%08x" % (request[:-8], self._asked)

    def _replied(self, reply: bytes) -> None:
        assert reply.startswith(b"HTTP/1.1 200"), reply[:300]
        self._missing -= 1
        if not self._missing:
            self._all_here.set_result(None)


def _fitted(members: int) -> Fit:
    """What held-out rows say of as many members, each better than the one before."""
    accuracies = [0.6 + 0.3 * number / (members - 1) for number in range(members)]
    told, labels = drawn(accuracies, classes=len(CLASSES))
    scores = {f"m{number}": each.astype(np.float32) for number, each in enumerate(told)}
    return choose_combination(scores, np.asarray(labels)).fit


def _native(application: Any) -> Any:
    from server.http.native.connections import NativeConnections

    return NativeConnections(application)


@contextmanager
def _timed(clock: _Clock) -> Iterator[None]:
    stages = list(_STAGES)
    with contextlib.suppress(ImportError):  # it may not be built
        from server.http.native.connections import NativeConnections

        stages += ((stage, NativeConnections, name) for stage, name in _NATIVE_STAGES)
    there = [each for each in stages if hasattr(each[1], each[2])]  # a tree of before may lack some
    kept = [(of, name, getattr(of, name)) for _, of, name in there]
    for stage, of, name in there:
        setattr(of, name, clock.wrap(stage, getattr(of, name)))
    try:
        yield
    finally:
        for of, name, method in kept:
            setattr(of, name, method)


def measured(
    kbytes: float, rows: int, *, keeps: bool = False, together: int = 32, front: str = "", members: int = 1
) -> dict[str, float]:
    """CPU µs a row: by stage, `all`, and all where other work disturbed least.

    keeps: answers are kept, and looked up before rows are asked. together: rows of a turn. front: whose
    sockets they come by, as in `_Front`. members: of the function.
    """
    body = bytes(int(kbytes * 1024))
    request = (
        b"POST /v2/models/photo/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n"
        b"Inference-Header-Content-Length: 0\r\n\r\n" % len(body)
    ) + body
    stretch = max(1, _STRETCH // together)  # turns

    async def run(clock: _Clock | None) -> list[float]:
        served = _Front(clock, together, front, keeps=keeps, members=members)
        await served.connect()
        await served.turns(_WARM_UP // together, request)
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 20)  # as a server has it
        if clock is not None:
            clock.spent_s.clear()
        spent_s: list[float] = []
        for _ in range(max(1, rows // (stretch * together))):
            began_s = served.cpu_s
            await served.turns(stretch, request)
            spent_s.append(served.cpu_s - began_s)
        await served.close()
        return spent_s

    stretches_s = uvloop.run(run(None))
    all_rows, all_s = len(stretches_s) * stretch * together, sum(stretches_s)
    clock = _Clock()
    with _timed(clock):
        uvloop.run(run(clock))
    # The clocks take their time too, and none of `all`: what the stages are of their sum holds. With sockets
    # it does not: uvloop's own share, reading them for the Python front among it, is in no stage.
    scale = all_s / sum(clock.spent_s.values()) if not front else 1.0
    stages = dict.fromkeys(itertools.chain((stage for stage, _, _ in _STAGES), (_STAND_IN,)), 0.0)
    stages |= {stage: spent_s * scale * 1e6 / all_rows for stage, spent_s in clock.spent_s.items()}
    least_us = min(stretches_s) * 1e6 / (stretch * together)
    return {**stages, "all": all_s * 1e6 / all_rows, "all, of the least stretch": least_us}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kbytes", type=float, default=15.0, help="of a row")
    parser.add_argument("--rows", type=int, default=9600, help="of each round")
    parser.add_argument("--together", type=int, default=32, help="rows of a turn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kept", action="store_true", help="answers are kept; no row comes twice")
    parser.add_argument("--members", type=int, default=1, help="of the function; several follow a plan")
    parser.add_argument("--fronts", default="", help="sockets of these, in turns: python,native")
    flags = parser.parse_args()
    fronts = flags.fronts.split(",")
    if "native" in fronts:
        try:
            choose_front("native", has_tls=False)
        except FrontMissing as error:
            raise SystemExit(str(error)) from error
    found: dict[str, list[dict[str, float]]] = {front: [] for front in fronts}
    for _ in range(flags.rounds):
        for front in fronts:
            one = measured(
                flags.kbytes,
                flags.rows,
                keeps=flags.kept,
                together=flags.together,
                front=front,
                members=flags.members,
            )
            found[front].append(one)
    for front, rounds in found.items():
        _show(front, rounds)
    said = {"kbytes": flags.kbytes, "together": flags.together, "members": flags.members}
    write_json("front", {**said, "rounds": found})


def _show(front: str, rounds: list[dict[str, float]]) -> None:
    table = Table(
        "stage", "CPU µs a row", "least", "greatest", title=front and f"{front} front, its sockets too"
    )
    for stage in rounds[0]:
        each = [one.get(stage, 0.0) for one in rounds]
        table.add_row(stage, *(f"{value:.1f}" for value in (statistics.median(each), min(each), max(each))))
    console.print(table)


if __name__ == "__main__":
    main()
