"""Three members on two workers that hold two models each: real processes, one of which dies in the middle."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from ml_udf.client import Client
from tests.inference_server import ANEW, InferenceServer, inference_server
from tests.models import CLASSES, write_manifest
from tests.waiting import wait_until

PATIENCE_S = 300.0
ROWS = 40

THEIR_CODE = """
import os, time
import torch


class Voter(torch.nn.Module):
    '''Answers the class of the pixels' number, plus `off` if that is odd. Writes down every row that it runs.

    While there is a file `hold` it waits, once it has written.
    '''

    def __init__(self, classes, marks, off):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(1))
        self.classes, self.marks, self.off = classes, marks, int(off)

    def forward(self, x):
        numbers = x[:, 0, 0, 0].round().long()
        if int(numbers.max()) > 0:
            with open(os.path.join(self.marks, str(os.getpid())), "a") as file:
                file.writelines(f"{number}\\n" for number in numbers.tolist())
            while os.path.exists(os.path.join(self.marks, "hold")):
                time.sleep(0.01)
        answers = (numbers + self.off * (numbers % 2)) % self.classes
        return 10 * self.scale * torch.nn.functional.one_hot(answers, self.classes).float()
"""


class Voter:
    """A model of `THEIR_CODE`."""

    def __init__(self, folder: Path, name: str, off: int) -> None:
        self.name = name
        self.marks = folder / "marks" / name
        self.marks.mkdir(parents=True)
        self.folder = write_manifest(
            folder / "made",
            name,
            task="image-classification",
            architecture="voting_net:Voter",
            architecture_options={"marks": str(self.marks), "off": off},
            input={"form": "tensor", "height": 8, "width": 8, "mean": [0.0] * 3, "std": [1.0] * 3},
            weights="model.safetensors",
        )
        save_file({"scale": torch.ones(1)}, self.folder / "model.safetensors")

    def hold(self, holds: bool) -> None:
        if holds:
            (self.marks / "hold").touch()
        else:
            (self.marks / "hold").unlink()

    def ran(self) -> dict[int, list[int]]:
        """Process → the rows that it began, in order."""
        return {
            int(file.name): [int(line) for line in file.read_text().splitlines()]
            for file in self.marks.iterdir()
            if file.name != "hold"
        }

    def times(self) -> Counter[int]:
        """Row → how often it was begun, wherever."""
        return Counter(row for rows in self.ran().values() for row in rows)


@pytest.fixture
def voters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Voter]:
    (tmp_path / "voting_net.py").write_text(THEIR_CODE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return [Voter(tmp_path, name, off) for name, off in (("first", 0), ("second", 0), ("third", 1))]


@pytest.fixture
def server(tmp_path: Path, voters: list[Voter]) -> Iterator[InferenceServer]:
    flags = ["--workers=2", "--resident-models=2", "--allow-import"]
    with inference_server(tmp_path / "home", flags=[ANEW, *flags]) as running:
        for voter in voters:
            running.deploy(voter.folder)
        client = Client(running.url)
        try:
            names = [voter.name for voter in voters]
            client.put("/v1/functions/udf_vote", {"models": names, "slo_ms": 2000, "max_batch": 64})
        finally:
            client.close()
        yield running


def get(server: InferenceServer, path: str) -> Any:  # JSON, or text
    with urllib.request.urlopen(f"{server.url}{path}", timeout=PATIENCE_S) as reply:
        text = reply.read().decode()
    return json.loads(text) if text.startswith("{") else text


def metric(server: InferenceServer, name: str) -> float:
    lines = get(server, "/metrics").splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f'{name}{{function="udf_vote"'))


def ask(server: InferenceServer, numbers: list[int]) -> dict[str, list[Any]]:
    """The outputs for pictures of these numbers."""
    pixels = [float(number) for number in numbers for _ in range(3 * 8 * 8)]
    body = {
        "inputs": [{"name": "pixels", "datatype": "FP32", "shape": [len(numbers), 3, 8, 8], "data": pixels}],
        "outputs": [{"name": name} for name in ("label", "confidence", "answered_by", "error")],
    }
    request = urllib.request.Request(
        f"{server.url}/v2/models/udf_vote/infer",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
        return {output["name"]: output["data"] for output in json.load(reply)["outputs"]}


def expected(numbers: list[int]) -> list[str]:
    """What two of three say."""
    return [CLASSES[number % len(CLASSES)] for number in numbers]


def check(outputs: dict[str, list[Any]], numbers: list[int]) -> None:
    assert outputs["error"] == [""] * len(numbers)
    assert outputs["label"] == expected(numbers)
    assert outputs["confidence"] == pytest.approx([2 / 3 if number % 2 else 1.0 for number in numbers])
    assert {tuple(sorted(who.split(","))) for who in outputs["answered_by"]} == {("first", "second", "third")}


def test_rows_of_three_members_on_two_workers_are_answered_in_order_by_all_three(
    server: InferenceServer, voters: list[Voter]
) -> None:
    numbers = list(range(1, ROWS + 1))
    with ThreadPoolExecutor(8) as pool:
        for part, outputs in [(numbers, ask(server, numbers))] + [
            (each, pool.submit(ask, server, each).result(PATIENCE_S))
            for each in ([100 + start, 101 + start, 102 + start] for start in range(0, 60, 3))
        ]:
            check(outputs, part)
    held = [set(worker["resident"]) for worker in get(server, "/v1/workers")["workers"]]
    assert all(len(models) <= 2 for models in held)
    assert set.union(*held) == {"first/1", "second/1", "third/1"}
    for voter in voters:
        assert set(voter.times().values()) == {1}, "each member ran each row once"
    assert metric(server, "ml_udf_rows_total") == ROWS + 60
    assert metric(server, "ml_udf_rerun_rows_total") == 0


def test_of_a_worker_that_is_killed_in_the_middle_only_its_members_rows_run_again(
    server: InferenceServer, voters: list[Voter]
) -> None:
    check(ask(server, [1]), [1])  # all is loaded
    numbers = list(range(10, 10 + ROWS))
    (alone,) = (
        worker
        for worker in get(server, "/v1/workers")["workers"]
        if len({*worker["resident"]} & runs_on(voters, worker["pid"])) == 1
    )
    (name,) = {*alone["resident"]} & runs_on(voters, alone["pid"])
    lost = next(voter for voter in voters if f"{voter.name}/1" == name)
    others = [voter for voter in voters if voter is not lost]
    lost.hold(True)
    with ThreadPoolExecutor(1) as pool:
        asked: Future[dict[str, list[Any]]] = pool.submit(ask, server, numbers)
        wait_until(lambda: any(row in lost.times() for row in numbers), PATIENCE_S)
        wait_until(lambda: all(set(numbers) <= set(voter.times()) for voter in others), PATIENCE_S)
        begun = [row for row in numbers if row in lost.times()]
        os.kill(alone["pid"], signal.SIGKILL)
        lost.hold(False)
        check(asked.result(PATIENCE_S), numbers)
    for voter in others:
        assert {voter.times()[row] for row in numbers} == {1}, "who had answered was asked again"
    assert all(lost.times()[row] == 1 + (row in begun) for row in numbers)
    assert metric(server, "ml_udf_rerun_rows_total") >= len(begun)
    check(ask(server, [200, 201]), [200, 201])


def runs_on(voters: list[Voter], pid: int) -> set[str]:
    """The models that have run in that process."""
    return {f"{voter.name}/1" for voter in voters if pid in voter.ran()}
