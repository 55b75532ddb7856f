"""Models come and go on real workers while these are killed, files damaged, functions deployed and deleted.

Nothing is lost: each row is answered rightly. And the map is true: what the server believes of each worker is
what the worker says.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ml_udf.errors import MlUdfError
from tests.inference_server import ANEW, InferenceServer, inference_server
from tests.models import hashing_model, label_of, text_model
from tests.waiting import wait_until

PATIENCE_S = 300.0
MODELS = 5
WEIGHT_BYTES = 3_000_000
DEVICE = "sim:7MB,0.075GB/s"  # 40 ms for a model


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InferenceServer]:
    """Two workers with room for two of five models each, which the functions f0 to f4 ask one by one."""
    folder = tmp_path_factory.mktemp("truth")
    flags = ["--workers=2", "--worker-start-s=60", f"--device={DEVICE}"]
    with inference_server(folder / "home", flags=[ANEW, *flags]) as running:
        for number in range(MODELS):
            made = hashing_model(folder / "made", f"m{number}", weight_bytes=WEIGHT_BYTES, delay_ms=5.0)
            running.deploy(made, f"f{number}")
        yield running


class Asking:
    """Callers that ask one function after the other for one text each, until they are told to end."""

    def __init__(self, server: InferenceServer, functions: list[str], callers: int = 4) -> None:
        self._server = server
        self._functions = functions
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(caller,)) for caller in range(callers)]
        self.answered = [0] * callers
        self.wrong: list[str] = []

    def __enter__(self) -> Asking:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)
        assert not any(thread.is_alive() for thread in self._threads)

    def wait_until_each_has_an_answer(self) -> None:
        """No row that waits now does so when this returns."""
        before = list(self.answered)
        wait_until(
            lambda: all(now > then for now, then in zip(self.answered, before, strict=True)), PATIENCE_S
        )

    def _ask(self, caller: int) -> None:
        chance = random.Random(caller)
        for number in itertools.count():
            if self._over.is_set():
                return
            text = f"{caller} {number}"
            said = ask(self._server, chance.choice(self._functions), text)
            self.answered[caller] += 1
            if said != label_of(text):
                self.wrong.append(f"{text}: {said}")


def ask(server: InferenceServer, function: str, text: str) -> str:
    """The label of a text, or the error."""
    body = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": [text]}]}
    request = urllib.request.Request(
        f"{server.url}/v2/models/{function}/infer",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
            return str(next(o for o in json.load(reply)["outputs"] if o["name"] == "label")["data"][0])
    except urllib.error.HTTPError as error:
        return f"{error.code} {json.load(error)['error']}"


def places(server: InferenceServer) -> dict[str, Any]:
    with server.client() as client:
        return client.get("/v1/residency")


def moving(server: InferenceServer, what: str, killed: Collection[str] = ()) -> tuple[str, str]:
    """A worker whose link loads, or evicts, right now, and which models but those; "" = none."""
    for worker in places(server)["workers"]:
        models = str((worker["moving"] or {}).get(what) or "")
        if models and models not in killed:
            return str(worker["worker"]), models
    return "", ""


def kill(server: InferenceServer, worker: str) -> None:
    with server.client() as client:
        (pid,) = [one["pid"] for one in client.get("/v1/workers")["workers"] if one["name"] == worker]
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def differences(server: InferenceServer) -> list[str]:
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=PATIENCE_S) as reply:
        lines = reply.read().decode().splitlines()
    return [line for line in lines if line.startswith("ml_udf_residency_differences_total")]


def see_true_map(server: InferenceServer) -> None:
    """Both workers are up and idle, and have said since that they hold what is believed."""
    quiet_at = datetime.now(UTC)

    def is_checked() -> bool:
        workers = places(server)["workers"]
        return len(workers) == 2 and all(
            worker["moving"] is None
            and worker["checked_at"] is not None
            and datetime.fromisoformat(worker["checked_at"]) > quiet_at
            for worker in workers
        )

    wait_until(is_checked, PATIENCE_S)
    assert differences(server) == []
    for worker in places(server)["workers"]:
        assert worker["used_bytes"] <= worker["capacity_bytes"]


def see_all_answer(server: InferenceServer) -> None:
    for number in range(MODELS):
        assert ask(server, f"f{number}", f"after {number}") == label_of(f"after {number}")


@pytest.mark.parametrize("what", ["loading", "evicting"])
def test_workers_killed_in_the_middle_of_loads_and_evictions_cost_no_row(
    server: InferenceServer, what: str
) -> None:
    # Each time another model's: one whose loads workers die of again and again is given up for that.
    killed: set[str] = set()
    with Asking(server, [f"f{number}" for number in range(MODELS)]) as asking:
        ends_s = time.monotonic() + PATIENCE_S
        while len(killed) < 3 and time.monotonic() < ends_s:
            worker, models = moving(server, what, killed)
            if worker:
                kill(server, worker)
                killed.add(models)
                # A row under which two workers die is given up: no row waits at two kills.
                asking.wait_until_each_has_an_answer()
    assert len(killed) == 3
    assert asking.wrong == []
    see_all_answer(server)
    see_true_map(server)


def test_functions_deployed_shared_and_deleted_while_models_swap_lose_no_row(server: InferenceServer) -> None:
    def deploy(turn: int) -> None:
        with server.client() as client:
            # Two functions that share a model; each deployment replaces the one before.
            client.put(
                "/v1/functions/left", {"models": ["m0", f"m{1 + turn % 2}"], "combine": "majority_vote"}
            )
            client.put("/v1/functions/right", {"models": ["m0", "m3"], "combine": "majority_vote"})

    deploy(0)
    functions = [*(f"f{number}" for number in range(MODELS)), "left", "right"]
    with Asking(server, functions) as asking, ThreadPoolExecutor(2) as pool:
        for each in [pool.submit(deploy, turn) for turn in range(6)]:
            each.result(PATIENCE_S)
    assert asking.wrong == []
    with server.client() as client:
        for name in ("left", "right"):
            client.delete(f"/v1/functions/{name}")
    see_all_answer(server)
    see_true_map(server)


def refused(act: Callable[[], object]) -> str:
    with pytest.raises(MlUdfError) as caught:
        act()
    return str(caught.value)


def test_a_damaged_file_and_a_model_that_is_too_large_harm_no_other(
    server: InferenceServer, tmp_path: Path
) -> None:
    damaged = text_model(tmp_path, "damaged", seed=1)
    large = hashing_model(tmp_path, "large", weight_bytes=8_000_000)
    functions = [f"f{number}" for number in range(MODELS)]
    with server.client() as client, Asking(server, functions, callers=2) as asking:
        client.post("/register", {"directory": str(large)})
        kept = client.post("/register", {"directory": str(damaged)})["directory"]
        weights = Path(kept) / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-64] + b"\xff" * 64)
        client.post("/v2/repository/models/damaged/unload", {})  # it may have been loaded before
        put = client.put
        of_damaged = refused(lambda: put("/v1/functions/broken", {"models": ["damaged"]}))
        of_large = refused(lambda: put("/v1/functions/huge", {"models": ["large"]}))
    assert "the file is damaged" in of_damaged
    assert "more than the 7000000 that this worker may keep resident" in of_large
    assert asking.wrong == []
    events = places(server)["residency_events"]
    failed = {event["model"] for event in events if event["outcome"] in ("failed", "refused")}
    assert failed & {"damaged/1", "large/1"}
    see_all_answer(server)
    see_true_map(server)


def test_thirty_deployments_and_unloads_at_once(server: InferenceServer) -> None:
    def act(turn: int) -> str:
        with server.client() as client:
            try:
                if turn % 3 == 2:
                    client.post(f"/v2/repository/models/m{turn % MODELS}/unload", {})
                else:
                    client.post(f"/v2/repository/models/f{turn % MODELS}/load", {})
            except MlUdfError as error:
                return error.code
        return "done"

    with ThreadPoolExecutor(10) as pool:
        said = set(pool.map(act, range(30)))
    assert said == {"done"}
    with server.client() as client:
        for number in range(MODELS):
            client.post(f"/v2/repository/models/f{number}/load", {})
    see_all_answer(server)
    see_true_map(server)
