"""A full disk: what cannot be stored says so, in its own words, and leaves everything as it was."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.oip_wire import call, infer_body
from tests.inference_server import InferenceServer, inference_server
from tests.models import hashing_model
from tests.waiting import wait_until

INFER = "/v2/models/udf_text/infer"
ROLLBACK = "/v1/functions/udf_text/rollback"


@pytest.fixture(scope="module")
def small_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home folder on a disk of its own of 8 MiB; the log is elsewhere."""
    folder = tmp_path_factory.mktemp("small")
    home = folder / "home"
    home.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(home)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("no disk of its own can be mounted here (needs root)")
    try:
        (home / "server.log").symlink_to(folder / "server.log")
        yield home
    finally:
        subprocess.run(["umount", "--lazy", str(home)], check=False)


@pytest.fixture(scope="module")
def house(small_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[InferenceServer]:
    with inference_server(small_home) as running:
        running.deploy(hashing_model(tmp_path_factory.mktemp("made"), "text_hash"))
        yield running


@pytest.fixture
def server(house: InferenceServer) -> InferenceServer:
    """The server, with room, where `udf_text` is deployed as each test expects it."""
    (house.home / "ballast").unlink(missing_ok=True)
    deployment = {"models": ["text_hash"], "slo_ms": 400}
    assert call(house.port, "PUT", "/v1/functions/udf_text", deployment).status == 200
    wait_until(lambda: all(model["resident_on"] for model in models(house)), within_s=60)
    return house


def models(server: InferenceServer) -> list[dict[str, Any]]:
    """What the server says of its models."""
    return list(call(server.port, "GET", "/v1/models").json()["models"])


def fill(home: Path) -> Path:
    """A file that takes all the space that is left."""
    ballast = home / "ballast"
    with ballast.open("wb", buffering=0) as out:
        while True:
            try:
                if not out.write(bytes(4096)):
                    break
            except OSError:
                break
    return ballast


def state(server: InferenceServer) -> dict[str, object]:
    """What is served, and what lies in the home folder for it."""
    home = server.home
    return {
        "functions": call(server.port, "GET", "/v1/functions").json(),
        "models": call(server.port, "GET", "/v1/models").json(),
        "published": {path.name: path.read_text() for path in (home / "functions").iterdir()},
        "stored": sorted(str(path.relative_to(home)) for path in (home / "models").rglob("*")),
    }


def test_what_cannot_be_stored_is_refused_whole_and_works_once_there_is_room(
    server: InferenceServer, tmp_path: Path
) -> None:
    big = hashing_model(tmp_path, "other_hash")
    manifest = json.loads((big / "model.json").read_text())
    ballast = fill(server.home)
    before = state(server)
    deployment = {"models": ["text_hash"], "slo_ms": 300}
    for method, path, body in (
        ("PUT", "/v1/functions/udf_text", deployment),
        ("PUT", "/v1/functions/udf_new", deployment),
        ("POST", "/register", {"directory": str(big)}),
    ):
        reply = call(server.port, method, path, body)
        assert (path, reply.status) == (path, 507)
        assert reply.error.startswith("no_space: no space left")
        assert state(server) == before
    assert call(server.port, "POST", INFER, infer_body("x")).status == 200
    assert "Traceback" not in server.log
    ballast.unlink()
    reply = call(server.port, "PUT", "/v1/functions/udf_text", deployment)
    assert (reply.status, reply.json()["slo_ms"]) == (200, 300)
    assert call(server.port, "POST", "/register", {"directory": str(big)}).status == 200
    assert manifest["name"] in {model["name"] for model in models(server)}


def test_after_a_restart_a_refused_change_is_not_there(server: InferenceServer, tmp_path: Path) -> None:
    other = hashing_model(tmp_path, "refused_hash")
    ballast = fill(server.home)
    assert call(server.port, "POST", "/register", {"directory": str(other)}).status == 507
    assert call(server.port, "PUT", "/v1/functions/udf_text", {"models": ["text_hash"]}).status == 507
    os.unlink(ballast)
    before = state(server)
    server.stop()
    server.start()
    after = state(server)
    for one in (before, after):  # what is resident may differ for a moment
        one["functions"] = [f["versions"] for f in one["functions"]["functions"]]  # type: ignore[index]
        one["models"] = [m["name"] for m in one["models"]["models"]]  # type: ignore[index]
    assert after == before


def test_a_rollback_that_cannot_be_stored_changes_nothing_and_works_once_there_is_room(
    server: InferenceServer,
) -> None:
    changed = {"models": ["text_hash"], "slo_ms": 300}
    assert call(server.port, "PUT", "/v1/functions/udf_text", changed).json()["slo_ms"] == 300
    ballast = fill(server.home)
    before = state(server)
    reply = call(server.port, "POST", ROLLBACK, {})
    assert (reply.status, reply.error.startswith("no_space: no space left")) == (507, True)
    assert state(server) == before
    assert call(server.port, "POST", INFER, infer_body("x")).status == 200
    ballast.unlink()
    reply = call(server.port, "POST", ROLLBACK, {})
    assert (reply.status, reply.json()["slo_ms"]) == (200, 400)
    server.stop()
    server.start()
    served = call(server.port, "GET", "/v1/functions/udf_text").json()
    assert served["slo_ms"] == 400, "what was rolled back stays so over a restart"


def test_labels_that_cannot_be_kept_count_nothing_and_count_once_there_is_room(
    server: InferenceServer,
) -> None:
    def give(first: int) -> Any:
        texts = [f"dish {number}" for number in range(first, first + 500)]
        body = {"function": "udf_text", "inputs": texts, "labels": ["pizza"] * len(texts)}
        return call(server.port, "POST", "/v1/feedback", body)

    assert give(0).status == 200
    ballast = fill(server.home)
    replies = [give(first) for first in range(500, 5500, 500)]  # what the log had left is soon used up
    statuses = [reply.status for reply in replies]
    assert 507 in statuses
    assert set(statuses) <= {200, 507}
    refused = replies[statuses.index(507)]
    assert refused.error.startswith("no_space: no space left")
    counted = 500 + 500 * statuses.count(200)
    feedback = call(server.port, "GET", "/v1/functions/udf_text").json()["feedback"]
    assert feedback["rows"] == counted
    assert call(server.port, "POST", INFER, infer_body("x")).status == 200
    ballast.unlink()
    again = give(500 + 500 * statuses.index(507))
    assert (again.status, set(again.json()["outcomes"])) == (200, {"counted"})
    assert call(server.port, "GET", "/v1/functions/udf_text").json()["feedback"]["rows"] == counted + 500
