"""The event loop goes on beside a huge request: others are answered while it is read, run and written."""

from __future__ import annotations

import http.client
import itertools
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.contract.oip_wire import call
from tests.inference_server import InferenceServer, inference_server
from tests.models import hashing_model

INFER = "/v2/models/{}/infer"
BODY_BYTES = 64 * 1024 * 1024
ROWS = 65_536
SCORES = 40  # of each row: near the most bytes of scores that a reply may hold
LOOK_S = 0.02
# What one request may take of the loop's time at once. Were it parsed or written there, it would be seconds.
MOST_S = 1.0

pytestmark = pytest.mark.alone


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InferenceServer]:
    folder = tmp_path_factory.mktemp("large")
    with inference_server(folder / "home") as running:
        running.deploy(hashing_model(folder, "text_hash"), "udf_text", slo_ms=60_000)
        many = hashing_model(folder, "many_hash")
        manifest = json.loads((many / "model.json").read_text())
        manifest["classes"] = [f"class {number}" for number in range(SCORES)]
        (many / "model.json").write_text(json.dumps(manifest))
        running.deploy(many, "udf_many", slo_ms=60_000)
        yield running


class Looks:
    """Asks whether the server lives, again and again on one connection, while the block runs."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._over = threading.Event()
        self._pool = ThreadPoolExecutor(1)
        self.answered_s: list[float] = []

    def __enter__(self) -> Looks:
        self._looking = self._pool.submit(self._look)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._looking.result(60)
        self._pool.shutdown()
        self._connection.close()

    @property
    def longest_pause_s(self) -> float:
        """The longest time between two answers."""
        return max(later - earlier for earlier, later in itertools.pairwise(self.answered_s))

    def _look(self) -> None:
        while not self._over.is_set():
            self._connection.request("GET", "/v2/health/live")
            reply = self._connection.getresponse()
            reply.read()
            assert reply.status == 200
            self.answered_s.append(time.monotonic())
            self._over.wait(LOOK_S)


def texts(rows: int, width: int, outputs: tuple[str, ...] = ("label",)) -> bytes:
    """A JSON request; made whole beforehand, so that this process has nothing to do meanwhile."""
    column = {
        "name": "text",
        "datatype": "BYTES",
        "shape": [rows],
        "data": [f"{row:0{width}}" for row in range(rows)],
    }
    return json.dumps({"inputs": [column], "outputs": [{"name": name} for name in outputs]}).encode()


def numbers() -> bytes:
    """JSON of 64 MiB that is all small values, the slowest kind to parse; it is refused after that."""
    head = b'{"inputs": [{"name": "text", "datatype": "INT64", "shape": [1], "data": ['
    tail = b"0]}]}"
    return head + b"1," * ((BODY_BYTES - len(head) - len(tail)) // 2) + tail


def binary() -> tuple[bytes, dict[str, str]]:
    """The same rows as binary data, near the largest body."""
    row = 1015
    data = b"".join(row.to_bytes(4, "little") + b"%0*d" % (row, number) for number in range(ROWS))
    column = {
        "name": "text",
        "datatype": "BYTES",
        "shape": [ROWS],
        "parameters": {"binary_data_size": len(data)},
    }
    head = json.dumps({"inputs": [column], "outputs": [{"name": "label"}]}).encode()
    return head + data, {
        "Inference-Header-Content-Length": str(len(head)),
        "Content-Type": "application/octet-stream",
    }


def longest_pause_s(
    server: InferenceServer,
    body: bytes,
    headers: dict[str, str],
    statuses: set[int],
    function: str = "udf_text",
) -> float:
    with Looks(server.port) as looks:
        reply = call(server.port, "POST", INFER.format(function), body, headers, timeout_s=300.0)
    assert reply.status in statuses, reply.body[:300]
    return looks.longest_pause_s


def test_others_are_answered_beside_a_body_of_many_texts_with_scores(server: InferenceServer) -> None:
    body = texts(ROWS, 8, ("label", "scores"))
    assert longest_pause_s(server, body, {}, {200}, "udf_many") < MOST_S


def test_others_are_answered_beside_the_largest_json_body(server: InferenceServer) -> None:
    body = texts(ROWS, 1015)
    assert 0.95 * BODY_BYTES < len(body) <= BODY_BYTES
    assert longest_pause_s(server, body, {}, {200}) < MOST_S


def test_others_are_answered_beside_the_json_that_is_slowest_to_parse(server: InferenceServer) -> None:
    assert longest_pause_s(server, numbers(), {}, {400, 413}) < MOST_S


def test_others_are_answered_beside_the_largest_binary_body(server: InferenceServer) -> None:
    body, headers = binary()
    assert 0.95 * BODY_BYTES < len(body) <= BODY_BYTES
    assert longest_pause_s(server, body, headers, {200}) < MOST_S
