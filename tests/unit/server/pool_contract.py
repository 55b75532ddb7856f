"""What every pool of workers promises, wherever its workers live: scenarios, given how such a pool is run.

Workers are `fake_worker_process.py`, which says its pid as its device's bytes.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest

from gpu_worker.wire.protocol import Answer, Failed, Infer, Message
from server.workers.pool import Worker, WorkerStatus
from server.workers.supervised_pool import SupervisedPool, Timing
from tests.answers import labels_of
from tests.waiting import until

__all__ = [
    "SCENARIOS",
    "SCRIPT",
    "WATCHFUL",
    "Listener",
    "Running",
    "ended",
    "fake_worker",
    "is_alive",
    "only",
    "pid_of",
    "served",
]

WATCHFUL = Timing(term_grace_s=5.0, ping_every_s=0.1, silent_s=1.0)

SCRIPT = Path(__file__).with_name("fake_worker_process.py")


class Listener:
    """Remembers who came and went."""

    def __init__(self) -> None:
        self.up: list[Worker] = []
        self.down: list[Worker] = []

    def worker_up(self, worker: Worker) -> None:
        self.up.append(worker)

    def worker_down(self, worker: Worker) -> None:
        self.down.append(worker)


class Running(Protocol):
    """A pool of workers that behave so, and its listener; closed at the end."""

    def __call__(
        self, behaviour: str, count: int = 1, timing: Timing | None = None
    ) -> AbstractAsyncContextManager[tuple[SupervisedPool, Listener]]: ...


@asynccontextmanager
async def served(pool: SupervisedPool) -> AsyncIterator[tuple[SupervisedPool, Listener]]:
    listener = Listener()
    await pool.start(listener)
    try:
        yield pool, listener
    finally:
        await pool.close()


def fake_worker(behaviour: str, fd: int | str) -> Sequence[str]:
    """Its command line, after the interpreter."""
    return [str(SCRIPT), str(fd), behaviour]


def only(pool: SupervisedPool) -> WorkerStatus:
    (state,) = pool.states()
    return state


def pid_of(worker: Worker) -> int:
    """Of the worker's own process."""
    return worker.info.capacity_bytes


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


async def ended(*pids: int) -> None:
    """Returns once these processes are gone."""
    await until(lambda: not any(is_alive(pid) for pid in pids))


async def workers_come_up_answer_and_end_with_the_pool(running: Running) -> None:
    async with running("good", count=2) as (pool, listener):
        await until(lambda: len(listener.up) == 2)
        pids = [pid_of(worker) for worker in listener.up]
        assert {state.state for state in pool.states()} == {"up"}
        assert listener.up[0].info.device_name == "fake"
        reply = await listener.up[0].call(Infer(0, ["m"], "text", [b"a", b"b"]))
        assert isinstance(reply, Answer)
        assert labels_of(reply.members[0]) == ["a", "b"]
    await ended(*pids)
    assert set(listener.down) == set(listener.up)


async def a_killed_worker_is_reported_before_its_messages_fail_and_comes_back(running: Running) -> None:
    began_at = time.time()
    async with running("good") as (pool, listener):
        await until(lambda: listener.up)
        first = pid_of(listener.up[0])
        assert (only(pool).last_error, only(pool).last_error_at) == ("", None)
        os.kill(first, signal.SIGSTOP)  # so that it cannot answer
        told: list[int] = []
        replies: list[Message] = []

        def on_reply(message: Message) -> None:
            told.append(len(listener.down))
            replies.append(message)

        listener.up[0].send(Infer(0, ["m"], "text", [b"a"]), on_reply)
        os.kill(first, signal.SIGKILL)
        await until(lambda: len(listener.up) == 2)
        assert told == [1]
        assert isinstance(replies[0], Failed)
        assert replies[0].code == "worker_lost"
        state = only(pool)
        assert (state.state, state.restarts) == ("up", 1)
        assert "exit status -9" in state.last_error
        assert state.last_error_at is not None
        assert began_at <= state.last_error_at <= time.time(), "of the life that is over"
        assert pid_of(listener.up[1]) != first
        late = await listener.up[0].call(Infer(0, ["m"], "text", [b"a"]))  # to the dead one
        assert isinstance(late, Failed)


async def a_worker_that_never_answers_is_ended_and_started_again(running: Running) -> None:
    async with running("silent", timing=Timing(start_s=0.3)) as (pool, listener):
        await until(lambda: only(pool).restarts >= 1)
        assert listener.up == []
        assert "did not answer within 0.3 s" in only(pool).last_error


async def a_worker_that_breaks_the_protocol_is_lost_like_a_dead_one(running: Running) -> None:
    async with running("babble") as (_, listener):
        await until(lambda: listener.up)
        reply = await listener.up[0].call(Infer(0, ["m"], "text", [b"a"]))
        assert isinstance(reply, Failed)
        assert "broke the protocol" in reply.message
        await until(lambda: len(listener.up) == 2)


async def a_worker_that_is_stopped_is_seen_whatever_it_was_at_and_replaced(running: Running) -> None:
    async with running("good", timing=WATCHFUL) as (_, listener):
        await until(lambda: listener.up)
        pid = pid_of(listener.up[0])
        os.kill(pid, signal.SIGSTOP)
        await until(lambda: len(listener.up) == 2)
        await ended(pid)
        assert listener.down == listener.up[:1]


async def a_killed_worker_is_lost_at_once_though_it_never_read_what_it_was_sent(running: Running) -> None:
    async with running("good") as (_, listener):
        await until(lambda: listener.up)
        os.kill(pid_of(listener.up[0]), signal.SIGSTOP)
        asked = asyncio.ensure_future(listener.up[0].call(Infer(0, ["m"], "text", [bytes(1 << 24)])))
        await asyncio.sleep(0.1)
        listener.up[0].kill("a test wants it")
        reply = await asyncio.wait_for(asked, 1.0)
        assert isinstance(reply, Failed)
        assert reply.code == "worker_lost"


async def one_worker_more_and_one_less_while_the_pool_runs(running: Running) -> None:
    async with running("good") as (pool, listener):
        await until(lambda: listener.up)
        assert pool.add(range(2)) == "w1"
        with pytest.raises(ValueError, match="free"):
            pool.add(range(2))
        await until(lambda: len(listener.up) == 2)
        assert [state.name for state in pool.states()] == ["w0", "w1"]
        gone = next(pid_of(worker) for worker in listener.up if worker.name == "w0")
        await pool.end("w0")
        await ended(gone)
        assert [worker.name for worker in listener.down] == ["w0"]
        assert only(pool).name == "w1"
        assert pool.add(range(2)) == "w0", "the first that is free"
        await until(lambda: len(listener.up) == 3)
        reply = await listener.up[2].call(Infer(0, ["m"], "text", [b"a"]))
        assert isinstance(reply, Answer)
        await pool.end("w0")
        await pool.end("w0")  # it is gone already
    with pytest.raises(RuntimeError):
        pool.add(range(2))


async def a_retired_worker_is_not_started_again_until_it_is_to_be_kept(running: Running) -> None:
    async with running("good", timing=Timing(backoff_first_s=0.01)) as (pool, listener):
        await until(lambda: listener.up)
        pool.retire("w0")
        os.kill(pid_of(listener.up[0]), signal.SIGKILL)
        await until(lambda: pool._lives[0].done())
        assert (only(pool).state, len(listener.up)) == ("down", 1)
        pool.keep("w0")
        await until(lambda: len(listener.up) == 2)
        assert (only(pool).state, only(pool).restarts) == ("up", 1)
        with pytest.raises(KeyError):
            pool.retire("w7")


async def a_worker_that_never_answers_can_be_ended(running: Running) -> None:
    async with running("silent") as (pool, listener):
        await until(lambda: only(pool).pid)
        pid = only(pool).pid
        assert pid is not None
        await pool.end("w0")
        assert (pool.states(), listener.up, listener.down) == ((), [], [])
        await ended(pid)


SCENARIOS: Sequence[Callable[[Running], Coroutine[Any, Any, None]]] = (
    workers_come_up_answer_and_end_with_the_pool,
    a_killed_worker_is_reported_before_its_messages_fail_and_comes_back,
    a_worker_that_never_answers_is_ended_and_started_again,
    a_worker_that_breaks_the_protocol_is_lost_like_a_dead_one,
    a_worker_that_is_stopped_is_seen_whatever_it_was_at_and_replaced,
    a_killed_worker_is_lost_at_once_though_it_never_read_what_it_was_sent,
    one_worker_more_and_one_less_while_the_pool_runs,
    a_retired_worker_is_not_started_again_until_it_is_to_be_kept,
    a_worker_that_never_answers_can_be_ended,
)
