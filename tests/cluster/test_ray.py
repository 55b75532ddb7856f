"""Workers on a Ray cluster of two nodes on one machine: the contract of pools, and what may die.

Needs Ray, which is not part of `dev`: pip install 'ml_udf[ray]'.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gpu_worker.wire.protocol import Answer, Failed, Infer, Message
from server.workers.nodes import DEVICE_RESOURCE
from server.workers.ray import RayPool, driver_command, ray_timing
from server.workers.supervised_pool import SupervisedPool, Timing
from tests.inference_server import InferenceServer
from tests.models import hashing_model, label_of
from tests.unit.server.pool_contract import (
    SCENARIOS,
    Listener,
    Running,
    ended,
    fake_worker,
    only,
    pid_of,
    served,
)
from tests.waiting import until, wait_until

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="NO RAY, NO CLUSTER: pip install 'ml_udf[ray]'"
)

ROOT = Path(__file__).parents[2]
LOOPBACK = "127.0.0.1"
_NODE = {"node_ip_address": LOOPBACK, "num_cpus": 1, "object_store_memory": 80 << 20}


class Machines:
    """A head that takes no workers, and nodes that take one each."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self.address: str = cluster.address
        self._names = 0

    def add(self) -> Any:
        self._names += 1
        return self._cluster.add_node(**_NODE, node_name=f"n{self._names}", resources={DEVICE_RESOURCE: 1})

    def remove(self, node: Any) -> None:
        self._cluster.remove_node(node)

    def pool(self, behaviour: str, count: int = 1, timing: Timing | None = None) -> RayPool:
        return RayPool(
            count,
            lambda index, node: fake_worker(behaviour, "{fd}"),
            lambda fd: driver_command(self.address, fd),
            ["cpu"],
            timing or ray_timing(60.0),
        )


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # sockets below it have long paths
    changes = pytest.MonkeyPatch()
    for name, value in {
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": os.urandom(16).hex(),
        "RAY_TMPDIR": str(folder / "ray"),
        "RAY_health_check_initial_delay_ms": "1000",
        "RAY_health_check_period_ms": "1000",
        "RAY_health_check_timeout_ms": "3000",
        "RAY_health_check_failure_threshold": "2",
        "PYTHONPATH": str(ROOT),
    }.items():
        changes.setenv(name, value)
    (folder / "ray").mkdir()
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True,
        head_node_args={**_NODE, "include_dashboard": False},
    )
    try:
        yield Machines(cluster)
    finally:
        cluster.shutdown()
        changes.undo()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def two(machines: Machines) -> Sequence[Any]:
    return [machines.add(), machines.add()]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_the_contract_of_pools(
    scenario: Callable[[Running], Coroutine[Any, Any, None]], machines: Machines, two: Sequence[Any]
) -> None:
    def running(
        behaviour: str, count: int = 1, timing: Timing | None = None
    ) -> AbstractAsyncContextManager[tuple[SupervisedPool, Listener]]:
        return served(machines.pool(behaviour, count, timing))

    asyncio.run(scenario(running))


@asynccontextmanager
async def asked_without_end(listener: Listener) -> AsyncIterator[list[Message]]:
    """Whoever is up is asked for a row, again and again; yields every reply as it comes."""
    replies: list[Message] = []

    async def ask() -> None:
        while True:
            up = [worker for worker in listener.up if worker not in listener.down]
            for worker in up:
                replies.append(await worker.call(Infer(0, ["m"], "text", [b"a"])))
            await asyncio.sleep(0.01)

    asking = asyncio.create_task(ask())
    try:
        yield replies
        before = len(replies)
        await until(lambda: len(replies) > before + 1)
    finally:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


def test_a_killed_actor_is_replaced_and_its_worker_is_gone(machines: Machines, two: Sequence[Any]) -> None:
    async def scenario() -> None:
        async with served(machines.pool("good")) as (pool, listener):
            await until(lambda: listener.up)
            actor = only(pool).pid
            assert actor is not None
            async with asked_without_end(listener) as replies:
                os.kill(actor, signal.SIGKILL)
                await until(lambda: len(listener.up) == 2)
            await ended(pid_of(listener.up[0]))
            assert all(isinstance(reply, Answer | Failed) for reply in replies)
            assert isinstance(replies[-1], Answer)

    asyncio.run(scenario())


def test_a_node_whose_raylet_is_killed_is_left_for_another(machines: Machines, two: Sequence[Any]) -> None:
    """And one that joins takes the worker that has no place."""

    async def scenario() -> None:
        third = machines.add()
        async with served(machines.pool("good", 3)) as (pool, listener):
            await until(lambda: len(listener.up) == 3)
            assert len({state.node for state in pool.states()}) == 3, "one device a node"
            async with asked_without_end(listener):
                raylet = third.all_processes["raylet"][0].process
                raylet.kill()
                raylet.wait()
                await until(lambda: len(listener.down) == 1)
                (lost,) = listener.down
                await ended(pid_of(lost))
                await until(lambda: "no node has a device" in state_of(pool, lost.name).last_error)
                machines.remove(third)
                machines.add()
                await until(lambda: len(listener.up) == 4)

    asyncio.run(scenario())


def test_a_node_that_is_removed_takes_no_row_along(machines: Machines, two: Sequence[Any]) -> None:
    async def scenario() -> None:
        leaving = machines.add()
        async with served(machines.pool("good", 4)) as (pool, listener):
            await until(lambda: len(listener.up) == 4)
            there = {state.name: state.node for state in pool.states()}
            async with asked_without_end(listener):
                machines.remove(leaving)
                await until(lambda: listener.down)
            (lost,) = listener.down
            assert list(there.values()).count(there[lost.name]) == 1

    asyncio.run(scenario())


def state_of(pool: SupervisedPool, name: str) -> Any:
    return next(state for state in pool.states() if state.name == name)


def test_a_server_answers_every_row_while_an_actor_dies_and_after_its_own_death(
    machines: Machines, two: Sequence[Any], tmp_path: Path
) -> None:
    flags = ["--pool=ray", f"--ray-address={machines.address}", "--workers=2", "--answer-cache-bytes=0"]
    server = InferenceServer(tmp_path / "home", flags=flags, forked=False)
    try:
        server.deploy(hashing_model(tmp_path), "udf_hash")
        texts = [f"row {number}" for number in range(2000)]

        def ask() -> list[str]:
            with server.client() as client:
                return client.predict("udf_hash", texts).values

        wanted = [label_of(text) for text in texts]
        assert ask() == wanted

        def workers() -> list[dict[str, Any]]:
            with server.client() as client:
                return list(client.get("/v1/workers")["workers"])

        wait_until(lambda: all(worker["state"] == "up" for worker in workers()))
        assert len({worker["node"] for worker in workers()}) == 2
        first = workers()
        answers: list[list[str]] = []
        asking = threading.Thread(target=lambda: answers.extend(ask() for _ in range(5)))
        asking.start()
        os.kill(first[0]["pid"], signal.SIGKILL)
        asking.join(120.0)
        assert answers == [wanted] * 5
        wait_until(lambda: sum(worker["restarts"] for worker in workers()) == 1)

        hosts = [worker["pid"] for worker in workers() if worker["pid"]]
        server.signal(signal.SIGKILL)
        server.wait()
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in hosts))
        server.start()
        assert ask() == wanted
    finally:
        server.stop()
