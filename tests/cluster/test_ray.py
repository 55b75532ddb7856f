"""Workers on a Ray cluster of two nodes on one machine: the contract of pools, and what may die.

Needs Ray, which is not part of `dev`: pip install 'ml_udf[ray]'.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gpu_worker.wire.protocol import Answer, Failed, Infer, Message
from server.workers.supervised_pool import SupervisedPool, Timing
from tests.inference_server import InferenceServer
from tests.models import hashing_model, label_of
from tests.ray_machines import Machines, ray_machines
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

GOOD = fake_worker("good", "{fd}")


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    with ray_machines() as there:
        yield there


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
        return served(machines.pool(fake_worker(behaviour, "{fd}"), count, timing))

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
        async with served(machines.pool(GOOD)) as (pool, listener):
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
        async with served(machines.pool(GOOD, 3)) as (pool, listener):
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
        async with served(machines.pool(GOOD, 4)) as (pool, listener):
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


def test_a_node_that_stands_still_is_given_up_within_seconds(machines: Machines, two: Sequence[Any]) -> None:
    """Its worker and its host are stopped, as all of it is when a machine freezes: no socket says so."""

    async def scenario() -> None:
        async with served(machines.pool(GOOD)) as (pool, listener):
            await until(lambda: listener.up)
            host, worker = only(pool).pid, pid_of(listener.up[0])
            assert host is not None
            for pid in (host, worker):
                os.kill(pid, signal.SIGSTOP)
            asked = asyncio.ensure_future(listener.up[0].call(Infer(0, ["m"], "text", [b"a"])))
            reply = await asked
            assert isinstance(reply, Failed)
            assert reply.code == "worker_lost"
            await until(lambda: len(listener.up) == 2)
            await ended(host, worker)

    asyncio.run(scenario())


def test_while_the_head_is_away_rows_go_on(machines: Machines, two: Sequence[Any]) -> None:
    """The last test: what Ray does about its head is to end the cluster, a minute later."""

    async def scenario() -> None:
        async with served(machines.pool(GOOD)) as (_, listener):
            await until(lambda: listener.up)
            head = machines.head.all_processes["gcs_server"][0].process
            head.kill()
            head.wait()
            for _ in range(100):
                reply = await listener.up[0].call(Infer(0, ["m"], "text", [b"a"]))
                assert isinstance(reply, Answer)
                await asyncio.sleep(0.02)
            assert listener.down == []

    asyncio.run(scenario())
