"""Workers on nodes of a cluster, with a cluster that is none: hosts, sockets and workers are real.

The same on Ray: tests/cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from gpu_worker.wire.protocol import (
    PREFIX_BYTES,
    Answer,
    CheckpointStored,
    EpochTrained,
    Evaluate,
    Evaluated,
    Failed,
    ForgetTrial,
    Infer,
    Inspect,
    Inspected,
    Load,
    Loaded,
    Message,
    Ping,
    Pong,
    StoreCheckpoint,
    TrainEpoch,
    decode,
    encode,
    frame_length,
)
from server.version import VERSION
from server.workers.device_host import DeviceHost, Order, Place
from server.workers.driver_link import ClusterError
from server.workers.file_rows import FileRows
from server.workers.nodes import Node
from server.workers.offered_pictures import PictureFiles
from server.workers.peers import TOKEN_BYTES, PeerRefused, prove_as_server
from server.workers.pool import Worker
from server.workers.ray import FarFiles, NodeFiles, RayPool, first_look, ray_timing
from server.workers.supervised_pool import SupervisedPool, Timing
from tests.answers import labels_of
from tests.models import hashing_model, label_of
from tests.unit.server.pool_contract import (
    Listener,
    Running,
    a_killed_worker_is_reported_before_its_messages_fail_and_comes_back,
    a_worker_that_is_stopped_is_seen_whatever_it_was_at_and_replaced,
    ended,
    fake_worker,
    only,
    pid_of,
    served,
    workers_come_up_answer_and_end_with_the_pool,
)
from tests.waiting import until

CLUSTER = Path(__file__).with_name("fake_cluster.py")
ROOT = Path(__file__).parents[3]
HERE = Node("n0", "127.0.0.1", "here", 0, 2, is_here=True)
BESIDE = Node("n1", "127.0.0.1", "beside", 0, 2)


def driver(nodes: Sequence[Node], fd: int) -> Sequence[str]:
    return [sys.executable, str(CLUSTER), "driver", str(fd), json.dumps([asdict(node) for node in nodes])]


def pool_of(
    behaviour: str,
    count: int = 1,
    timing: Timing | None = None,
    *,
    nodes: Sequence[Node] = (HERE,),
    always_encrypted: bool = False,
    command: Sequence[str] | None = None,
    files: NodeFiles | None = None,
) -> RayPool:
    return RayPool(
        count,
        lambda index, node: command or fake_worker(behaviour, "{fd}"),
        lambda fd: driver(nodes, fd),
        ["cpu"],
        timing or ray_timing(60.0),
        files=files,
        always_encrypted=always_encrypted,
    )


def far_worker(folder: Path) -> Sequence[str]:
    """A real one that sees no media root, and has its models and photos in a folder of its own."""
    flags = [
        "--fd={fd}",
        "--device=cpu",
        "--threads=1",
        f"--fetched={folder}",
        f"--fetched-pictures={folder}",
    ]
    return ["-m", "gpu_worker", *flags]


def running(
    behaviour: str, count: int = 1, timing: Timing | None = None
) -> AbstractAsyncContextManager[tuple[SupervisedPool, Listener]]:
    return served(pool_of(behaviour, count, timing))


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


# How lives are counted and retired is the same code for every pool; on Ray itself all of them run.
OF_PLACES = (
    workers_come_up_answer_and_end_with_the_pool,
    a_killed_worker_is_reported_before_its_messages_fail_and_comes_back,
    a_worker_that_is_stopped_is_seen_whatever_it_was_at_and_replaced,
)


@pytest.mark.parametrize("scenario", OF_PLACES, ids=lambda scenario: scenario.__name__)
def test_the_contract_of_pools(scenario: Callable[[Running], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scenario(running))


def test_between_machines_rows_travel_encrypted_both_ways() -> None:
    async def scenario() -> None:
        async with served(pool_of("good", always_encrypted=True)) as (_, listener):
            await until(lambda: listener.up)
            texts = [bytes([97 + number % 26]) * 40_000 for number in range(100)]
            reply = await listener.up[0].call(Infer(0, ["m"], "text", texts))
            assert isinstance(reply, Answer)
            assert labels_of(reply.members[0]) == [text.decode() for text in texts]
            os.kill(pid_of(listener.up[0]), signal.SIGKILL)
            await until(lambda: len(listener.up) == 2)

    asyncio.run(scenario())


def test_a_host_that_is_killed_takes_its_worker_along_and_another_comes() -> None:
    async def scenario() -> None:
        async with served(pool_of("good", nodes=(HERE, BESIDE))) as (pool, listener):
            await until(lambda: listener.up)
            first, state = pid_of(listener.up[0]), only(pool)
            assert state.pid is not None
            os.kill(state.pid, signal.SIGKILL)
            await until(lambda: len(listener.up) == 2)
            await ended(first)
            assert only(pool).node in ("here", "beside")

    asyncio.run(scenario())


def test_workers_are_spread_and_a_drained_node_gets_none() -> None:
    async def scenario() -> None:
        pool = pool_of("good", 2, nodes=(HERE, BESIDE))
        async with served(pool) as (_, listener):
            await until(lambda: len(listener.up) == 2)
            assert {state.node for state in pool.states()} == {"here", "beside"}
            (there,) = pool.drain("beside")
            await pool.move(there)
            await until(lambda: len(listener.up) == 3)
            assert {state.node for state in pool.states()} == {"here"}
            with pytest.raises(KeyError):
                pool.drain("nowhere")
            pool.undrain("beside")
            await pool.move(there)
            await until(lambda: len(listener.up) == 4)
            assert {state.node for state in pool.states()} == {"here", "beside"}

    asyncio.run(scenario())


def test_when_the_driver_dies_its_workers_are_replaced_through_another() -> None:
    async def scenario() -> None:
        pool = pool_of("good")
        async with served(pool) as (_, listener):
            await until(lambda: listener.up)
            process = pool._hosts._link._process
            assert process is not None
            os.kill(process.pid, signal.SIGKILL)
            await until(lambda: len(listener.up) == 2)
            assert "socket closed" in only(pool).last_error
            await ended(pid_of(listener.up[0]))

    asyncio.run(scenario())


def test_a_cluster_that_cannot_be_joined_says_why() -> None:
    async def scenario() -> None:
        with pytest.raises(ClusterError, match="cannot join the cluster: ConnectionError: nobody answers"):
            await first_look(lambda fd: driver((), fd), None, 30.0)

    asyncio.run(scenario())


def test_who_has_not_the_token_is_not_let_in_and_keeps_nobody_out() -> None:
    async def scenario() -> None:
        pool = pool_of("good")
        met = pool._hosts._link.ask
        strangers: list[socket.socket] = []

        async def ask(op: str, within_s: float, **what: Any) -> dict[str, Any]:
            told = await met(op, within_s, **what)
            if op == "start":
                place = Place(**told["place"])
                for said in (b"", b"\0" * 200, b"GET / HTTP/1.1\r\n\r\n" * 10):
                    stranger = socket.create_connection((place.address, place.port))
                    stranger.sendall(said)
                    strangers.append(stranger)
            return told

        pool._hosts._link.ask = ask  # type: ignore[method-assign]
        async with served(pool) as (_, listener):
            await until(lambda: listener.up)
            for stranger in strangers:
                stranger.settimeout(30.0)
                with stranger, contextlib.suppress(ConnectionError):
                    while stranger.recv(4096):
                        pass  # until it is hung up on, which a time-out here would say is not so
        assert len(strangers) == 3

    asyncio.run(scenario())


def test_a_node_that_sees_nothing_of_the_server_is_sent_models_and_rows(tmp_path: Path) -> None:
    """Over an encrypted link, as between machines."""
    model = hashing_model(tmp_path / "home", "food", form="path")
    (model / "w.safetensors").write_bytes(weights := os.urandom(1 << 21))
    manifest = json.loads((model / "model.json").read_text())
    manifest |= {"weights": "w.safetensors", "sha256": hashlib.sha256(weights).hexdigest()}
    (model / "model.json").write_text(json.dumps(manifest))
    (tmp_path / "photos").mkdir()
    for name in ("a", "b"):
        (tmp_path / "photos" / name).write_text(f"photo {name}")
    node = tmp_path / "node"

    async def scenario() -> None:
        rows = FileRows([str(tmp_path / "photos")], 1 << 20)
        pictures = PictureFiles([str(tmp_path / "photos")], 1 << 20)
        files = NodeFiles(lambda node: False, lambda node: False, rows, pictures)
        pool = pool_of("", nodes=(BESIDE,), always_encrypted=True, command=far_worker(node), files=files)
        async with served(pool) as (_, listener):
            await until(lambda: listener.up)
            worker = listener.up[0]
            assert not worker.info.sees_pictures
            loaded = await worker.call(Load(0, "food/1", str(model)))
            assert isinstance(loaded, Loaded), loaded
            assert 0 < loaded.fetch_s <= loaded.load_s
            (fetched,) = node.glob("*/food/1/w.safetensors")
            assert fetched.read_bytes() == weights
            paths = [str(tmp_path / "photos" / name).encode() for name in ("b", "a", "none")]
            answer = await worker.call(Infer(0, ["food/1"], "path", paths))
            assert isinstance(answer, Answer), answer
            assert labels_of(answer.members[0])[:2] == [label_of("photo b"), label_of("photo a")]
            assert [(error.index, error.code) for error in answer.errors] == [(2, "input_not_found")]
            Image.new("RGB", (4, 3)).save(tmp_path / "photos" / "c.png")
            seen = await worker.call(Inspect(0, [b"c.png", *paths]))
            assert isinstance(seen, Inspected), seen
            assert seen.sizes[0] == [4, 3]
            assert seen.digests[0] == hashlib.sha256((tmp_path / "photos" / "c.png").read_bytes()).hexdigest()
            assert [error["code"] for error in seen.errors] == ["input_undecodable"] * 2 + ["input_not_found"]
            assert len(list(node.glob("pictures/*/*/*"))) == 3, "for the training that follows"

    asyncio.run(scenario())


def test_a_node_that_sees_nothing_of_the_server_is_taught_by_it_and_gives_back_what_it_learnt(
    tmp_path: Path,
) -> None:
    """Snapshot and checkpoint go there, checkpoints come back, by their hashes."""
    words = {"bad": "awful", "good": "lovely"}
    labels = ["bad", "good"] * 20
    rows = tmp_path / "home" / "rows.parquet"
    rows.parent.mkdir()
    splits = [("train", "train", "train", "validation")[at // 2 % 4] for at in range(40)]
    texts = [f"{words[label]} soup {at}" for at, label in enumerate(labels)]
    pq.write_table(pa.table({"input": texts, "target": labels, "split": splits}), rows)
    spec = {"architecture": "tfidf_linear", "epochs": 2, "seed": 0, "schedule": "constant", "C": 10.0}
    told: dict[str, Any] = {"spec": spec, "snapshot": str(rows), "classes": ["bad", "good"]}
    told |= {"task": "text-classification"}
    kept, node = tmp_path / "home" / "job-1", tmp_path / "node"

    async def stored(worker: Worker, trial: str, epoch: int, start: str = "") -> Path:
        message = TrainEpoch(0, trial, epoch=epoch, start=start, start_epoch=epoch - 1, **told)
        trained = await worker.call(message)
        assert isinstance(trained, EpochTrained), trained
        reply = await worker.call(StoreCheckpoint(0, trial, str(kept), paused=True))
        assert isinstance(reply, CheckpointStored), reply
        found = kept / f"{reply.checkpoint}.safetensors"
        assert hashlib.sha256(found.read_bytes()).hexdigest() == reply.checkpoint
        return found

    async def scenario() -> None:
        files = NodeFiles(lambda node: False, lambda node: False, FileRows([str(tmp_path)], 1 << 20))
        pool = pool_of("", nodes=(BESIDE,), always_encrypted=True, command=far_worker(node), files=files)
        async with served(pool) as (_, listener):
            await until(lambda: listener.up)
            worker = listener.up[0]
            first = await stored(worker, "a", 1)
            await worker.call(ForgetTrial(0, "a"))
            second = await stored(worker, "a", 2, str(first))
            answered = await worker.call(Evaluate(0, start=str(second), split="validation", **told))
            assert isinstance(answered, Evaluated), answered
            assert len(answered.predictions) == splits.count("validation")
            lost = await worker.call(Evaluate(0, start=f"{second}.gone", split="validation", **told))
            assert isinstance(lost, Failed)
            assert f"the server has no file {second}.gone any more" in lost.message
            rows.unlink()
            gone = await worker.call(Evaluate(0, start=str(second), split="validation", **told))
            assert isinstance(gone, Failed)
            assert f"the server has no file {rows} any more" in gone.message
        assert {path.name for path in kept.iterdir()} == {first.name, second.name}
        assert list((node / "training" / "stored").iterdir()) == [], "its own copies left"

    asyncio.run(scenario())


def test_a_checkpoint_that_a_node_says_it_stored_and_that_has_not_come_does_not_count(tmp_path: Path) -> None:
    files = FarFiles()
    files.begun(StoreCheckpoint(7, "t", str(tmp_path)))
    refused = files.over(CheckpointStored(7, "0" * 64, 10))
    assert isinstance(refused, Failed)
    assert "has not come from its node" in refused.message


class Door:
    """A host on this machine, as an actor runs it, whose worker is a fake one. token: that it asks for."""

    def __init__(self, token: bytes, ports: tuple[int, int] = (0, 0)) -> None:
        command = list(fake_worker("good", "{fd}"))
        order = Order(VERSION, command, [], "127.0.0.1", ports, token.hex(), "", 60.0)
        self._host = DeviceHost(
            order.to_bytes(), {**os.environ, "PYTHONPATH": str(ROOT)}, lambda status: None
        )
        self._serving: asyncio.Task[bytes] | None = None
        self._place: Place | None = None

    async def open(self) -> None:
        self._place = Place(**json.loads(await self._host.listen()))
        self._serving = asyncio.create_task(self._host.serve())

    async def knock(self) -> socket.socket:
        assert self._place is not None
        connection = socket.socket()
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, (self._place.address, self._place.port))
        return connection

    async def ended(self) -> str:
        assert self._serving is not None
        return (await self._serving).decode()


def test_a_host_listens_at_a_port_that_the_firewall_lets_through_or_says_that_none_is_free() -> None:
    async def scenario() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            with pytest.raises(OSError, match=f"none of the ports {port}-{port} is free"):
                await Door(bytes(TOKEN_BYTES), (port, port)).open()
        door = Door(bytes(TOKEN_BYTES), (port, port))
        await door.open()
        with await door.knock() as server:
            assert server.getpeername()[1] == port
            await prove_as_server(server, bytes(TOKEN_BYTES))
        await door.ended()

    asyncio.run(scenario())


async def heard(connection: socket.socket) -> bytes:
    """All that comes until it is hung up on."""
    said = b""
    with contextlib.suppress(ConnectionError):
        while more := await asyncio.get_running_loop().sock_recv(connection, 4096):
            said += more
    return said


async def pings(connection: socket.socket) -> Message:
    """What a worker at the other end answers to a ping."""
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(connection, encode(Ping(1)))
    reply = b""
    while len(reply) < PREFIX_BYTES or len(reply) < frame_length(reply[:PREFIX_BYTES]):
        reply += await loop.sock_recv(connection, 4096)
    return decode(reply)


@pytest.mark.security
def test_a_link_demands_its_token_and_no_handshake_is_good_twice() -> None:
    """Without one, with another's, and with all that a server has said at another meeting with the same."""
    token = bytes(range(TOKEN_BYTES))

    async def said_by_a_server() -> bytes:
        """Written down as somebody would who reads the network."""
        near, far = socket.socketpair()
        for each in (near, far):
            each.setblocking(False)
        said = b""
        loop = asyncio.get_running_loop()
        with near, far:
            proving = asyncio.create_task(prove_as_server(near, token))
            said += await loop.sock_recv(far, 4096)
            nonce = os.urandom(TOKEN_BYTES)
            proof = hmac.digest(token, b"worker" + said + nonce, "sha256")
            await loop.sock_sendall(far, nonce + proof)
            await proving
            said += await loop.sock_recv(far, 4096)
        return said

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        recorded = await said_by_a_server()
        door = Door(token)
        await door.open()
        for said in (encode(Ping(1)) * 10, bytes(200), recorded):
            with await door.knock() as stranger:
                await loop.sock_sendall(stranger, said)
                assert len(await heard(stranger)) <= 64, "a nonce and a proof, and no word of a worker"
        with await door.knock() as stranger, pytest.raises(PeerRefused):
            await prove_as_server(stranger, bytes(TOKEN_BYTES))
        with await door.knock() as server:
            await prove_as_server(server, token)
            assert isinstance(await pings(server), Pong)
        assert (await door.ended()).startswith("exit status")

    asyncio.run(scenario())
