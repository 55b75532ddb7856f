"""Limits hold, with and without a length announced; a token is asked of everybody; a full queue says when."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.oip_wire import Reply, call, infer_body, metric
from tests.inference_server import ANEW, InferenceServer, inference_server
from tests.models import hashing_model
from tests.waiting import wait_until

TOKEN = "a-token-for-the-tests-0123456789"
INFER = "/v2/models/udf_text/infer"


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InferenceServer]:
    """A server with small limits."""
    folder = tmp_path_factory.mktemp("strict")
    flags = ["--max-body-bytes=10000", "--max-rows=20", "--max-input-bytes=1000", "--max-queued-rows=20"]
    with inference_server(folder / "home", flags=[ANEW, *flags]) as server:
        server.deploy(hashing_model(folder, "text_hash"), "udf_text")
        server.deploy(hashing_model(folder, "slow_hash", delay_ms=1500), "udf_slow", max_batch=4)
        yield server


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InferenceServer]:
    """A server that wants a token."""
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "token").write_text(TOKEN + "\n")
    with inference_server(folder / "home", flags=[f"--token-file={folder / 'token'}"]) as server:
        yield server


def test_a_body_over_the_limit_is_413(strict: InferenceServer) -> None:
    reply = call(strict.port, "POST", INFER, b"x" * 10_001)
    assert (reply.status, reply.error.startswith("input_too_large: ")) == (413, True)


@pytest.mark.parametrize("path", [INFER, "/v1/functions/f", "/v2/repository/index"])
def test_a_body_of_unannounced_length_is_413_as_soon_as_it_is_over(
    strict: InferenceServer, path: str
) -> None:
    method = "PUT" if path.startswith("/v1") else "POST"
    with socket.create_connection(("127.0.0.1", strict.port), timeout=30) as connection:
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        head += "Transfer-Encoding: chunked\r\n\r\n"
        connection.sendall(head.encode())
        for _ in range(11):
            connection.sendall(b"3e8\r\n" + b"x" * 1000 + b"\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 413 ")


def test_more_rows_than_allowed_is_413_and_as_many_as_allowed_are_answered(strict: InferenceServer) -> None:
    assert call(strict.port, "POST", INFER, infer_body(*"x" * 20)).status == 200
    reply = call(strict.port, "POST", INFER, infer_body(*"x" * 21))
    assert (reply.status, "the limit is 20" in reply.error) == (413, True)


def test_a_value_over_the_limit_is_an_error_of_its_own_row(strict: InferenceServer) -> None:
    body = infer_body("x" * 1001, "short", outputs=("label", "error"))
    label, error = call(strict.port, "POST", INFER, body).json()["outputs"]
    assert error["data"][0].startswith("input_too_large: ")
    assert (error["data"][1], label["data"][1] != "") == ("", True)


def test_a_full_queue_answers_503_and_when_to_come_back(strict: InferenceServer) -> None:
    slow = "/v2/models/udf_slow/infer"
    replies: list[Reply] = []

    def ask() -> None:
        replies.append(call(strict.port, "POST", slow, infer_body(*"abcdefgh")))

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {reply.status for reply in replies} == {200, 503}
    for reply in replies:
        if reply.status == 503:
            assert reply.error.startswith("overloaded: ")
            assert "udf_slow@" not in reply.error
            assert 1 <= int(reply.headers["retry-after"]) <= 60
    assert metric(strict.port, "ml_udf_requests_total", function="udf_slow", code="overloaded") >= 1


def test_many_clients_that_vanish_leave_no_row_behind(strict: InferenceServer) -> None:
    body = b'{"inputs":[{"name":"text","datatype":"BYTES","shape":[1],"data":["x"]}]}'
    head = (
        f"POST /v2/models/udf_slow/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    connections = [socket.create_connection(("127.0.0.1", strict.port), timeout=30) for _ in range(15)]
    for connection in connections:
        connection.sendall(head.encode() + body)
    wait_until(lambda: metric(strict.port, "ml_udf_queue_rows", function="udf_slow") > 0)
    for connection in connections:
        connection.close()
    wait_until(lambda: metric(strict.port, "ml_udf_queue_rows", function="udf_slow") == 0, within_s=1.0)
    assert call(strict.port, "POST", INFER, infer_body("x")).status == 200


def test_health_needs_no_token_and_everything_else_does(guarded: InferenceServer) -> None:
    for path in ("/v2/health/live", "/v2/health/ready"):
        assert call(guarded.port, "GET", path).status in {200, 503}
    for method, path in [
        ("GET", "/v2"),
        ("GET", "/metrics"),
        ("POST", INFER),
        ("POST", "/register"),
        ("PUT", "/v1/functions/f"),
        ("GET", "/nothing"),
    ]:
        reply = call(guarded.port, method, path)
        assert (path, reply.status, reply.error.partition(":")[0]) == (path, 401, "unauthorized")
        assert reply.headers["www-authenticate"] == "Bearer"
    for path in ("/docs", "/openapi.json"):
        assert call(guarded.port, "GET", path).status == 401
        reply = call(guarded.port, "GET", path, headers={"Accept": "text/html"})
        assert (path, reply.status, reply.headers["location"]) == (path, 303, f"login?next={path[1:]}")


@pytest.mark.parametrize(
    "sent", ["", "Bearer", "Bearer wrong", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}x", "Bearer ä"]
)
def test_another_token_is_refused(guarded: InferenceServer, sent: str) -> None:
    assert call(guarded.port, "GET", "/v2", headers={"Authorization": sent}).status == 401


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://evil.example", 403),
        ("null", 403),
        ("http://127.0.0.1:{port}", 200),
        ("http://127.0.0.1:1{port}", 403),
        ("http://localhost", 403),
    ],
)
def test_pages_of_other_origins_may_not_call_a_server_without_a_token(
    strict: InferenceServer, origin: str, status: int
) -> None:
    headers = {"Origin": origin.format(port=strict.port), "Content-Type": "text/plain"}
    assert call(strict.port, "POST", INFER, infer_body("x"), headers).status == status


def test_the_token_opens_and_is_not_in_the_log(guarded: InferenceServer) -> None:
    for scheme in ("Bearer", "bearer"):
        assert call(guarded.port, "GET", "/v2", headers={"Authorization": f"{scheme} {TOKEN}"}).status == 200
    assert TOKEN not in guarded.log


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--home=/proc/nowhere"], "the home folder /proc/nowhere cannot be used: "),
        (["--database-url=sqlite:////proc/nowhere.db"], "the registry (--database-url) cannot be opened: "),
        (["--database-url=postgresql://me@127.0.0.1:1/x"], "the registry (--database-url) cannot be"),
        (["--database-url=nonsense"], "the registry (--database-url) cannot be opened: "),
        (
            ["--database-url=mysql://me@h/x"],
            "the registry (--database-url) cannot be opened: it is SQLite or",
        ),
        (
            ["--database-url=sqlite+no://"],
            "the registry (--database-url) cannot be opened: Can't load plugin",
        ),
    ],
)
def test_what_cannot_be_opened_at_the_start_is_told_in_one_line(
    tmp_path: Path, flags: list[str], said: str
) -> None:
    command = [sys.executable, "-m", "server", "--port=0", f"--home={tmp_path}", *flags]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 3
    assert ended.stderr.splitlines()[0].startswith(f"ml_udf server: {said}")
    assert "Traceback" not in ended.stderr
    assert "secret" not in ended.stderr


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            ["--port-file=nowhere/port"],
            "the port cannot be written to nowhere/port: No such file or directory",
        ),
        (
            [f"--answer-cache-bytes={1 << 62}"],
            f"--answer-cache-bytes {1 << 62} is more than this machine has",
        ),
    ],
)
def test_what_is_seen_later_in_the_start_is_told_in_its_last_line(
    tmp_path: Path, flags: list[str], said: str
) -> None:
    command = [sys.executable, "-m", "server", "--port=0", f"--home={tmp_path}", "--device=cpu", *flags]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert ended.returncode == 3
    assert said in ended.stderr.splitlines()[-1]
    assert "listening" not in ended.stdout
