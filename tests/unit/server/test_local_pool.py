"""Worker processes on this machine: started, missed, started again, and never left behind.

What holds for every pool stands in `pool_contract`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from server.workers.local import LocalPool
from server.workers.supervised_pool import SupervisedPool, Timing
from tests.unit.server.pool_contract import (
    SCENARIOS,
    SCRIPT,
    WATCHFUL,
    Listener,
    Running,
    fake_worker,
    is_alive,
    only,
    served,
)
from tests.waiting import until

ROOT = Path(__file__).parents[3]


def running(
    behaviour: str, count: int = 1, timing: Timing | None = None
) -> AbstractAsyncContextManager[tuple[SupervisedPool, Listener]]:
    return served(
        LocalPool(
            count,
            lambda index, fd: [sys.executable, *fake_worker(behaviour, fd)],
            timing or Timing(term_grace_s=5.0),
        )
    )


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_the_contract_of_pools(scenario: Callable[[Running], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scenario(running))


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
