"""Workers that are killed, clients that vanish, servers that are told to stop: no row is lost quietly."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.contract.oip_wire import Reply, call, infer_body, metric
from tests.inference_server import ANEW, InferenceServer, inference_server
from tests.models import CLASSES, hashing_model
from tests.waiting import has_sleeping_thread, wait_until

SLOW = "/v2/models/udf_slow/infer"
ENDLESS = "/v2/models/udf_endless/infer"
TEXT = "/v2/models/udf_text/infer"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InferenceServer]:
    """A server that drains for as long as it takes; a batch takes `udf_slow` 1 s, `udf_endless` a minute."""
    folder = tmp_path_factory.mktemp("house")
    with inference_server(folder / "home", flags=[ANEW, "--drain-s=600"]) as running:
        running.deploy(hashing_model(folder, "text_hash"), "udf_text")
        running.deploy(hashing_model(folder, "slow_hash", delay_ms=1000), "udf_slow", max_batch=8)
        running.deploy(hashing_model(folder, "endless_hash", delay_ms=60_000), "udf_endless")
        yield running


@pytest.fixture
def house(server: InferenceServer) -> InferenceServer:
    """The server, up again if the test before has ended it, with a worker that holds its models."""
    if not server.is_started:
        server.start()
    models = {"text_hash/1", "slow_hash/1", "endless_hash/1"}
    wait_until(lambda: models <= set(_worker(server)["resident"]), within_s=60)
    return server


def _worker(server: InferenceServer) -> dict[str, Any]:
    """What the server says of its one worker."""
    (worker,) = call(server.port, "GET", "/v1/workers").json()["workers"]
    assert isinstance(worker, dict)
    return worker


def ask(server: InferenceServer, path: str, *rows: str) -> tuple[threading.Thread, list[Reply]]:
    """A request in a thread of its own; its reply will be in the list."""
    replies: list[Reply] = []
    thread = threading.Thread(
        target=lambda: replies.append(call(server.port, "POST", path, infer_body(*rows, outputs=("label",))))
    )
    thread.start()
    return thread, replies


def labels_of(*rows: str) -> list[str]:
    return [CLASSES[zlib.crc32(row.encode()) % len(CLASSES)] for row in rows]


def test_rows_of_a_killed_worker_are_answered_by_its_successor(house: InferenceServer) -> None:
    began_at = datetime.now(UTC).replace(microsecond=0)
    rows = [str(i) for i in range(24)]
    reruns = metric(house.port, "ml_udf_rerun_rows_total", function="udf_slow")
    restarts = metric(house.port, "ml_udf_worker_restarts_total", worker="w0")
    thread, replies = ask(house, SLOW, *rows)
    wait_until(lambda: metric(house.port, "ml_udf_queue_rows", function="udf_slow") > 0)
    (killed,) = house.kill_workers()
    thread.join(60)
    assert replies[0].status == 200
    assert replies[0].json()["outputs"][0]["data"] == labels_of(*rows)
    assert metric(house.port, "ml_udf_rerun_rows_total", function="udf_slow") > reruns
    assert metric(house.port, "ml_udf_worker_restarts_total", worker="w0") == restarts + 1
    assert str(killed) not in map(str, house.worker_pids())
    assert "worker lost worker=w0" in house.log
    (worker,) = call(house.port, "GET", "/v1/workers").json()["workers"]
    assert worker["state"] == "up"
    assert worker["last_error"]
    ended_at = datetime.fromisoformat(worker["last_error_at"])
    assert began_at <= ended_at <= datetime.now(UTC), "it says when: this life has had none"


def test_rows_under_which_two_workers_died_fail_with_worker_lost(house: InferenceServer) -> None:
    before = metric(house.port, "ml_udf_worker_restarts_total", worker="w0")
    thread, replies = ask(house, SLOW, "x")
    for restarts in (before + 1, before + 2):
        wait_until(lambda: _is_running_slowly(house))
        house.kill_workers()
        wait_until(lambda n=restarts: metric(house.port, "ml_udf_worker_restarts_total", worker="w0") >= n)  # type: ignore[misc]  # bound early
    thread.join(60)
    assert replies[0].status == 500
    assert replies[0].error.startswith("worker_lost: ")
    wait_until(lambda: call(house.port, "POST", TEXT, infer_body("x")).status == 200)


def _is_running_slowly(server: InferenceServer, name: str = "slow") -> bool:
    """Whether the worker runs a batch of that model: by the clock nothing else in a worker sleeps."""
    worker = _worker(server)
    if worker["state"] != "up" or f"{name}_hash/1" not in worker["resident"]:
        return False
    return has_sleeping_thread(worker["pid"])


def test_small_requests_go_on_while_a_worker_of_two_is_killed(tmp_path: Path) -> None:
    with inference_server(tmp_path / "home", flags=[ANEW, "--workers=2"]) as server:
        server.deploy(hashing_model(tmp_path, "text_hash", delay_ms=5), "udf_text")
        wait_until(lambda: len(server.worker_pids()) == 2)
        wrong: list[object] = []
        right: list[str] = []
        stopping = threading.Event()

        def client(name: int) -> None:
            asked = 0
            while not stopping.is_set():
                row = f"{name}-{asked}"
                reply = call(server.port, "POST", TEXT, infer_body(row, outputs=("label",)))
                asked += 1
                if reply.status != 200 or reply.json()["outputs"][0]["data"] != labels_of(row):
                    wrong.append((row, reply))
                else:
                    right.append(row)

        threads = [threading.Thread(target=client, args=(name,)) for name in range(8)]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(right) >= 100)
        os.kill(server.worker_pids()[0], signal.SIGKILL)
        before = len(right)
        wait_until(lambda: wrong or len(right) >= before + 200)
        stopping.set()
        for thread in threads:
            thread.join()
        assert wrong == []


def test_a_vanished_clients_rows_leave_queue_and_worker(house: InferenceServer) -> None:
    body = b'{"inputs":[{"name":"text","datatype":"BYTES","shape":[64],"data":[%s]}]}'
    body %= b",".join(b'"%d"' % i for i in range(64))
    with socket.create_connection(("127.0.0.1", house.port)) as connection:
        head = f"POST {SLOW} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        wait_until(lambda: 0 < metric(house.port, "ml_udf_queue_rows", function="udf_slow") < 64)
    began_s = time.monotonic()
    wait_until(lambda: metric(house.port, "ml_udf_queue_rows", function="udf_slow") == 0, within_s=5.0)
    thread, replies = ask(house, TEXT, "x")
    thread.join()
    # 48 rows more would have been 6 batches of a second each.
    assert time.monotonic() - began_s < 3.0
    assert replies[0].status == 200
    assert metric(house.port, "ml_udf_requests_total", function="udf_slow", code="cancelled") == 1


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGHUP])
def test_sigterm_lets_requests_finish_and_takes_no_new_ones(
    house: InferenceServer, end: signal.Signals
) -> None:
    thread, replies = ask(house, SLOW, "x")
    wait_until(lambda: _is_running_slowly(house))
    workers = house.worker_pids()
    os.kill(house.pid, end)
    wait_until(lambda: call(house.port, "GET", "/v2/health/ready").status == 503)
    assert call(house.port, "GET", "/v2/health/live").status == 200
    refused = call(house.port, "POST", TEXT, infer_body("y"))
    assert (refused.status, refused.error.startswith("overloaded: ")) == (503, True)
    assert "retry-after" in refused.headers
    thread.join(30)
    assert replies[0].json()["outputs"][0]["data"] == labels_of("x")
    assert house.wait() == 0
    assert "leaked" not in house.log, "libraries tell of what is left when Python ends"
    for pid in workers:
        assert not Path(f"/proc/{pid}").exists()
    with pytest.raises(ConnectionRefusedError):
        call(house.port, "GET", "/v2/health/live")


def test_a_drain_ends_after_its_time(tmp_path: Path) -> None:
    with inference_server(tmp_path / "home", flags=[ANEW, "--drain-s=0.5"]) as server:
        server.deploy(hashing_model(tmp_path, "slow_hash", delay_ms=60_000), "udf_slow")
        thread, replies = ask(server, SLOW, "x")
        wait_until(lambda: _is_running_slowly(server))
        os.kill(server.pid, signal.SIGTERM)
        assert server.wait() == 0
        thread.join()
        assert (replies[0].status, "shutting down" in replies[0].error) == (503, True)


def test_a_second_signal_ends_at_once(house: InferenceServer) -> None:
    body = b'{"inputs":[{"name":"text","datatype":"BYTES","shape":[1],"data":["x"]}]}'
    with socket.create_connection(("127.0.0.1", house.port)) as connection:
        head = f"POST {ENDLESS} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        wait_until(lambda: _is_running_slowly(house, "endless"))
        workers = house.worker_pids()
        os.kill(house.pid, signal.SIGTERM)
        wait_until(lambda: call(house.port, "GET", "/v2/health/ready").status == 503)
        os.kill(house.pid, signal.SIGINT)
        house.wait()
    wait_until(lambda: not any(_is_alive(pid) for pid in workers))


def test_workers_end_when_the_server_is_killed(house: InferenceServer) -> None:
    workers = house.worker_pids()
    assert workers
    os.kill(house.pid, signal.SIGKILL)
    wait_until(lambda: not any(_is_alive(pid) for pid in workers))


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
