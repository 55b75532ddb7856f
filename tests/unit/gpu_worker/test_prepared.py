"""Weights as they lie in memory: made once, read as they are, made anew when they are not what they were."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpu_worker.engine import Engine, LoadReport
from gpu_worker.model_files.prepared import PreparedFiles, stamp_of
from gpu_worker.wire.protocol import Answer
from tests.answers import SCORED, scores_of
from tests.unit.gpu_worker.pictures import noise

Engines = Callable[..., Engine]
DATA = bytes(range(256)) * 4096  # a MiB


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "prepared"


@pytest.fixture
def model(squeezenet: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(squeezenet, tmp_path / "model"))


def scores(engine: Engine) -> np.ndarray:
    answer: Answer = engine.infer(["m"], "image", [noise(1), noise(2)], outputs=SCORED)
    return np.frombuffer(scores_of(answer.members[0]), np.float32)


def loaded(engines: Engines, folder: Path, model: Path, **settings: object) -> tuple[LoadReport, np.ndarray]:
    """In an engine of its own, as a worker that has just started; its file is written when this returns."""
    engine = engines(threads=1, prepared=str(folder), **settings)
    report = engine.load("m", str(model))
    engine._loads.settle()
    return report, scores(engine)


def only_file(folder: Path) -> Path:
    (found,) = folder.iterdir()
    return found


def test_the_second_worker_reads_what_the_first_prepared_and_hashes_nothing(
    engines: Engines, folder: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, expected = loaded(engines, folder, model)
    monkeypatch.setattr(
        "gpu_worker.model_files.sources.open_regular", lambda _: pytest.fail("the weights were hashed again")
    )
    monkeypatch.setattr(
        "gpu_worker.networks.torch_loader.load_file", lambda _: pytest.fail("the weights were read again")
    )
    report, found = loaded(engines, folder, model)
    np.testing.assert_array_equal(found, expected)
    assert report.times.read_s > 0


@pytest.mark.parametrize("damage", ["truncated", "header", "data", "emptied", "another's", "longer"])
def test_a_file_that_is_not_what_was_written_is_made_anew(
    engines: Engines, folder: Path, model: Path, damage: str
) -> None:
    _, expected = loaded(engines, folder, model)
    path = only_file(folder)
    whole = bytearray(path.read_bytes())
    if damage == "truncated":
        path.write_bytes(whole[:-1])
    elif damage == "header":
        whole[40] ^= 1
        path.write_bytes(whole)
    elif damage == "data":
        whole[-100] ^= 0xFF
        path.write_bytes(whole)
    elif damage == "emptied":
        path.write_bytes(b"")
    elif damage == "longer":
        path.write_bytes(whole + b"x")
    else:
        PreparedFiles(str(folder)).write("f" * 64, str(path), stamp_of(str(path)), [], memoryview(b"x"))
        os.replace(folder / f"{'f' * 64}.weights", path)
    _, found = loaded(engines, folder, model)
    np.testing.assert_array_equal(found, expected)
    assert only_file(folder).read_bytes()[4096:] == bytes(whole)[4096:] or damage == "data"
    report, found = loaded(engines, folder, model)
    np.testing.assert_array_equal(found, expected)
    assert report.times.read_s > 0, "the new one is read"


def test_a_copied_file_is_hashed_once_and_used(
    engines: Engines, folder: Path, model: Path, tmp_path: Path
) -> None:
    _, expected = loaded(engines, folder, model)
    copied = Path(shutil.copytree(folder, tmp_path / "copied"))
    report, found = loaded(engines, copied, model)
    np.testing.assert_array_equal(found, expected)
    assert report.times.read_s > 0


def test_a_full_disk_costs_the_file_and_not_the_load(
    engines: Engines,
    folder: Path,
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def full(descriptor: int, data: bytes, at: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("gpu_worker.model_files.prepared.os.pwrite", full)
    loaded(engines, folder, model)
    assert list(folder.iterdir()) == []
    assert "No space left" in caplog.text


def test_a_folder_that_cannot_be_written_costs_nothing_but_the_file(
    engines: Engines, model: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    loaded(engines, tmp_path / "file" / "prepared", model)


def test_models_without_a_hash_in_their_manifest_are_prepared_too(
    engines: Engines, folder: Path, model: Path
) -> None:
    import json

    path = model / "model.json"
    content = json.loads(path.read_text())
    del content["sha256"]
    path.write_text(json.dumps(content))
    _, expected = loaded(engines, folder, model)
    report, found = loaded(engines, folder, model)
    np.testing.assert_array_equal(found, expected)
    assert report.times.read_s > 0


def test_what_a_killed_process_left_and_what_belongs_to_no_model_is_swept(
    folder: Path, tmp_path: Path
) -> None:
    weights = tmp_path / "weights"
    weights.write_bytes(b"w")
    files = PreparedFiles(str(folder))
    for name in ("a", "b"):
        files.write(name, str(weights), stamp_of(str(weights)), [], memoryview(DATA))
    (folder / ".coming-dead").write_bytes(b"half of one")
    PreparedFiles(str(folder)).sweep()
    assert sorted(path.name for path in folder.iterdir()) == ["a.weights", "b.weights"]
    weights.unlink()
    PreparedFiles(str(folder)).sweep()
    assert list(folder.iterdir()) == []


def test_what_is_being_written_is_left_alone(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = tmp_path / "weights"
    weights.write_bytes(b"w")
    sync = os.fsync
    swept: list[list[str]] = []

    def sweep_meanwhile(descriptor: int) -> None:
        sync(descriptor)
        PreparedFiles(str(folder)).sweep()
        swept.append(os.listdir(folder))

    monkeypatch.setattr("gpu_worker.model_files.prepared.os.fsync", sweep_meanwhile)
    files = PreparedFiles(str(folder))
    files.write("a", str(weights), stamp_of(str(weights)), [], memoryview(DATA))
    assert any(name.startswith(".coming-") for name in swept[0])
    file = files.open("a")
    assert file is not None
    found = bytearray(len(DATA))
    file.read(memoryview(found), 0)
    file.close()
    assert (bytes(found), file.trusted) == (DATA, True)


def test_a_model_that_leaves_while_its_file_is_written_is_written_whole(
    engines: Engines, folder: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, may_be_written = PreparedFiles.write, threading.Event()

    def late(*arguments: Any) -> None:
        assert may_be_written.wait(30)
        written(*arguments)

    monkeypatch.setattr(PreparedFiles, "write", late)
    engine = engines(threads=1, prepared=str(folder))
    engine.load("m", str(model))
    expected = scores(engine)
    engine.unload("m")
    may_be_written.set()
    engine._loads.settle()
    monkeypatch.undo()
    report, found = loaded(engines, folder, model)
    assert report.times.read_s > 0
    np.testing.assert_array_equal(found, expected)


def test_a_cpu_gives_back_the_memory_of_what_left_and_traces_it_once(
    engines: Engines, folder: Path, model: Path
) -> None:
    engine = engines(threads=1, prepared=str(folder))
    engine.load("m", str(model))
    expected = scores(engine)
    (resident,) = engine._cache.residents()
    memory = resident.network.weights.memory  # type: ignore[attr-defined]
    assert any(memory.view)
    engine.unload("m")
    engine._loads.settle()
    assert not any(memory.view)
    report = engine.load("m", str(model))
    np.testing.assert_array_equal(scores(engine), expected)
    assert (report.times.make_s, report.times.warm_up_s) == (0.0, 0.0)


def test_a_cpu_holds_weights_once(engines: Engines, folder: Path, model: Path) -> None:
    loaded(engines, folder, model)
    engine = engines(threads=1, prepared=str(folder))
    engine.load("m", str(model))
    (resident,) = engine._cache.residents()
    weights = resident.network.weights  # type: ignore[attr-defined]
    assert engine._loads.host is None
    assert weights.nbytes <= resident.network.resident_bytes
    from gpu_worker.networks.weights import is_attached

    assert is_attached(resident.network._module, weights.memory)  # type: ignore[attr-defined]
