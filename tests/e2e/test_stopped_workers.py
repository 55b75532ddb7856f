"""Workers that stand still in the middle of a batch, a load, a warm-up: for five seconds, and for ever.

No idle worker is left idle while rows wait, every row gets its answer or its error, and what the server
believes to be loaded afterwards is.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import math
import os
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from ml_udf.client import Client
from tests.inference_server import ANEW, InferenceServer, inference_server
from tests.models import CLASSES, hashing_model, label_of, write_manifest
from tests.stress.wire import Connection, NoAnswer, infer_request
from tests.waiting import wait_until

PATIENCE_S = 300.0
EVERY_S = 0.05  # a row comes
STOPPED_S = 5.0

THEIR_CODE = """
import os, time
import torch


class Net(torch.nn.Module):
    '''Says in files when it is loaded and warmed up, and waits there if it is to. Hangs on bright pixels.'''

    def __init__(self, classes, marks, hold_at, hold_which):
        super().__init__()
        self.head = torch.nn.Linear(3, classes)
        self.marks, self.hold_at, self.hold_which = marks, hold_at, hold_which
        self.mark("load")

    def mark(self, what):
        with open(os.path.join(self.marks, f"{what}-{os.getpid()}"), "w"):
            pass
        came = sum(name.startswith(what) for name in os.listdir(self.marks))
        while what == self.hold_at and came == self.hold_which + 1 and "go" not in os.listdir(self.marks):
            time.sleep(0.01)

    def forward(self, x):
        if x.amax() == x.amin() == 0:
            self.mark("warm-up")
        while x.amax() > 100:
            time.sleep(1)
        return self.head(x.mean(dim=(2, 3)))
"""


class TheirModel:
    """A model of `THEIR_CODE`. The process that is the `which`-th to come to `hold_at` waits for `go`."""

    def __init__(self, folder: Path, name: str, hold_at: str = "", which: int = 0) -> None:
        self.name = name
        self.key = f"{name}/1"
        self._marks = folder / "marks" / name
        self._marks.mkdir(parents=True)
        options = {"marks": str(self._marks), "hold_at": hold_at, "hold_which": which}
        self.folder = write_manifest(
            folder / "made",
            name,
            task="image-classification",
            architecture="their_net:Net",
            architecture_options=options,
            input={"form": "tensor", "height": 8, "width": 8, "mean": [0.0] * 3, "std": [1.0] * 3},
            weights="model.safetensors",
        )
        weights = torch.nn.Linear(3, len(CLASSES)).state_dict(prefix="head.")
        save_file(weights, self.folder / "model.safetensors")

    def marked(self, what: str) -> list[int]:
        """Processes that came to that point, the first one first."""
        files = sorted(self._marks.glob(f"{what}-*"), key=lambda file: file.stat().st_mtime_ns)
        return [int(file.name.rpartition("-")[2]) for file in files]

    def go(self) -> None:
        (self._marks / "go").touch()


@pytest.fixture(scope="module")
def their_code(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder that workers import from."""
    folder = tmp_path_factory.mktemp("theirs")
    (folder / "their_net.py").write_text(THEIR_CODE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))
        yield folder


@pytest.fixture(scope="module", params=[STOPPED_S, 0.0], ids=["for 5 s", "for ever"])
def for_s(request: pytest.FixtureRequest) -> float:
    """For how long a worker stands still; 0 = for ever."""
    return float(request.param)


@pytest.fixture(scope="module")
def two_workers(
    tmp_path_factory: pytest.TempPathFactory, their_code: Path, for_s: float
) -> Iterator[InferenceServer]:
    """A server whose two workers hold `udf_text`."""
    folder = tmp_path_factory.mktemp("two-workers")
    # To stand still for ever is to be seen soon; five seconds are to be borne with what is shipped.
    flags = ["--workers=2", "--allow-import"] + ([] if for_s else ["--worker-hang-s=3"])
    with inference_server(folder / "home", flags=[ANEW, *flags]) as server:
        server.deploy(hashing_model(folder / "made", "text_hash", delay_ms=100), "udf_text")
        wait_until(lambda: both_hold(server, "text_hash/1"), PATIENCE_S)
        yield server


@pytest.fixture(scope="module")
def one_worker(tmp_path_factory: pytest.TempPathFactory, their_code: Path) -> Iterator[InferenceServer]:
    home = tmp_path_factory.mktemp("one-worker")
    with inference_server(home, flags=[ANEW, "--allow-import", "--worker-hang-s=3"]) as server:
        yield server


def workers(server: InferenceServer) -> list[dict[str, Any]]:
    client = Client(server.url)
    try:
        return list(client.get("/v1/workers")["workers"])
    finally:
        client.close()


def both_hold(server: InferenceServer, *models: str) -> bool:
    return all(
        worker["state"] == "up" and set(models) <= set(worker["resident"]) for worker in workers(server)
    )


def unload(server: InferenceServer, model: str) -> None:
    """A worker that starts from now on does not load it."""
    client = Client(server.url)
    try:
        client.post(f"/v2/repository/models/{model}/unload", {})
    finally:
        client.close()


def ask_pixels(
    server: InferenceServer, model: str, value: float = 1.0, deadline_ms: float | None = None
) -> str:
    """The label of one picture of 8 × 8 pixels, or the code of its error."""
    pixels = [value + index / 1000 for index in range(3 * 8 * 8)]
    body: dict[str, Any] = {
        "inputs": [{"name": "pixels", "datatype": "FP32", "shape": [1, 3, 8, 8], "data": pixels}],
    }
    if deadline_ms is not None:
        body["parameters"] = {"ml_udf_deadline_ms": deadline_ms}
    request = urllib.request.Request(
        f"{server.url}/v2/models/{model}/infer",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
            label = next(o for o in json.load(reply)["outputs"] if o["name"] == "label")
            return str(label["data"][0])
    except urllib.error.HTTPError as error:
        return str(json.load(error)["error"].partition(":")[0])


class Arrivals:
    """A row for `udf_text` every `EVERY_S`, whatever became of those before it.

    Callers that wait for their answers would all be waiting for the stopped worker after a while; nobody
    would ask, and nothing could be seen of the other one.
    """

    def __init__(self, server: InferenceServer) -> None:
        self._port = server.port
        self._over = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._arrive()))
        self.answered: list[tuple[float, float]] = []  # asked at, answered at
        self.wrong: list[str] = []

    def __enter__(self) -> Arrivals:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """The last rows are waited for."""
        self._over.set()
        self._thread.join(2 * PATIENCE_S)
        assert not self._thread.is_alive()

    async def _arrive(self) -> None:
        asked = []
        for number in itertools.count():
            if self._over.is_set():
                break
            asked.append(asyncio.create_task(self._ask(f"row {number}")))
            await asyncio.sleep(EVERY_S)
        await asyncio.gather(*asked)

    async def _ask(self, text: str) -> None:
        asked_s = time.monotonic()
        try:
            connection = await Connection.to(self._port)
            await connection.send(infer_request("udf_text", [text]))
            reply = await connection.reply(PATIENCE_S)
            connection.close()
        except (NoAnswer, OSError) as error:
            self.wrong.append(f"{text}: {error!r}")
            return
        self.answered.append((asked_s, time.monotonic()))
        if reply.status != 200 or reply.labels() != [label_of(text)]:
            self.wrong.append(f"{text}: {reply}")

    def longest_pause_s(self, since_s: float, until_s: float) -> float:
        """The longest time in which nothing was answered."""
        answered_s = sorted(at_s for _, at_s in self.answered)
        times = [since_s, *(at_s for at_s in answered_s if since_s < at_s < until_s), until_s]
        return max(later - earlier for earlier, later in itertools.pairwise(times))

    def waited_s(self, since_s: float, until_s: float) -> list[float]:
        """How long the rows of that time waited for their answers."""
        return [ended_s - asked_s for asked_s, ended_s in self.answered if since_s < asked_s < until_s]


@dataclass(slots=True)
class Still:
    """A worker stands still: since when, and until when that could be looked at."""

    began_s: float
    over_s: float = math.inf


@contextlib.contextmanager
def stopped(server: InferenceServer, pid: int, for_s: float) -> Iterator[Still]:
    """That worker stands still for so long; 0 = until the server has replaced it."""
    os.kill(pid, signal.SIGSTOP)
    still = Still(time.monotonic())
    try:
        yield still
        if for_s:
            time.sleep(max(0.0, still.began_s + for_s - time.monotonic()))
        else:
            wait_until(lambda: pid not in [worker["pid"] for worker in workers(server)], PATIENCE_S)
        still.over_s = time.monotonic()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def see_no_idle_worker(arrivals: Arrivals, still: Still) -> None:
    """The other one answered all that came, but the batches that the stopped one was sent in good faith."""
    assert arrivals.wrong == []
    assert arrivals.longest_pause_s(still.began_s, still.over_s) < 2.0
    assert max(arrivals.waited_s(still.began_s + 2.0, still.over_s)) < 2.0
    assert sum(waited_s > 2.0 for waited_s in arrivals.waited_s(0.0, math.inf)) < 2.0 / EVERY_S


def see_all_well(server: InferenceServer, *models: str) -> None:
    """Both workers are up, hold what the server says that they hold, and answer for it."""
    wait_until(lambda: both_hold(server, *models), PATIENCE_S)
    reruns = server.log.count("unknown_function")
    texts = [f"after {number}" for number in range(40)]
    clients = [Client(server.url) for _ in texts]
    with ThreadPoolExecutor(8) as pool:
        asked = [
            pool.submit(client.predict, "udf_text", [text])
            for client, text in zip(clients, texts, strict=True)
        ]
        for text, each in zip(texts, asked, strict=True):
            assert list(each.result(PATIENCE_S).values) == [label_of(text)]
    for client in clients:
        client.close()
    assert server.log.count("unknown_function") == reruns


WHICH = pytest.mark.parametrize("which", [0, 1], ids=["first", "second"])


@WHICH
def test_a_worker_stopped_in_the_middle_of_a_batch(
    two_workers: InferenceServer, which: int, for_s: float
) -> None:
    server = two_workers
    victim = workers(server)[which]
    with Arrivals(server) as arrivals:
        wait_until(lambda: len(arrivals.answered) > 20, PATIENCE_S)
        with stopped(server, victim["pid"], for_s) as still:
            pass
    see_no_idle_worker(arrivals, still)
    see_all_well(server, "text_hash/1")
    assert max(arrivals.waited_s(0.0, math.inf)) > 2.0, "some rows were on it"
    assert workers(server)[which]["restarts"] - victim["restarts"] == (0 if for_s else 1)


@WHICH
@pytest.mark.parametrize("at", ["load", "warm-up"])
def test_a_worker_stopped_in_the_middle_of_a_load_or_a_warm_up(
    two_workers: InferenceServer, their_code: Path, at: str, which: int, for_s: float
) -> None:
    server = two_workers
    model = TheirModel(their_code, f"held_{at.replace('-', '_')}_{which}_{for_s:.0f}", at, which)
    with Arrivals(server) as arrivals, ThreadPoolExecutor(4) as pool:
        server.deploy(model.folder)  # spread over the workers, one after the other
        wait_until(lambda: len(model.marked(at)) > which, PATIENCE_S)
        with stopped(server, model.marked(at)[which], for_s) as still:
            model.go()
            asked = [pool.submit(ask_pixels, server, model.name) for _ in range(4)]
        assert {each.result(PATIENCE_S) for each in asked} <= set(CLASSES)
    see_no_idle_worker(arrivals, still)
    see_all_well(server, "text_hash/1", model.key)
    unload(server, model.name)


def test_a_pass_that_hangs_is_seen_though_every_caller_sets_a_deadline(
    one_worker: InferenceServer, their_code: Path
) -> None:
    server, model = one_worker, TheirModel(their_code, "hangs")
    server.deploy(model.folder)
    wait_until(lambda: model.key in workers(server)[0]["resident"], PATIENCE_S)
    assert {ask_pixels(server, model.name, deadline_ms=5000) for _ in range(10)} <= set(CLASSES)
    (pid,) = server.worker_pids()
    assert ask_pixels(server, model.name, 1000.0, deadline_ms=300) == "deadline_exceeded"
    # Their rows wait behind the hung one, and are taken back at their deadlines.
    wait_until(lambda: ask_pixels(server, model.name, deadline_ms=300) in CLASSES, 40.0)
    assert server.worker_pids() != [pid]


def test_a_row_that_hangs_its_worker_twice_gets_an_error_and_rows_beside_it_their_answers(
    one_worker: InferenceServer, their_code: Path
) -> None:
    server, model = one_worker, TheirModel(their_code, "hangs_twice")
    server.deploy(model.folder)
    wait_until(lambda: model.key in workers(server)[0]["resident"], PATIENCE_S)
    restarts = workers(server)[0]["restarts"]
    assert {ask_pixels(server, model.name) for _ in range(10)} <= set(CLASSES)
    with ThreadPoolExecutor(8) as pool:
        bad = pool.submit(ask_pixels, server, model.name, 1000.0)
        good = [pool.submit(ask_pixels, server, model.name) for _ in range(7)]
        assert {each.result(PATIENCE_S) for each in good} <= set(CLASSES)
        assert bad.result(PATIENCE_S) == "worker_lost"
    wait_until(lambda: workers(server)[0]["restarts"] == restarts + 2, PATIENCE_S)  # two died of it


def test_a_worker_of_min_that_never_gets_ready_is_tried_again_and_costs_no_answer(tmp_path: Path):
    """Each process that takes its place is stopped as it starts; the other worker answers all rows."""
    model = hashing_model(tmp_path / "models", "text")
    flags = [ANEW, "--workers=2:3", "--worker-start-s=2"]
    with inference_server(tmp_path / "home", flags=flags) as server:
        server.deploy(model, "udf_text")
        _, victim = workers(server)
        healthy = workers(server)[0]["pid"]
        held: set[int] = set()
        is_over = threading.Event()

        def hold() -> None:
            while not is_over.wait(0.005):
                for pid in set(server.worker_pids()) - {healthy, victim["pid"]} - held:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGSTOP)
                    held.add(pid)

        holding = threading.Thread(target=hold)
        holding.start()
        try:
            os.kill(victim["pid"], signal.SIGKILL)
            longest_s = 0.0
            with server.client() as client:
                for row in itertools.count():
                    text, began_s = f"row {row}", time.monotonic()
                    assert client.predict("udf_text", [text]).values == [label_of(text)]
                    longest_s = max(longest_s, time.monotonic() - began_s)
                    if len(held) >= 2:
                        break
                    time.sleep(EVERY_S)
            lost = workers(server)[1]
            assert lost["state"] != "up"
            assert lost["restarts"] >= 1
            assert lost["last_error"] == "it did not answer within 2 s of its start"
            assert longest_s < 2, "no row waits for the worker that never comes"
        finally:
            is_over.set()
            holding.join()
            for pid in held:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
        wait_until(lambda: [worker["state"] for worker in workers(server)] == ["up", "up"], PATIENCE_S)
