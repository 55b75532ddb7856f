"""A model of a real Triton as a member: alone, beside a local model, stopped, and back again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

import ml_udf.duckdb
from ml_udf.client import Client
from tests.inference_server import InferenceServer, inference_server
from tests.models import hashing_model, label_of
from tests.remote_endpoint import oip_model
from tests.waiting import wait_until

PYTHON = Path(os.environ.get("TRITON_PYTHON", ".build/triton/bin/python"))
SERVE = Path(__file__).parent / "triton_hash" / "serve.py"
PATIENCE_S = 300.0
TEXTS = ["a", "laksa", "weiß", "ü🍜"]


class Triton:
    """PyTriton in a process group of its own, which Triton and its stubs are in too."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns once its model is ready. Skips, loudly, where it does not get that far."""
        command = [str(PYTHON.absolute()), str(SERVE), str(self.port)]
        with (self._folder / "triton.log").open("ab") as log:
            process = self._process = subprocess.Popen(
                command,
                cwd=self._folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "HOME": str(self._folder)},
            )
        try:
            wait_until(self._is_over_or_ready, PATIENCE_S)
        except TimeoutError:
            self.stop()
        if process.poll() is not None:
            told = (self._folder / "triton.log").read_text(errors="replace")[-1500:]
            pytest.skip(f"TRITON NOT TESTED, it does not run here:\n{told}")

    def stop(self) -> None:
        """`kill -9`, as a machine that goes away."""
        process, self._process = self._process, None
        if process is not None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _is_over_or_ready(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            return True
        try:
            with urllib.request.urlopen(f"{self.url}/v2/models/hash/ready", timeout=2) as reply:
                return bool(reply.status == 200)
        except (urllib.error.URLError, OSError):
            return False


@pytest.fixture(scope="module")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Triton]:
    if not PYTHON.exists():
        pytest.skip(f"TRITON NOT TESTED: {PYTHON} is not there; `make foreign` installs it")
    running = Triton(tmp_path_factory.mktemp("triton"))
    running.start()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def server(triton: Triton, tmp_path_factory: pytest.TempPathFactory) -> Iterator[InferenceServer]:
    folder = tmp_path_factory.mktemp("server")
    with inference_server(folder / "home", flags=[f"--allow-remote={triton.url}"]) as running:
        running.deploy(oip_model(folder, triton.url, timeout_ms=10_000), "udf_far")
        running.deploy(hashing_model(folder, "here"))
        client = Client(running.url)
        client.put("/v1/functions/udf_both", {"models": ["far", "here"], "combine": "mean"})
        client.close()
        yield running


def test_a_model_of_triton_is_a_member_that_may_go_and_come_back(
    triton: Triton, server: InferenceServer
) -> None:
    with duckdb.connect() as con:
        registration = ml_udf.duckdb.register(con, server.url, functions=["udf_far", "udf_both"])
        con.execute("CREATE TABLE texts AS SELECT unnest(?) AS t", [TEXTS])
        expected = [(label_of(text), label_of(text)) for text in TEXTS]

        def both() -> list[tuple[str, str]]:
            return con.execute("SELECT udf_far(t), udf_both(t) FROM texts").fetchall()

        def who() -> str:
            told = con.execute("SELECT ml_udf.detail('udf_both', 'a').answered_by").fetchone()
            return str(sorted(told[0])) if told else ""

        assert both() == expected
        assert who() == "['far', 'here']"
        triton.stop()
        assert con.execute("SELECT udf_both(t) FROM texts").fetchall() == [(here,) for _, here in expected]
        wait_until(lambda: who() == "['here']")
        with pytest.raises(duckdb.Error, match="58030 remote_unavailable"):
            both()
        triton.start()
        wait_until(lambda: who() == "['far', 'here']")
        assert both() == expected
        registration.close()


def test_five_thousand_rows_go_to_it_in_batches(server: InferenceServer, triton: Triton) -> None:
    with duckdb.connect() as con:
        registration = ml_udf.duckdb.register(con, server.url, functions=["udf_far"])
        rows = con.execute("SELECT i::VARCHAR, udf_far(i::VARCHAR) FROM range(5000) AS r(i)").fetchall()
        assert all(label == label_of(text) for text, label in rows)
        registration.close()
