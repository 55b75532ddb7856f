"""There is a worker for each device, and each has its own."""

from __future__ import annotations

import glob
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from server.__main__ import settings_from
from server.app import create_app
from server.settings import Settings, WorkerBounds
from server.workers.devices import count_cuda_devices, worker_devices


def never() -> int:
    raise AssertionError("nobody needs to know")


@pytest.mark.parametrize(
    ("workers", "named", "cuda", "expected"),
    [
        (0, ["auto"], 0, ("auto",)),
        (0, ["auto"], 3, ("cuda:0", "cuda:1", "cuda:2")),
        (1, ["auto"], 3, ("cuda:0",)),
        (5, ["auto"], 2, ("cuda:0", "cuda:1", "cuda:0", "cuda:1", "cuda:0")),
        (2, ["auto"], 0, ("auto", "auto")),
        (0, ["cpu", "auto"], 2, ("cpu", "cuda:0", "cuda:1")),
    ],
)
def test_auto_stands_for_every_device_that_there_is(
    workers: int, named: Sequence[str], cuda: int, expected: tuple[str, ...]
) -> None:
    assert worker_devices(workers, named, lambda: cuda) == expected


def test_devices_that_are_named_are_taken_in_turn_and_nothing_is_counted() -> None:
    assert worker_devices(3, ["cpu", "cuda:1"], never) == ("cpu", "cuda:1", "cpu")
    assert worker_devices(0, ["cuda:1", "cuda:3"], never) == ("cuda:1", "cuda:3")


def test_a_machine_without_a_gpu_starts_no_process_to_find_that_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glob, "glob", lambda _: [])
    monkeypatch.setattr(os.path, "exists", lambda _: False)
    monkeypatch.setattr(subprocess, "run", never)
    assert count_cuda_devices() == 0


@pytest.mark.parametrize(
    ("run", "count"),
    [
        (lambda: subprocess.CompletedProcess([], 0, "4\n", ""), 4),
        (lambda: subprocess.CompletedProcess([], 0, "a warning\n", ""), 0),
    ],
)
def test_devices_are_counted_with_the_workers_variables(
    run: Callable[[], object], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def ran(_: object, env: object, **__: object) -> object:
        asked.append(env)
        return run()

    monkeypatch.setattr(glob, "glob", lambda _: ["/dev/nvidia0"])
    monkeypatch.setattr(subprocess, "run", ran)
    assert count_cuda_devices({"CUDA_VISIBLE_DEVICES": "1"}) == count
    assert asked == [{"CUDA_VISIBLE_DEVICES": "1"}]


def test_workers_auto_is_the_default_and_the_server_starts_as_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (
        settings_from(["--workers=auto"], {}).workers == settings_from([], {}).workers == WorkerBounds(0, 0)
    )
    monkeypatch.setattr("server.app.count_cuda_devices", lambda _: 2)
    app = create_app(Settings(home=tmp_path))
    assert (app._settings.workers, app._settings.device) == (WorkerBounds(2, 2), "cuda:0,cuda:1")
