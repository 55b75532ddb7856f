"""Workers that stand still in the middle of a batch, a load, a warm-up: for five seconds, and for ever.

No idle worker is left idle while rows wait, every row gets its answer or its error, and what the server
believes to be loaded afterwards is.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from ml_udf.client import Client
from tests.inference_server import InferenceServer, inference_server
from tests.models import CLASSES, hashing_model, label_of, write_manifest

PATIENCE_S = 90.0

THEIR_CODE = """
import os, time
import torch


class Net(torch.nn.Module):
    '''Takes a while to load and to warm up, and says in files when it is at it. Hangs on bright pixels.'''

    def __init__(self, classes, marks, load_s, warm_s):
        super().__init__()
        self.head = torch.nn.Linear(3, classes)
        self.marks, self.warm_s = marks, warm_s
        self.mark("load")
        time.sleep(load_s)

    def mark(self, what):
        with open(os.path.join(self.marks, f"{what}-{os.getpid()}"), "w"):
            pass

    def forward(self, x):
        if x.amax() == x.amin() == 0:  # the warm-up
            self.mark("warm-up")
            time.sleep(self.warm_s)
        while x.amax() > 100:
            time.sleep(1)
        return self.head(x.mean(dim=(2, 3)))
"""


@pytest.fixture
def their_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    (tmp_path / "their_net.py").write_text(THEIR_CODE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    marks = tmp_path / "marks"
    marks.mkdir()

    def make(load_s: float = 0.0, warm_s: float = 0.0) -> Path:
        folder = write_manifest(
            tmp_path / "made",
            "theirs",
            task="image-classification",
            architecture="their_net:Net",
            architecture_options={"marks": str(marks), "load_s": load_s, "warm_s": warm_s},
            input={"form": "tensor", "height": 8, "width": 8, "mean": [0.0] * 3, "std": [1.0] * 3},
            weights="model.safetensors",
        )
        save_file(torch.nn.Linear(3, len(CLASSES)).state_dict(prefix="head."), folder / "model.safetensors")
        return folder

    return make


def marked(tmp_path: Path, what: str) -> list[int]:
    """Processes that came to that point, the first one first."""
    files = sorted((tmp_path / "marks").glob(f"{what}-*"), key=lambda file: file.stat().st_mtime)
    return [int(file.name.rpartition("-")[2]) for file in files]


def until(condition: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> Any:
    deadline_s = time.monotonic() + patience_s
    while not (found := condition()):
        assert time.monotonic() < deadline_s, what
        time.sleep(0.05)
    return found


def ask_pixels(server: InferenceServer, value: float = 1.0, deadline_ms: float | None = None) -> str:
    """The label of one picture of 8 × 8 pixels, or the code of its error."""
    pixels = [value + index / 1000 for index in range(3 * 8 * 8)]
    body: dict[str, Any] = {
        "inputs": [{"name": "pixels", "datatype": "FP32", "shape": [1, 3, 8, 8], "data": pixels}],
    }
    if deadline_ms is not None:
        body["parameters"] = {"ml_udf_deadline_ms": deadline_ms}
    request = urllib.request.Request(
        f"{server.url}/v2/models/theirs/infer",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
            label = next(o for o in json.load(reply)["outputs"] if o["name"] == "label")
            return str(label["data"][0])
    except urllib.error.HTTPError as error:
        return str(json.load(error)["error"].partition(":")[0])


def workers(server: InferenceServer) -> list[dict[str, Any]]:
    client = Client(server.url)
    try:
        return list(client.get("/v1/workers")["workers"])
    finally:
        client.close()


class Callers:
    """Threads that ask without a pause, and note when each answer came and what was wrong."""

    def __init__(self, server: InferenceServer, function: str, count: int = 6) -> None:
        self._server = server
        self._function = function
        self._count = count
        self._over = threading.Event()
        self.answered_s: list[float] = []
        self.wrong: list[str] = []
        self._pool = ThreadPoolExecutor(count)

    def __enter__(self) -> Callers:
        self._running = [self._pool.submit(self._ask, number) for number in range(self._count)]
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for each in self._running:
            each.result(PATIENCE_S)
        self._pool.shutdown()

    def _ask(self, number: int) -> None:
        client = Client(self._server.url)
        turn = 0
        with contextlib.closing(client):
            while not self._over.is_set():
                texts = [f"{number}-{turn}-{row}" for row in range(8)]
                turn += 1
                try:
                    found = client.predict(self._function, texts)
                except Exception as error:  # told below
                    self.wrong.append(repr(error))
                    continue
                self.answered_s.append(time.monotonic())
                if list(found.values) != [label_of(text) for text in texts]:
                    self.wrong.append(f"{texts} → {found.values}")

    def longest_pause_s(self, since_s: float, until_s: float) -> float:
        """The longest time in which nothing was answered."""
        times = [since_s, *(at for at in sorted(self.answered_s) if since_s < at < until_s), until_s]
        return max(later - earlier for earlier, later in itertools.pairwise(times))


@contextlib.contextmanager
def stopped(pid: int, for_s: float) -> Iterator[None]:
    """That process stands still for so long, 0 = for ever, while the block runs."""
    os.kill(pid, signal.SIGSTOP)
    began_s = time.monotonic()
    try:
        yield
        if for_s:
            time.sleep(max(0.0, began_s + for_s - time.monotonic()))
    finally:
        with contextlib.suppress(ProcessLookupError):
            if for_s:
                os.kill(pid, signal.SIGCONT)


def see_all_well(server: InferenceServer, models: Sequence[str], callers: Callers) -> None:
    """Both workers are up, hold what the server says that they hold, and answer for it."""
    until(
        lambda: all(
            worker["state"] == "up" and set(models) <= set(worker["resident"]) for worker in workers(server)
        ),
        "both workers should be up with all models",
    )
    reruns = server.log.count("unknown_function")
    with ThreadPoolExecutor(8) as pool:
        texts = [f"after {number}" for number in range(40)]
        clients = [Client(server.url) for _ in texts]
        asked = [
            pool.submit(client.predict, "udf_text", [text])
            for client, text in zip(clients, texts, strict=True)
        ]
        for text, each in zip(texts, asked, strict=True):
            assert list(each.result(PATIENCE_S).values) == [label_of(text)]
        for client in clients:
            client.close()
    assert server.log.count("unknown_function") == reruns
    assert callers.wrong == []


def two_workers(home: Path, for_s: float) -> contextlib.AbstractContextManager[InferenceServer]:
    # To stand still for ever is to be seen soon; five seconds are to be borne with what is shipped.
    flags = ["--workers=2", "--allow-import"] + ([] if for_s else ["--worker-hang-s=4"])
    return inference_server(home, flags=flags)


FOR_S = pytest.mark.parametrize("for_s", [5.0, 0.0], ids=["for 5 s", "for ever"])
WHICH = pytest.mark.parametrize("which", [0, 1], ids=["first", "second"])


@FOR_S
@WHICH
def test_a_worker_stopped_in_the_middle_of_a_batch(tmp_path: Path, which: int, for_s: float) -> None:
    with two_workers(tmp_path / "home", for_s) as server:
        server.deploy(hashing_model(tmp_path / "made", "text_hash", delay_ms=20), "udf_text")
        until(lambda: all(worker["resident"] for worker in workers(server)), "both should hold it")
        victim = workers(server)[which]
        with Callers(server, "udf_text") as callers:
            until(lambda: len(callers.answered_s) > 50, "the callers should be under way")
            stopped_s = time.monotonic()
            with stopped(victim["pid"], for_s):
                if not for_s:
                    until(lambda: workers(server)[which]["pid"] != victim["pid"], "it should be replaced")
                else:
                    time.sleep(4.0)
                over_s = time.monotonic()
        see_all_well(server, ["text_hash/1"], callers)
        # Callers whose rows are on the stopped worker wait; the others are answered all the while.
        assert callers.longest_pause_s(stopped_s, over_s) < 2.0
        assert (workers(server)[which]["restarts"] == 0) == bool(for_s)


@FOR_S
@WHICH
@pytest.mark.parametrize("at", ["load", "warm-up"])
def test_a_worker_stopped_in_the_middle_of_a_load_or_a_warm_up(
    tmp_path: Path, their_model: Callable[..., Path], at: str, which: int, for_s: float
) -> None:
    with two_workers(tmp_path / "home", for_s) as server:
        server.deploy(hashing_model(tmp_path / "made", "text_hash", delay_ms=20), "udf_text")
        until(lambda: all(worker["resident"] for worker in workers(server)), "both should hold it")
        with Callers(server, "udf_text", 4) as callers, ThreadPoolExecutor(4) as pool:
            server.deploy(their_model(load_s=1.0, warm_s=1.0))  # spread over the workers, one after the other
            pid = until(lambda: marked(tmp_path, at)[which : which + 1], "it should be loaded on both")[0]
            stopped_s = time.monotonic()
            with stopped(pid, for_s):
                asked = [pool.submit(ask_pixels, server) for _ in range(4)]
                if not for_s:
                    until(
                        lambda: pid not in [worker["pid"] for worker in workers(server)],
                        "it should be replaced",
                    )
                else:
                    time.sleep(4.0)
                over_s = time.monotonic()
            assert {each.result(PATIENCE_S) for each in asked} <= set(CLASSES)
            assert callers.longest_pause_s(stopped_s, over_s) < 2.0
        see_all_well(server, ["text_hash/1", "theirs/1"], callers)


def test_a_pass_that_hangs_is_seen_though_every_caller_sets_a_deadline(
    tmp_path: Path, their_model: Callable[..., Path]
) -> None:
    with inference_server(tmp_path / "home", flags=["--allow-import", "--worker-hang-s=3"]) as server:
        server.deploy(their_model())
        until(lambda: "theirs/1" in workers(server)[0]["resident"], "it should be loaded")
        assert {ask_pixels(server, deadline_ms=5000) for _ in range(10)} <= set(CLASSES)
        (pid,) = server.worker_pids()
        assert ask_pixels(server, 1000.0, deadline_ms=300) == "deadline_exceeded"

        def answered_again() -> bool:
            # Their rows wait behind the hung one, and are taken back at their deadlines.
            return ask_pixels(server, deadline_ms=300) in CLASSES

        until(answered_again, "the worker should be replaced", 40.0)
        assert server.worker_pids() != [pid]


def test_a_row_that_hangs_its_worker_twice_gets_an_error_and_rows_beside_it_their_answers(
    tmp_path: Path, their_model: Callable[..., Path]
) -> None:
    with inference_server(tmp_path / "home", flags=["--allow-import", "--worker-hang-s=3"]) as server:
        server.deploy(their_model())
        until(lambda: "theirs/1" in workers(server)[0]["resident"], "it should be loaded")
        assert {ask_pixels(server) for _ in range(10)} <= set(CLASSES)
        with ThreadPoolExecutor(8) as pool:
            bad = pool.submit(ask_pixels, server, 1000.0)
            good = [pool.submit(ask_pixels, server) for _ in range(7)]
            assert {each.result(PATIENCE_S) for each in good} <= set(CLASSES)
            assert bad.result(PATIENCE_S) == "worker_lost"
        until(lambda: workers(server)[0]["restarts"] == 2, "two workers died of it")
