"""Worker processes: started, missed, started again, and never left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpu_worker.wire.protocol import Answer, Failed, Infer, Message
from server.workers.local import LocalPool, Timing
from server.workers.pool import Worker, WorkerStatus
from tests.answers import labels_of
from tests.waiting import until

SCRIPT = Path(__file__).with_name("fake_worker_process.py")
ROOT = Path(__file__).parents[3]
PATIENCE_S = 90.0


class Listener:
    """Remembers who came and went."""

    def __init__(self) -> None:
        self.up: list[Worker] = []
        self.down: list[Worker] = []

    def worker_up(self, worker: Worker) -> None:
        self.up.append(worker)

    def worker_down(self, worker: Worker) -> None:
        self.down.append(worker)


@asynccontextmanager
async def running(
    behaviour: str, count: int = 1, timing: Timing | None = None
) -> AsyncIterator[tuple[LocalPool, Listener]]:
    def command(index: int, fd: int) -> list[str]:
        return [sys.executable, str(SCRIPT), str(fd), behaviour]

    pool, listener = LocalPool(count, command, timing or Timing(term_grace_s=5.0)), Listener()
    await pool.start(listener)
    try:
        yield pool, listener
    finally:
        await pool.close()


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def only(pool: LocalPool) -> WorkerStatus:
    (state,) = pool.states()
    return state


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_workers_come_up_answer_and_end_with_the_pool() -> None:
    async def scenario() -> None:
        async with running("good", count=2) as (pool, listener):
            await until(lambda: len(listener.up) == 2)
            pids = [state.pid for state in pool.states() if state.pid]
            assert {state.state for state in pool.states()} == {"up"}
            assert listener.up[0].info.device_name == "fake"
            reply = await listener.up[0].call(Infer(0, ["m"], "text", [b"a", b"b"]))
            assert isinstance(reply, Answer)
            assert labels_of(reply.members[0]) == ["a", "b"]
        assert not any(is_alive(pid) for pid in pids)
        assert set(listener.down) == set(listener.up)

    asyncio.run(scenario())


def test_a_killed_worker_is_reported_before_its_messages_fail_and_comes_back() -> None:
    async def scenario() -> None:
        began_at = time.time()
        async with running("good") as (pool, listener):
            await until(lambda: listener.up)
            first = only(pool).pid
            assert first is not None
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
            assert state.pid != first
            late = await listener.up[0].call(Infer(0, ["m"], "text", [b"a"]))  # to the dead one
            assert isinstance(late, Failed)

    asyncio.run(scenario())


def test_a_worker_that_never_answers_is_ended_and_started_again() -> None:
    async def scenario() -> None:
        async with running("silent", timing=Timing(start_s=0.3)) as (pool, listener):
            await until(lambda: only(pool).restarts >= 1)
            assert listener.up == []
            assert "did not answer within 0.3 s" in only(pool).last_error

    asyncio.run(scenario())


def test_a_worker_that_cannot_be_started_is_tried_again_ever_more_patiently() -> None:
    async def scenario() -> None:
        pool = LocalPool(1, lambda index, fd: ["/no/such/program"], Timing(backoff_first_s=0.05))
        await pool.start(Listener())
        await until(lambda: only(pool).restarts >= 3)
        assert "No such file" in only(pool).last_error
        await pool.close()

    began_s = time.monotonic()
    asyncio.run(scenario())
    assert time.monotonic() - began_s >= 0.05 + 0.1 + 0.2


def test_a_worker_that_breaks_the_protocol_is_lost_like_a_dead_one() -> None:
    async def scenario() -> None:
        async with running("babble") as (_, listener):
            await until(lambda: listener.up)
            reply = await listener.up[0].call(Infer(0, ["m"], "text", [b"a"]))
            assert isinstance(reply, Failed)
            assert "broke the protocol" in reply.message
            await until(lambda: len(listener.up) == 2)

    asyncio.run(scenario())


def test_a_worker_that_ignores_being_asked_is_killed_after_the_grace() -> None:
    async def scenario() -> None:
        async with running("stubborn", timing=Timing(term_grace_s=0.3)) as (pool, listener):
            await until(lambda: listener.up)
            pid = only(pool).pid
        assert pid is not None
        assert not is_alive(pid)

    asyncio.run(scenario())


def test_workers_end_when_their_server_is_killed(tmp_path: Path) -> None:
    program = f"""
import asyncio, sys
from server.workers.local import LocalPool
class Listener:
    def worker_up(self, worker): print(worker.process.pid, flush=True)
    def worker_down(self, worker): pass
async def main():
    await LocalPool(1, lambda i, fd: [sys.executable, {str(SCRIPT)!r}, str(fd), "good"]).start(Listener())
    await asyncio.sleep(60)
asyncio.run(main())
"""
    server = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=ROOT)
    assert server.stdout is not None
    worker = int(server.stdout.readline())
    assert is_alive(worker)
    server.kill()
    server.wait()
    asyncio.run(until(lambda: not is_alive(worker)))


WATCHFUL = Timing(term_grace_s=5.0, ping_every_s=0.1, silent_s=1.0)


def test_a_worker_that_is_stopped_is_seen_whatever_it_was_at_and_replaced() -> None:
    async def scenario() -> None:
        async with running("good", timing=WATCHFUL) as (pool, listener):
            await until(lambda: listener.up)
            pid = only(pool).pid
            assert pid is not None
            os.kill(pid, signal.SIGSTOP)
            await until(lambda: len(listener.up) == 2)
            assert not is_alive(pid)
            assert listener.down == listener.up[:1]

    asyncio.run(scenario())


def test_a_worker_that_is_stopped_for_a_moment_lives_on() -> None:
    async def scenario() -> None:
        async with running("good", timing=WATCHFUL) as (pool, listener):
            await until(lambda: listener.up)
            pid = only(pool).pid
            assert pid is not None
            os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(0.3)
            os.kill(pid, signal.SIGCONT)
            await asyncio.sleep(1.5)
            assert listener.down == []
            assert only(pool).pid == pid

    asyncio.run(scenario())


def test_a_server_that_stood_still_itself_blames_no_worker() -> None:
    async def scenario() -> None:
        async with running("good", timing=Timing(ping_every_s=0.01, silent_s=0.2)) as (_, listener):
            await until(lambda: listener.up)
            await asyncio.sleep(0.05)
            for _ in range(5):
                time.sleep(0.5)  # noqa: ASYNC251  # the loop itself stands still
                await asyncio.sleep(0.02)
            assert listener.down == []

    asyncio.run(scenario())


def test_a_killed_worker_is_lost_at_once_though_it_never_read_what_it_was_sent() -> None:
    async def scenario() -> None:
        async with running("good") as (pool, listener):
            await until(lambda: listener.up)
            pid = only(pool).pid
            assert pid is not None
            os.kill(pid, signal.SIGSTOP)
            asked = asyncio.ensure_future(listener.up[0].call(Infer(0, ["m"], "text", [bytes(1 << 24)])))
            await asyncio.sleep(0.1)
            listener.up[0].kill("a test wants it")
            reply = await asyncio.wait_for(asked, 1.0)
            assert isinstance(reply, Failed)
            assert reply.code == "worker_lost"

    asyncio.run(scenario())


def test_one_worker_more_and_one_less_while_the_pool_runs() -> None:
    async def scenario() -> None:
        async with running("good") as (pool, listener):
            await until(lambda: listener.up)
            assert pool.add(range(2)) == "w1"
            with pytest.raises(ValueError, match="free"):
                pool.add(range(2))
            await until(lambda: len(listener.up) == 2)
            assert [state.name for state in pool.states()] == ["w0", "w1"]
            gone = next(state.pid for state in pool.states() if state.name == "w0")
            assert gone is not None
            await pool.end("w0")
            assert not is_alive(gone)
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

    asyncio.run(scenario())


def test_a_retired_worker_is_not_started_again_until_it_is_to_be_kept() -> None:
    async def scenario() -> None:
        async with running("good", timing=Timing(backoff_first_s=0.01)) as (pool, listener):
            await until(lambda: listener.up)
            pool.retire("w0")
            pid = only(pool).pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            await until(lambda: pool._lives[0].done())
            assert (only(pool).state, len(listener.up)) == ("down", 1)
            pool.keep("w0")
            await until(lambda: len(listener.up) == 2)
            assert (only(pool).state, only(pool).restarts) == ("up", 1)
            with pytest.raises(KeyError):
                pool.retire("w7")

    asyncio.run(scenario())


def test_a_worker_that_never_answers_can_be_ended() -> None:
    async def scenario() -> None:
        async with running("silent") as (pool, listener):
            await until(lambda: only(pool).pid)
            pid = only(pool).pid
            assert pid is not None
            await pool.end("w0")
            assert (pool.states(), listener.up, listener.down) == ((), [], [])
            assert not is_alive(pid)

    asyncio.run(scenario())
