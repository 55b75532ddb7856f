"""The worker dies at each message, before, in and after its reply: all is answered or failed, none hangs."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpu_worker.wire.protocol import (
    EndTraining,
    Evaluate,
    Failed,
    ForgetTrial,
    Inspect,
    Message,
    Ping,
    Pong,
    ProbeTraining,
    StoreCheckpoint,
    TrainEpoch,
)
from server.errors import ServiceError
from server.workers.local import LocalPool
from server.workers.pool import Worker
from server.workers.supervised_pool import Timing
from tests.answers import labels_of
from tests.unit.server.house import House
from tests.unit.server.served import text_model
from tests.waiting import until

SCRIPT = Path(__file__).with_name("mortal_worker_process.py")
ROOT = Path(__file__).parents[3]
PATIENCE_S = 90.0
WHEN = pytest.mark.parametrize("when", ["before", "middle", "after"])
TRAINING: dict[str, Callable[[], Message]] = {
    "train": lambda: TrainEpoch(0, "t", {}, "s", [], "", 0, 1),
    "keep": lambda: StoreCheckpoint(0, "t", "d"),
    "evaluate": lambda: Evaluate(0, {}, "s", [], "", "test"),
    "inspect": lambda: Inspect(0, [b"a"]),
    "drop": lambda: ForgetTrial(0, "t"),
    "look": lambda: ProbeTraining(0),
    "end_training": lambda: EndTraining(0),
}


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@asynccontextmanager
async def mortal(house: House, kind: str, when: str, mark: Path) -> AsyncIterator[LocalPool]:
    def command(index: int, fd: int) -> list[str]:
        return [sys.executable, str(SCRIPT), str(fd), kind, when, str(mark)]

    pool = LocalPool(1, command, Timing(backoff_first_s=0.05, ping_every_s=0.1, silent_s=5.0))
    await pool.start(house.residency)
    try:
        yield pool
    finally:
        await house.residency.close()
        await pool.close()


@WHEN
@pytest.mark.parametrize("kind", ["ping", "load", "unload", "infer", "cancel"])
def test_rows_are_answered_whatever_the_worker_was_at(tmp_path: Path, kind: str, when: str) -> None:
    mark = tmp_path / "dead"

    async def scenario() -> None:
        house = House()
        async with mortal(house, kind, when, mark) as pool:
            first = [house.ask("a", "b"), house.ask("c")]
            for pending, labels in zip(first, (["a", "b"], ["c"]), strict=True):
                assert list(labels_of(await pending.future)) == labels
                house.dispatcher.end(pending)
            gone = house.ask("slow")
            await until((tmp_path / "slow").exists, PATIENCE_S)
            house.dispatcher.end(gone)
            beside = house.ask("d")
            assert list(labels_of(await beside.future)) == ["d"]
            house.dispatcher.end(beside)
            await house.residency.unload(["net/1"])
            last = [house.ask(str(number)) for number in range(10)]
            for number, pending in enumerate(last):
                assert list(labels_of(await pending.future)) == [str(number)]
                house.dispatcher.end(pending)
            await until(lambda: mark.exists() and pool.states()[0].state == "up", PATIENCE_S)
            await until(lambda: house.residency.resident() == {"w0": ["net/1"]}, PATIENCE_S)
            worker = house.dispatcher._workers["w0"]
            pong = await worker.call(Ping(0))
            assert isinstance(pong, Pong)
            assert pong.resident == ["net/1"], "what is believed is so"
            assert house.dispatcher.queue_depth() == {("f", 1): (0, 0)}

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


@WHEN
def test_a_deploy_is_carried_out_or_failed(tmp_path: Path, when: str) -> None:
    async def scenario() -> None:
        house = House()
        async with mortal(house, "load", when, tmp_path / "dead"):
            try:
                await house.residency.load((text_model("other"),))
            except ServiceError as error:
                assert error.code == "worker_lost"  # noqa: PT017
            await house.residency.load((text_model("other"),))
            assert house.residency.is_resident((text_model("other"),))

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


@WHEN
@pytest.mark.parametrize("kind", sorted(TRAINING))
def test_every_message_of_training_is_answered_or_failed(tmp_path: Path, kind: str, when: str) -> None:
    async def scenario() -> None:
        house = House()
        message = TRAINING[kind]()
        async with mortal(house, message.kind, when, tmp_path / "dead") as pool:
            await until(lambda: house.dispatcher._workers, PATIENCE_S)
            first: Worker = house.dispatcher._workers["w0"]
            beside = asyncio.gather(*(first.call(make()) for make in TRAINING.values()))
            replies = await beside
            for reply in replies:
                assert not isinstance(reply, Failed) or reply.code == "worker_lost"
            assert sum(isinstance(reply, Failed) for reply in replies) >= (when != "after")
            await until(lambda: pool.states()[0].restarts == 1 and house.dispatcher._workers, PATIENCE_S)
            again = await house.dispatcher._workers["w0"].call(TRAINING[kind]())
            assert not isinstance(again, Failed)

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))
