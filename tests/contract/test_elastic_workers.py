"""A server whose workers join and leave by hand while rows flow: every row is answered."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from ml_udf.cli.app import app
from tests.contract.oip_wire import call, infer_body, metric
from tests.inference_server import ANEW, InferenceServer, inference_server
from tests.models import CLASSES, hashing_model
from tests.waiting import wait_until

TEXT = "/v2/models/udf_text/infer"


def workers(server: InferenceServer) -> dict[str, dict[str, Any]]:
    told = call(server.port, "GET", "/v1/workers").json()
    assert (told["least"], told["most"]) == (1, 2)
    return {worker["name"]: worker for worker in told["workers"]}


def states(server: InferenceServer) -> dict[str, str]:
    return {name: worker["state"] for name, worker in workers(server).items()}


class Load:
    """Clients that ask one row after the other, and remember what came."""

    def __init__(self, server: InferenceServer) -> None:
        self.wrong: list[object] = []
        self.right = 0
        self._server = server
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(name,)) for name in range(4)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        self.goes_on()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def goes_on(self) -> None:
        """Rows are answered from here on."""
        before = self.right
        wait_until(lambda: self.wrong or self.right >= before + 50)

    def _ask(self, name: int) -> None:
        asked = 0
        while not self._stopping.is_set():
            asked += 1
            reply = call(self._server.port, "POST", TEXT, infer_body(f"{name}-{asked}", outputs=("label",)))
            if reply.status != 200 or reply.json()["outputs"][0]["data"][0] not in CLASSES:
                self.wrong.append(reply)
            self.right += 1


def arrived(server: InferenceServer) -> int:
    """Rows of its function that came between the policy's last two looks."""
    told = call(server.port, "GET", "/v1/capacity/decisions").json()["decisions"]
    return max((int(each["arrived"]) for each in told[-1]["fleet"]["functions"]), default=0)


def ran(server: InferenceServer, *arguments: str) -> tuple[int, str]:
    ended = CliRunner().invoke(app, ["workers", *arguments, "--endpoint", f"http://127.0.0.1:{server.port}"])
    return ended.exit_code, ended.output


def test_workers_join_and_leave_while_rows_flow(tmp_path: Path) -> None:
    with inference_server(
        tmp_path / "home", flags=[ANEW, "--workers=1:2", "--capacity-policy=static"]
    ) as server:
        server.deploy(hashing_model(tmp_path, "text_hash"), "udf_text")
        with Load(server) as load:
            assert ran(server, "drain", "w0")[0] == 1, "one is the least"
            assert ran(server, "add", "--reason", "a test")[0] == 0
            assert workers(server)["w1"]["resident"] == ["text_hash/1"]
            load.goes_on()
            assert ran(server, "add")[0] == 1, "two are the most"
            assert ran(server, "drain", "w0")[0] == 0
            assert states(server) == {"w1": "up"}
            load.goes_on()
            _killed(server, "POST", "/v1/workers", {}, "w0")
            wait_until(lambda: states(server) == {"w0": "up", "w1": "up"})
            _killed(server, "POST", "/v1/workers/w0/drain", {}, "w0")
            wait_until(lambda: states(server) == {"w1": "up"})
            load.goes_on()
            wait_until(lambda: arrived(server) > 100)
        assert load.wrong == []
        told = call(server.port, "GET", "/v1/capacity").json()
        assert [(one["action"], one["worker"], one["outcome"]) for one in reversed(told["capacity"])] == [
            ("worker_up", "w1", "done"),
            ("worker_down", "w0", "done"),
            ("worker_up", "w0", "done"),
            ("worker_down", "w0", "done"),
        ]
        assert told["capacity"][-1]["reason"] == "a test"
        assert metric(server.port, "ml_udf_workers", state="up") == 1
        assert metric(server.port, "ml_udf_capacity_actions_total", action="worker_up", outcome="done") == 2
        page = call(server.port, "GET", "/", headers={"Accept": "text/html"}).body.decode()
        assert "What was done about capacity" in page
        assert "worker down" in page
        told = call(server.port, "GET", "/v1/capacity/decisions").json()
        assert (told["policy"], {one["begun"] for one in told["decisions"]}) == ("static", {False})
        status, shown = ran(server, "drain", "w7")
        assert (status, "there are: w1" in shown) == (1, True)


def _killed(server: InferenceServer, method: str, path: str, body: dict[str, Any], name: str) -> None:
    """Begin a change of that worker, and kill it meanwhile, or just after."""
    reply = call(server.port, method, path, body)
    assert reply.status == 202
    pid = _pid(server, name)
    if pid is not None:
        os.kill(pid, signal.SIGKILL)


def _pid(server: InferenceServer, name: str) -> int | None:
    found: list[int | None] = []

    def look() -> bool:
        worker = workers(server).get(name)
        found.append(None if worker is None else worker["pid"])
        return worker is None or worker["pid"] is not None

    wait_until(look)
    return found[-1]
