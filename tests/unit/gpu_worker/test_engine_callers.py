"""The engine and its callers: cancelled at once, many at a time, models that come and go."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from gpu_worker.engine import Engine
from gpu_worker.errors import Cancelled, ModelUnusable, NoRoom, WorkerError
from gpu_worker.model_files.preprocess import Frame
from gpu_worker.networks.hashing import Hashing
from gpu_worker.networks.network import Floats, Inputs, IsCancelled
from gpu_worker.pipeline.decode import decode_picture
from tests.answers import labels_of
from tests.models import CLASSES, hashing_model, label_of
from tests.unit.gpu_worker.pictures import noise
from tests.waiting import wait_until, wait_until_steady

Engines = Callable[..., Engine]


def test_a_cancelled_batch_returns_at_once_and_the_next_one_is_answered(
    engines: Engines, slow: Path, hashing: Path
) -> None:
    engine = engines()
    engine.load("slow", str(slow))
    engine.load("h", str(hashing))
    cancelled = threading.Event()
    threading.Timer(0.2, cancelled.set).start()
    began_s = time.monotonic()
    with pytest.raises(Cancelled):
        engine.infer(["slow"] * 50, "text", [b"a"], cancelled=cancelled.is_set)
    assert time.monotonic() - began_s < 5, "20 s of work were under way"
    assert labels_of(engine.infer(["h"], "text", [b"a"]).members[0]) == [label_of("a")]
    engine.unload("slow")


def test_what_the_callers_own_check_raises_comes_through_and_ends_the_batch(
    engines: Engines, slow: Path
) -> None:
    class StatementCancelled(Exception):
        pass

    calls = []

    def interrupted() -> bool:
        calls.append(threading.current_thread())
        if len(calls) == 3:
            raise StatementCancelled
        return False

    engine = engines()
    engine.load("slow", str(slow))
    with pytest.raises(StatementCancelled):
        engine.infer(["slow"], "text", [b"a"], cancelled=interrupted)
    assert set(calls) == {threading.current_thread()}
    engine.unload("slow")


def test_a_cancel_stops_a_long_batch_of_images_between_pieces(
    engines: Engines, media: Path, paths: list[bytes], vgg: Path
) -> None:
    engine = engines(media_roots=(str(media),), threads=2)
    engine.load("vgg", str(vgg))
    began_s = time.monotonic()
    with pytest.raises(Cancelled):
        engine.infer(["vgg"], "path", paths * 4000, cancelled=lambda: time.monotonic() - began_s > 0.3)
    assert time.monotonic() - began_s < 10, "about 96,000 images were asked for"
    began_s = time.monotonic()
    engine.unload("vgg")
    assert time.monotonic() - began_s < 10, "what was under way ended soon"


def test_rows_of_a_long_batch_are_not_all_decoded_ahead(
    engines: Engines, media: Path, paths: list[bytes], vgg: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engines(media_roots=(str(media),), threads=2)
    engine.load("vgg", str(vgg))
    gate, decoded = threading.Event(), []

    def counting(data: bytes, frame: Frame, *, max_pixels: int) -> np.ndarray:
        decoded.append(1)
        return decode_picture(data, frame, max_pixels=max_pixels)

    def blocked(*_: object) -> None:
        assert gate.wait(30)
        raise WorkerError("enough")

    monkeypatch.setattr("gpu_worker.pipeline.intake.decode_picture", counting)
    monkeypatch.setattr("gpu_worker.pipeline.forward.Tally.add", blocked)
    batch = engine.begin(["vgg"], "path", paths * 100)
    wait_until(lambda: decoded)
    wait_until_steady(lambda: len(decoded))
    seen = len(decoded)
    gate.set()
    with pytest.raises(WorkerError, match="enough"):
        batch.answer.result(30)
    assert 0 < seen <= 64 * 5, "memory does not grow with the batch"


def test_many_callers_at_once_each_get_their_own_answers(
    engines: Engines, media: Path, paths: list[bytes], vgg: Path, hashing: Path
) -> None:
    engine = engines(media_roots=(str(media),), threads=2)
    engine.load("vgg", str(vgg))
    engine.load("h", str(hashing))
    expected = labels_of(engine.infer(["vgg"], "path", paths).members[0])
    wrong: list[str] = []

    def ask(number: int) -> None:
        for turn in range(6):
            at = (number + turn) % len(paths)
            rows = paths[at:] + paths[:at]
            if labels_of(engine.infer(["vgg"], "path", rows).members[0]) != expected[at:] + expected[:at]:
                wrong.append(f"images {number}/{turn}")
            texts = [f"{number}/{turn}/{row}" for row in range(20)]
            answer = engine.infer(["h"], "text", [text.encode() for text in texts])
            if labels_of(answer.members[0]) != list(map(label_of, texts)):
                wrong.append(f"text {number}/{turn}")

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_hashing_model_takes_the_time_it_was_told_and_one_batch_at_a_time(
    engines: Engines, tmp_path: Path
) -> None:
    engine = engines(threads=2)
    engine.load("h", str(hashing_model(tmp_path, "h", delay_ms=100, row_delay_ms=10)))
    began_s = time.monotonic()
    batches = [engine.begin(["h"], "text", [b"a"] * 10) for _ in range(3)]
    answers = [batch.answer.result(30) for batch in batches]
    assert time.monotonic() - began_s >= 3 * 0.2
    assert all(0.2 <= answer.forward_s < 1.0 for answer in answers)


def test_bad_options_of_a_hashing_model_are_refused(engines: Engines, tmp_path: Path) -> None:
    engine = engines()
    for options in (
        {"delay_ms": -1},
        {"delay_ms": "soon"},
        {"speed": 3},
        {"delay_ms": 60_001},
        {"row_delay_ms": float("inf")},
        {"row_delay_ms": float("nan")},
    ):
        with pytest.raises(ModelUnusable, match="hashing"):
            engine.load("h", str(hashing_model(tmp_path, "h", **options)))


@pytest.mark.security
def test_no_options_of_a_hashing_model_hold_a_worker_for_more_than_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept_s: list[float] = []
    now_s = [0.0]

    def sleep(seconds: float) -> None:
        slept_s.append(seconds)
        now_s[0] += seconds

    clock = SimpleNamespace(sleep=sleep, monotonic=lambda: now_s[0])
    monkeypatch.setattr("gpu_worker.networks.hashing.time", clock)  # other threads keep theirs
    Hashing(["a"], delay_ms=60_000, row_delay_ms=60_000).scores([b"x"] * 1000, lambda: False)
    assert sum(slept_s) <= 60.001


def test_no_model_leaves_for_another_unless_it_is_told_to(
    engines: Engines, tmp_path: Path, slow: Path
) -> None:
    engine = engines(resident_models=2)
    engine.load("slow", str(slow))
    engine.load("a", str(hashing_model(tmp_path, "a")))
    batch = engine.begin(["slow"], "text", [b"x"])
    b = str(hashing_model(tmp_path, "b"))
    with pytest.raises(NoRoom, match="'b'"):
        engine.load("b", b)
    assert [(there.key, there.users) for there in engine.residents()] == [("a", 0), ("slow", 1)]
    engine.unload("a")
    engine.load("b", b)
    assert labels_of(batch.answer.result(30).members[0]) == [label_of("x")]
    assert engine.resident() == ["slow", "b"]


def test_a_load_waits_for_no_pass_under_way(
    engines: Engines,
    paths: list[bytes],
    media: Path,
    vgg: Path,
    resnet: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = engines(threads=2, media_roots=(str(media),))
    engine.load("vgg", str(vgg))
    pass_may_end, in_pass = threading.Event(), threading.Event()
    (resident,) = engine._cache.acquire(["vgg"])
    scores = resident.network.scores

    def long_pass(inputs: Inputs, is_cancelled: IsCancelled) -> Floats:
        in_pass.set()
        assert pass_may_end.wait(60)
        return scores(inputs, is_cancelled)

    monkeypatch.setattr(resident.network, "scores", long_pass)
    batch = engine.begin(["vgg"], "image", [noise(1)])
    assert in_pass.wait(30)
    loading = threading.Thread(target=engine.load, args=("resnet", str(resnet)))
    loading.start()
    loading.join(40)
    is_loaded = not loading.is_alive()
    pass_may_end.set()
    loading.join(30)
    assert is_loaded, "loading waited for a pass of another model"
    assert labels_of(batch.answer.result(30).members[0])[0] in CLASSES


def test_torchs_own_default_of_threads_is_the_callers_still(
    engines: Engines, vgg: Path, resnet: Path
) -> None:
    torch.set_num_threads(3)
    engine = engines(threads=2)
    seen: list[int] = []
    for key, folder in (("vgg", vgg), ("resnet", resnet)):
        engine.load(key, str(folder))
        fresh = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        fresh.start()
        fresh.join()
    inside: list[int] = []
    engine._model_threads.submit(lambda: inside.append(torch.get_num_threads())).result(30)
    assert inside == [1]
    assert seen == [3, 3]
    assert torch.get_num_threads() == 3


def test_no_bound_on_the_number_of_models_is_none(engines: Engines, tmp_path: Path) -> None:
    engine = engines(resident_models=0)
    names = [f"m{number}" for number in range(20)]
    for name in names:
        engine.load(name, str(hashing_model(tmp_path, name)))
    assert engine.resident() == names


def test_a_closed_engine_leaves_no_caller_waiting(engines: Engines, slow: Path) -> None:
    engine = engines()
    engine.load("slow", str(slow))
    for _ in range(5):
        engine.begin(["slow"], "text", [b"a"])
    threading.Timer(0.2, engine.close).start()
    with pytest.raises(WorkerError, match="closed"):
        engine.infer(["slow"], "text", [b"a"])


def test_the_callers_own_torch_threads_are_left_as_they_were(engines: Engines, vgg: Path) -> None:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        engine = engines(threads=2)
        engine.load("vgg", str(vgg))
        engine.infer(["vgg"], "image", [noise(1)] * 20)
        assert torch.get_num_threads() == 3
        in_a_new_thread: list[int] = []
        thread = threading.Thread(target=lambda: in_a_new_thread.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert in_a_new_thread == [3]
    finally:
        torch.set_num_threads(before)
