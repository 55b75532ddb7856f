"""`ml-udf workers drain`: a worker, or the node of a cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from ml_udf.cli import workers

THERE = [
    {"name": "w0", "state": "up", "node": "front"},
    {"name": "w1", "state": "up", "node": "gpu b"},
    {"name": "w2", "state": "up", "node": "gpu b"},
]


class FakeClient:
    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def get(self, path: str) -> dict[str, Any]:
        return {"workers": THERE}

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(("POST", path))
        return {"workers": ["w1", "w2"]}

    def delete(self, path: str) -> dict[str, Any]:
        self.asked.append(("DELETE", path))
        return {}


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    fake = FakeClient()

    @contextlib.contextmanager
    def asking(_server: object) -> Iterator[FakeClient]:
        yield fake

    monkeypatch.setattr(workers, "_asking", asking)
    return fake


def test_a_node_is_drained_by_its_name_and_its_workers_move(client: FakeClient) -> None:
    done = CliRunner().invoke(workers.app, ["drain", "gpu b"])
    assert done.exit_code == 0, done.output
    assert client.asked == [("POST", "/v1/nodes/gpu%20b/drain")]


def test_a_worker_is_drained_by_its_name_as_ever(client: FakeClient) -> None:
    done = CliRunner().invoke(workers.app, ["drain", "w1", "--no-wait"])
    assert done.exit_code == 0, done.output
    assert client.asked == [("POST", "/v1/workers/w1/drain")]


def test_a_node_gets_workers_again(client: FakeClient) -> None:
    done = CliRunner().invoke(workers.app, ["undrain", "gpu b"])
    assert done.exit_code == 0, done.output
    assert client.asked == [("DELETE", "/v1/nodes/gpu%20b/drain")]
