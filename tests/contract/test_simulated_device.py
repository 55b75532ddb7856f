"""A server whose device is simulated: two models that do not fit beside each other, both answered."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.oip_wire import call, infer_body
from tests.inference_server import ANEW, inference_server
from tests.models import hashing_model, label_of

MIB = 1 << 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("simulated")


def test_models_take_turns_on_a_device_that_holds_one_of_them(folder: Path) -> None:
    with inference_server(folder / "home", flags=[ANEW, "--device=sim:10MiB,0.2GB/s,1ms"]) as server:
        for name in ("one", "two"):
            server.deploy(hashing_model(folder, name, weight_bytes=6 * MIB), f"udf_{name}")
        for _ in range(2):
            for name in ("one", "two"):
                reply = call(
                    server.port, "POST", f"/v2/models/udf_{name}/infer", infer_body("a", ml_udf_slo_ms=20_000)
                )
                assert reply.status == 200, reply.body
                assert label_of("a") in reply.body.decode()
        (worker,) = call(server.port, "GET", "/v1/workers").json()["workers"]
    assert worker["device"] == "sim:10MiB,0.2GB/s,1ms"
    assert worker["device_name"].startswith("simulated, 10485760 bytes at 0.2 GB/s and 1 ms a load, on ")
    assert worker["capacity_bytes"] == 10 * MIB
    assert len(worker["resident"]) == 1


def test_a_device_that_is_none_is_an_error_at_the_start(folder: Path) -> None:
    import subprocess
    import sys

    command = [sys.executable, "-m", "server", f"--home={folder / 'no'}", "--device=cpu,sim:2GiB"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode != 0
    assert "'sim:2GiB' is no simulated device: write sim:BYTES,GB/s[,ms]" in ended.stderr
