"""A model is measured when it is first loaded, before it takes rows; and what is known of it is kept."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_worker.wire.protocol import Infer, Message
from server.catalog.functions import InputShape, ModelVersion
from server.catalog.latencies import Latencies
from server.placement.profiling import Profiler
from server.store.latencies import LatencyFiles
from server.workers.pool import OnReply
from tests.unit.server.fake_worker import FakeWorker, settle
from tests.unit.server.house import House
from tests.unit.server.served import image_model, text_model


class Clock:
    """Tells the time that the fake worker took."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class TimedWorker(FakeWorker):
    """Answers every batch at once, and says that it took 10 ms and 1 ms a row."""

    def __init__(self, clock: Clock, slower: float = 1.0, hangs: bool = False) -> None:
        super().__init__()
        self.clock = clock
        self.slower = slower
        self.hangs = hangs
        self.sizes_run: list[int] = []
        self.forms_run: set[str] = set()

    def send(self, message: Message, on_reply: OnReply) -> int:
        message_id = super().send(message, on_reply)
        if isinstance(message, Infer):
            self.sizes_run.append(len(message.rows))
            self.forms_run.add(message.form)
            self.clock.now_s += self.slower * (0.010 + 0.001 * len(message.rows))
            if not self.hangs:
                self.answer(lambda row: "laksa")
        return message_id


def profiled(folder: Path, worker: TimedWorker, model: ModelVersion, waited_after: int = 99) -> Latencies:
    latencies = Latencies(LatencyFiles(folder))
    profiler = Profiler(latencies, worker.clock)
    asyncio.run(profiler.measure(worker, model, lambda: len(worker.sizes_run) >= waited_after))
    return latencies


def test_batches_of_four_sizes_are_measured(tmp_path: Path) -> None:
    worker = TimedWorker(Clock())
    l_hat = profiled(tmp_path, worker, text_model())(text_model()).on("fake", "text")
    assert worker.sizes_run == [1] * 3 + [4] * 3 + [16] * 3 + [64] * 3
    for rows in (1, 4, 16, 40, 64, 100):
        assert l_hat(rows) == pytest.approx(0.010 + 0.001 * rows, rel=1e-3)


def test_a_slow_model_is_measured_at_the_sizes_that_take_no_longer_than_a_short_while(tmp_path: Path) -> None:
    worker = TimedWorker(Clock(), slower=4.0)
    l_hat = profiled(tmp_path, worker, text_model())(text_model()).on("fake", "text")
    assert worker.sizes_run == [1] * 3
    assert l_hat(1) == pytest.approx(0.044)


def test_it_stops_as_soon_as_rows_wait(tmp_path: Path) -> None:
    worker = TimedWorker(Clock())
    latencies = profiled(tmp_path, worker, text_model(), waited_after=4)
    assert worker.sizes_run == [1, 1, 1, 4]
    assert latencies(text_model()).on("fake", "text")(4) == pytest.approx(0.014)


def test_an_image_model_is_measured_by_its_tensors_and_its_other_forms_are_guessed(tmp_path: Path) -> None:
    worker = TimedWorker(Clock())
    l_hat = profiled(tmp_path, worker, image_model())(image_model())
    assert worker.forms_run == {"tensor"}
    path = l_hat.on("fake", "path")
    assert path(4) == pytest.approx(0.014)
    path.observe(4, 0.03)  # with decoding: believed at once
    assert path(4) == pytest.approx(0.03)
    assert l_hat.on("fake", "tensor")(4) == pytest.approx(0.014)


def test_what_takes_nothing_that_can_be_made_up_is_not_measured(tmp_path: Path) -> None:
    worker = TimedWorker(Clock())
    profiled(tmp_path, worker, replace(image_model(), input=InputShape("path")))
    assert worker.sizes_run == []


def test_a_model_that_hangs_is_given_up_and_tried_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.placement.profiling._PATIENCE_S", 0.02)
    worker = TimedWorker(Clock(), hangs=True)
    latencies = Latencies(LatencyFiles(tmp_path))
    profiler = Profiler(latencies, worker.clock)

    async def scenario() -> None:
        for _ in range(2):
            await profiler.measure(worker, text_model(), lambda: False)

    asyncio.run(scenario())
    assert worker.sizes_run == [1]
    assert len(worker.cancelled) == 1
    assert not latencies.is_known(text_model(), "fake")


def test_what_was_learned_survives_a_restart_and_is_not_measured_again(tmp_path: Path) -> None:
    worker = TimedWorker(Clock())
    latencies = profiled(tmp_path, worker, text_model())
    for _ in range(30):
        latencies(text_model()).on("fake", "text").observe(8, 0.05)
    asyncio.run(latencies.save(()))
    again = TimedWorker(Clock())
    restored = profiled(tmp_path, again, text_model())
    assert again.sizes_run == []
    assert restored(text_model()).on("fake", "text")(8) == pytest.approx(0.05, rel=0.05)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"profile_s": 3}', '{"profile_s": [[1, -1]]}'])
def test_a_damaged_file_is_as_good_as_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "latencies" / "net" / "1.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert not Latencies(LatencyFiles(tmp_path)).is_known(text_model(), "fake")


def test_rows_are_sent_to_a_model_only_after_it_was_measured() -> None:
    async def scenario() -> None:
        worker, measured = FakeWorker(answers=True), asyncio.Event()

        async def measure(*_: object) -> None:
            await measured.wait()

        house = House(profile=measure)
        house.residency.worker_up(worker)
        house.residency.want(house.function.members)
        await settle()
        pending = house.ask("laksa")
        await settle()
        assert worker.loads == ["net/1"]
        assert not pending.done
        measured.set()
        await asyncio.wait_for(pending.future, 5)
        assert house.labels(pending) == ["laksa"]

    asyncio.run(scenario())
