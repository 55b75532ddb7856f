"""A forward pass that never ends: it is not answered, nothing else suffers, and it outlives nobody."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from gpu_worker.engine import Engine
from gpu_worker.wire.protocol import Answer, Cancel, Failed, Infer, Ping, Pong
from tests.answers import labels_of
from tests.models import label_of
from tests.unit.gpu_worker.pictures import noise
from tests.unit.gpu_worker.worker_process import REPOSITORY, WorkerProcess
from tests.waiting import wait_until

Workers = Callable[..., WorkerProcess]
PATIENCE_S = 90.0

THEIR_CODE = """
import time
import torch


class Pass(torch.nn.Module):
    '''Takes black images as they come (the warm-up); others take `row_s` each, and a file says so.'''

    def __init__(self, classes, row_s, begun):
        super().__init__()
        self.head = torch.nn.Linear(3, classes)
        self.row_s, self.begun = row_s, begun

    def forward(self, x):
        if x.amax() > x.amin():
            open(self.begun, "w").close()
            time.sleep(self.row_s * len(x))
        return self.head(x.mean(dim=(2, 3)))
"""


@pytest.fixture
def slow_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], Path]:
    """A model of images that takes so many seconds a row, and looks at no cancel meanwhile."""
    (tmp_path / "their_pass.py").write_text(THEIR_CODE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(row_s: float) -> Path:
        folder = tmp_path / f"pass-{row_s}"
        folder.mkdir()
        save_file(torch.nn.Linear(3, 2).state_dict(prefix="head."), folder / "model.safetensors")
        manifest = {
            "format": 1,
            "name": "pass",
            "version": 1,
            "task": "image-classification",
            "runtime": "torch",
            "architecture": "their_pass:Pass",
            "architecture_options": {"row_s": row_s, "begun": str(tmp_path / "begun")},
            "classes": ["a", "b"],
            "weights": "model.safetensors",
            "input": {"form": "image", "height": 8, "width": 8},
        }
        (folder / "model.json").write_text(json.dumps(manifest))
        return folder

    return make


def ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def test_a_cancelled_batch_is_answered_when_its_pass_is_over_and_not_before(
    workers: Workers, slow_images: Callable[[float], Path], tmp_path: Path
) -> None:
    worker = workers("--allow-import")
    worker.load(slow=slow_images(1.5))
    worker.send(Infer(1, ["slow"], "image", [noise(1)]))
    wait_until((tmp_path / "begun").exists)
    began_s = time.monotonic()
    reply = worker.ask_beside(Cancel(2, 1))
    assert isinstance(reply, Failed)
    assert (reply.id, reply.code) == (1, "cancelled")
    assert time.monotonic() - began_s > 0.9, "its pass ran on"
    assert reply.work_s == pytest.approx(1.5, abs=0.3)
    assert reply.stay_s >= reply.work_s


def test_a_pass_that_hangs_is_never_answered_though_it_is_cancelled_and_all_else_is(
    workers: Workers, slow_images: Callable[[float], Path], hashing: Path, tmp_path: Path
) -> None:
    worker = workers("--allow-import", "--threads", "2")
    worker.load(hung=slow_images(10_000.0), h=hashing)
    worker.send(Infer(1, ["hung"], "image", [noise(1)]))
    wait_until((tmp_path / "begun").exists)
    worker.send(Cancel(2, 1))
    assert isinstance(worker.ask(Ping(3)), Pong)
    answer = worker.ask(Infer(4, ["h"], "text", [b"a"]))
    assert isinstance(answer, Answer)
    assert labels_of(answer.members[0]) == [label_of("a")]
    worker.socket.settimeout(1.0)
    with pytest.raises(TimeoutError):
        worker.receive()


def test_a_worker_whose_pass_hangs_ends_soon_after_its_socket_and_says_where_it_hung(
    workers: Workers, slow_images: Callable[[float], Path], tmp_path: Path
) -> None:
    worker = workers("--allow-import")
    worker.load(hung=slow_images(10_000.0))
    worker.send(Infer(1, ["hung"], "image", [noise(1)]))
    wait_until((tmp_path / "begun").exists)
    worker.socket.close()
    assert worker.process.wait(PATIENCE_S) != 0
    assert "their_pass.py" in worker.errors()


@pytest.mark.parametrize("stopped", [False, True], ids=["a pass hangs", "it is stopped"])
def test_a_killed_parent_leaves_no_worker_whatever_that_does(
    slow_images: Callable[[float], Path], tmp_path: Path, stopped: bool
) -> None:
    hung = slow_images(10_000.0)
    program = f"""
import time
from gpu_worker.wire.protocol import Infer
from tests.unit.gpu_worker.pictures import noise
from tests.unit.gpu_worker.worker_process import WorkerProcess
from pathlib import Path
worker = WorkerProcess("--allow-import")
worker.load(hung=Path({str(hung)!r}))
worker.send(Infer(1, ["hung"], "image", [noise(1)]))
print(worker.process.pid, flush=True)
time.sleep(600)
"""
    environment = {**os.environ, "PYTHONPATH": f"{os.environ['PYTHONPATH']}{os.pathsep}{REPOSITORY}"}
    parent = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=REPOSITORY, env=environment
    )
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    wait_until((tmp_path / "begun").exists)
    if stopped:
        os.kill(worker, signal.SIGSTOP)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_until(lambda: ended(worker))


def test_batches_that_are_worked_on_together_each_report_their_own_time_in_whatever_order_they_end(
    engines: Callable[..., Engine], slow_images: Callable[[float], Path]
) -> None:
    engine = engines(threads=2, allow_import=True)
    engine.load("slow", str(slow_images(0.02)))
    engine.infer(["slow"], "image", [noise(1)] * 4)
    began_s = time.monotonic()
    over = threading.Semaphore(0)
    batches = [
        engine.begin(["slow"], "image", [noise(seed)] * rows, on_over=lambda _: over.release())
        for seed, rows in ((2, 40), (3, 8), (4, 24))
    ]
    batches[2].cancel()
    answers = [batch.answer.result(PATIENCE_S) for batch in batches[:2]]
    for _ in batches:
        assert over.acquire(timeout=PATIENCE_S)
    took_s = time.monotonic() - began_s
    works_s = [batch.timer.seconds for batch in batches]
    assert sum(works_s) == pytest.approx(took_s, rel=0.15)
    assert answers[0].work_s > 3 * answers[1].work_s, "40 rows of one, 8 of the other"
    assert answers[1].stay_s > answers[1].work_s, "it also waited"
    assert works_s[2] < 0.2, "it was taken back at once"
