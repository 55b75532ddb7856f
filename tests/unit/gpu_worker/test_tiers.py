"""Device ← host ← disk on a simulated device: what moves is what computes, and what leaves is gone."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import torch

from gpu_worker.engine import Engine
from gpu_worker.errors import Cancelled, ModelUnusable, NoRoom
from gpu_worker.model_files.manifest import read_manifest
from gpu_worker.settings import Settings
from gpu_worker.wire.protocol import Answer
from tests.answers import SCORED, labels_of, scores_of
from tests.models import hashing_model, label_of
from tests.unit.gpu_worker.pictures import noise

MIB = 1 << 20
PATIENCE_S = 90.0
SOON_S = 0.05  # what a cancel may take, and what a thread may be late by on a busy machine
LATE_S = 1.5

Simulated = Callable[..., Engine]


@pytest.fixture
def simulated() -> Iterator[Simulated]:
    """Makes engines on simulated devices; closes them."""
    with ExitStack() as stack:

        def make(device: str = "sim:64MiB,10", **settings: object) -> Engine:
            engine = Engine(Settings(device=device, threads=1, **settings))  # type: ignore[arg-type]
            stack.callback(engine.close)
            return engine

        yield make


def weighty(folder: Path, name: str, mib: float) -> str:
    """A model of so many MiB, which answers wrongly where they are not."""
    return str(hashing_model(folder, name, weight_bytes=int(mib * MIB)))


def scores(engine: Engine, key: str) -> np.ndarray:
    answer: Answer = engine.infer([key], "image", [noise(1), noise(2)], outputs=SCORED)
    return np.frombuffer(scores_of(answer.members[0]), np.float32)


def asks(engine: Engine, key: str) -> str:
    return labels_of(engine.infer([key], "text", [b"a"]).members[0])[0]


def load_aside(engine: Engine, key: str, folder: str, given_up: threading.Event) -> Callable[[], str]:
    """Loads in a thread; gives what waits for it, and says what became of it."""
    became: list[str] = []

    def load() -> None:
        try:
            engine.load(key, folder, given_up.is_set)
            became.append("loaded")
        except Exception as exc:
            became.append(type(exc).__name__)

    thread = threading.Thread(target=load)
    thread.start()

    def wait() -> str:
        thread.join(PATIENCE_S)
        assert became, "the load goes on for ever"
        return became[0]

    return wait


def until(true: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline_s
        time.sleep(0.002)


def test_a_model_answers_on_the_device_as_on_the_cpu_and_again_when_it_comes_back(
    simulated: Simulated, engines: Callable[..., Engine], squeezenet: Path
) -> None:
    plain, engine = engines(threads=1), simulated()
    plain.load("m", str(squeezenet))
    expected = scores(plain, "m")
    first = engine.load("m", str(squeezenet))
    np.testing.assert_array_equal(scores(engine, "m"), expected)
    engine.unload("m")
    again = engine.load("m", str(squeezenet))
    np.testing.assert_array_equal(scores(engine, "m"), expected)
    assert again.resident_bytes == first.resident_bytes
    assert first.times.warm_up_s > 0
    assert (again.times.read_s, again.times.make_s, again.times.warm_up_s) == (0.0, 0.0, 0.0)


def test_what_a_load_should_take_again_is_the_link_alone_if_the_host_keeps_its_copy(
    simulated: Simulated, tmp_path: Path
) -> None:
    engine = simulated("sim:64MiB,0.5")
    report = engine.load("m", weighty(tmp_path, "m", 8))
    assert report.again_s == report.times.copy_s < report.load_s


def test_the_weights_that_compute_are_the_copied_ones(simulated: Simulated, squeezenet: Path) -> None:
    engine = simulated()
    engine.load("m", str(squeezenet))
    expected = scores(engine, "m")
    (resident,) = engine._cache.residents()
    resident.network.weights.memory.give_back()  # type: ignore[attr-defined]
    assert not np.array_equal(scores(engine, "m"), expected)


def test_the_link_takes_what_its_rate_says_and_the_fixed_time(simulated: Simulated, tmp_path: Path) -> None:
    engine = simulated("sim:64MiB,0.5,20")
    times = engine.load("m", weighty(tmp_path, "m", 16)).times
    wanted_s = 0.020 + 16 * MIB / 0.5e9
    assert wanted_s <= times.copy_s < wanted_s + LATE_S
    assert asks(engine, "m") == label_of("a")


def test_one_model_at_a_time_goes_over_the_link(simulated: Simulated, tmp_path: Path) -> None:
    engine = simulated("sim:64MiB,0.2")
    folders = [weighty(tmp_path, name, 8) for name in ("a", "b")]
    began_s = time.monotonic()
    waits = [load_aside(engine, f"m{at}", folder, threading.Event()) for at, folder in enumerate(folders)]
    assert [wait() for wait in waits] == ["loaded", "loaded"]
    assert time.monotonic() - began_s >= 2 * 8 * MIB / 0.2e9


def test_the_bytes_of_the_residents_are_counted_exactly(simulated: Simulated, tmp_path: Path) -> None:
    engine = simulated("sim:20MiB,10")
    for name, mib in (("a", 4), ("b", 8)):
        engine.load(name, weighty(tmp_path, name, mib))
    own = 1024
    assert engine.used_bytes == 12 * MIB + 2 * own
    with pytest.raises(NoRoom) as refused:
        engine.load("c", weighty(tmp_path, "c", 8))
    assert refused.value.wanted_bytes == 8 * MIB + own
    engine.unload("b")
    assert engine.used_bytes == 4 * MIB + own
    engine.load("c", str(tmp_path / "c" / "1"))
    assert engine.used_bytes == 12 * MIB + 2 * own


def test_a_model_larger_than_the_device_is_refused_before_anything_moves(
    simulated: Simulated, tmp_path: Path
) -> None:
    engine = simulated("sim:4MiB,0.001")
    with pytest.raises(ModelUnusable, match="more than the 4194304"):
        engine.load("m", weighty(tmp_path, "m", 8))
    assert engine.used_bytes == 0


def test_a_load_over_the_link_is_given_up_soon_and_leaves_nothing(
    simulated: Simulated, tmp_path: Path
) -> None:
    engine = simulated("sim:64MiB,0.01")
    given_up = threading.Event()
    wait = load_aside(engine, "m", weighty(tmp_path, "m", 32), given_up)
    waits_in_line = load_aside(engine, "n", weighty(tmp_path, "n", 16), given_up)
    until(lambda: sorted(engine.loading()) == ["m", "n"])
    time.sleep(0.05)
    given_up.set()
    began_s = time.monotonic()
    assert (wait(), waits_in_line()) == ("Cancelled", "Cancelled")
    assert time.monotonic() - began_s < SOON_S + LATE_S
    assert (engine.used_bytes, engine.loading(), engine.resident()) == (0, [], [])


def test_what_is_cancelled_can_be_loaded_at_once_and_whole(simulated: Simulated, tmp_path: Path) -> None:
    engine = simulated("sim:20MiB,0.1")
    given_up = threading.Event()
    folder = weighty(tmp_path, "m", 16)
    wait = load_aside(engine, "m", folder, given_up)
    time.sleep(0.03)
    given_up.set()
    assert wait() == "Cancelled"
    engine.load("m", folder)
    assert asks(engine, "m") == label_of("a")


def test_a_warm_up_that_is_given_up_frees_its_room_when_its_pass_is_over(
    simulated: Simulated, squeezenet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = simulated()
    in_pass, may_end, given_up = threading.Event(), threading.Event(), threading.Event()

    def long_pass(*_: object) -> None:
        in_pass.set()
        assert may_end.wait(PATIENCE_S)

    monkeypatch.setattr("gpu_worker.tiers.loads.warm_up", long_pass)
    wait = load_aside(engine, "m", str(squeezenet), given_up)
    assert in_pass.wait(PATIENCE_S)
    given_up.set()
    assert wait() == "Cancelled"
    assert engine.used_bytes > 0
    may_end.set()
    until(lambda: engine.used_bytes == 0)


def test_what_is_cancelled_by_an_exception_raises_it(simulated: Simulated, tmp_path: Path) -> None:
    engine = simulated("sim:64MiB,0.01")

    def too_late() -> bool:
        raise TimeoutError("the statement's time is over")

    with pytest.raises(TimeoutError, match="statement"):
        engine.load("m", weighty(tmp_path, "m", 32), too_late)
    assert engine.used_bytes == 0


def test_batches_of_others_go_on_while_a_model_moves_and_its_own_last_batch_holds_its_eviction(
    simulated: Simulated, tmp_path: Path
) -> None:
    engine = simulated("sim:64MiB,0.005")
    engine.load("slow", str(hashing_model(tmp_path, "slow", delay_ms=300)))
    engine.load("quick", weighty(tmp_path, "quick", 0.01))
    batch = engine.begin(["slow"], "text", [b"a"])
    evicting = threading.Thread(target=engine.unload, args=("slow",))
    evicting.start()
    wait = load_aside(engine, "big", weighty(tmp_path, "big", 16), threading.Event())
    until(lambda: engine.loading() == ["big"])
    for _ in range(5):
        assert asks(engine, "quick") == label_of("a")
    assert engine.loading() == ["big"], "the batches waited for the load"
    assert labels_of(batch.answer.result(PATIENCE_S).members[0]) == [label_of("a")]
    evicting.join(PATIENCE_S)
    assert wait() == "loaded"
    assert engine.resident() == ["quick", "big"]


def test_the_host_keeps_what_was_used_last_within_its_bytes(simulated: Simulated, tmp_path: Path) -> None:
    engine = simulated("sim:64MiB,10", host_bytes=20 * MIB)
    host = engine._loads.host
    assert host is not None
    for name in ("a", "b", "c"):
        engine.load(name, weighty(tmp_path, name, 8))
    assert host.used_bytes == 16 * MIB
    engine.load("huge", weighty(tmp_path, "huge", 24))
    assert host.used_bytes == 16 * MIB, "what does not fit is not kept, and nobody leaves for it"
    assert [asks(engine, name) for name in ("a", "b", "c", "huge")] == [label_of("a")] * 4


def test_a_network_is_made_once_though_its_weights_left_the_host_too(
    simulated: Simulated, squeezenet: Path, tmp_path: Path
) -> None:
    engine = simulated(prepared=str(tmp_path / "prepared"))
    engine.load("m", str(squeezenet))
    expected = scores(engine, "m")
    engine.unload("m")
    engine._loads.settle()
    host = engine._loads.host
    assert host is not None
    host.clear()
    assert host.used_bytes == 0
    report = engine.load("m", str(squeezenet))
    assert report.times.read_s > 0
    assert report.times.warm_up_s == 0.0
    np.testing.assert_array_equal(scores(engine, "m"), expected)


def test_a_load_ends_when_its_engine_is_closed(simulated: Simulated, tmp_path: Path) -> None:
    engine = simulated("sim:64MiB,0.01")
    wait = load_aside(engine, "m", weighty(tmp_path, "m", 32), threading.Event())
    until(lambda: engine.loading() == ["m"])
    engine.close()
    assert wait() == "Cancelled"


def test_a_model_that_is_made_anew_each_time_says_so_in_what_its_next_load_takes(
    simulated: Simulated, squeezenet: Path, tmp_path: Path
) -> None:
    model = Path(shutil.copytree(squeezenet, tmp_path / "theirs"))
    manifest = json.loads((model / "model.json").read_text())
    manifest["architecture"] = "gpu_worker.zoo.squeezenet:SqueezeNet"  # by import path: nothing of it is kept
    (model / "model.json").write_text(json.dumps(manifest))
    report = simulated(allow_import=True).load("m", str(model))
    assert report.times.warm_up_s > 0
    assert report.again_s >= report.times.make_s + report.times.warm_up_s


def test_two_models_of_the_same_weights_share_the_hosts_copy_and_answer_each(
    simulated: Simulated, squeezenet: Path, tmp_path: Path
) -> None:
    other = Path(shutil.copytree(squeezenet, tmp_path / "other"))
    engine = simulated()
    engine.load("a", str(squeezenet))
    host = engine._loads.host
    assert host is not None
    alone_bytes = host.used_bytes
    engine.load("b", str(other))
    assert host.used_bytes == alone_bytes
    np.testing.assert_array_equal(scores(engine, "a"), scores(engine, "b"))
    engine.unload("a")
    np.testing.assert_array_equal(scores(engine, "b"), scores(engine, "b"))
    engine.load("c", str(squeezenet))
    np.testing.assert_array_equal(scores(engine, "c"), scores(engine, "b"))


def test_what_passes_have_taught_is_known_when_a_model_comes_back(
    simulated: Simulated, squeezenet: Path
) -> None:
    engine = simulated()
    engine.load("m", str(squeezenet))
    scores(engine, "m")
    (before,) = engine._cache.residents()
    engine.unload("m")
    engine.load("m", str(squeezenet))
    (after,) = engine._cache.residents()
    assert after.row_s == before.row_s > 0
    assert after.pieces is before.pieces


def test_weights_that_were_replaced_are_noticed_when_the_model_comes_back(
    simulated: Simulated, squeezenet: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(squeezenet, tmp_path / "m"))
    engine = simulated(prepared=str(tmp_path / "prepared"))
    engine.load("m", str(folder))
    engine.unload("m")
    weights = folder / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    coming = weights.with_name("coming")
    coming.write_bytes(data)
    os.replace(coming, weights)
    with pytest.raises(ModelUnusable, match="replaced"):
        engine.load("m", str(folder))
    assert engine.used_bytes == 0


def test_an_onnx_model_moves_as_bytes_and_answers_as_on_the_cpu(
    simulated: Simulated, engines: Callable[..., Engine], tmp_path: Path
) -> None:
    from tests.unit.gpu_worker.test_onnx import Small, onnx_folder, to_onnx

    torch.manual_seed(1)
    folder = onnx_folder(tmp_path / "small", to_onnx(Small(5).eval()))
    plain, engine = engines(threads=1), simulated()
    plain.load("m", str(folder))
    for _ in range(2):
        report = engine.load("m", str(folder))
        assert report.resident_bytes == os.path.getsize(read_manifest(str(folder)).path_of_weights())
        np.testing.assert_array_equal(scores(engine, "m"), scores(plain, "m"))
        engine.unload("m")


def test_a_given_up_load_of_weights_from_the_disk_leaves_no_copy_in_the_host(
    simulated: Simulated, squeezenet: Path, tmp_path: Path
) -> None:
    engine = simulated()
    with pytest.raises(Cancelled):
        engine.load("m", str(squeezenet), lambda: True)
    host = engine._loads.host
    assert host is not None
    assert (host.used_bytes, engine.used_bytes) == (0, 0)


# ── reading ahead ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_model_that_was_read_ahead_is_in_the_host_and_not_on_the_device(
    simulated: Simulated, tmp_path: Path
) -> None:
    engine = simulated()
    folder = weighty(tmp_path, "m", 4)
    engine.read("m", folder)
    assert engine.resident() == []
    assert engine.used_bytes == 0
    assert engine.in_host() == {"m": 4 * MIB}
    engine.load("m", folder)
    assert asks(engine, "m") == label_of("a")


def test_a_model_that_left_the_device_is_told_of_in_the_host(simulated: Simulated, tmp_path: Path) -> None:
    engine = simulated()
    engine.load("m", weighty(tmp_path, "m", 4))
    engine.unload("m")
    assert engine.in_host() == {"m": 4 * MIB}


def test_reading_ahead_what_the_host_has_no_room_for_keeps_nothing(
    simulated: Simulated, tmp_path: Path
) -> None:
    engine = simulated(host_bytes=2 * MIB)
    folder = weighty(tmp_path, "m", 4)
    engine.read("m", folder)
    assert engine.in_host() == {}
    engine.load("m", folder)
    assert asks(engine, "m") == label_of("a")


def test_reading_ahead_that_is_given_up_leaves_nothing(simulated: Simulated, tmp_path: Path) -> None:
    engine = simulated()
    folder = weighty(tmp_path, "m", 4)
    with pytest.raises(Cancelled):
        engine.read("m", folder, lambda: True)
    assert engine.in_host() == {}
    engine.load("m", folder)
    assert asks(engine, "m") == label_of("a")


def test_where_host_and_device_are_one_there_is_nothing_to_read_ahead(
    simulated: Simulated, tmp_path: Path
) -> None:
    engine = simulated("cpu")
    engine.read("m", weighty(tmp_path, "m", 4))
    assert (engine.resident(), engine.in_host()) == ([], {})
