"""Servers that really listen and speak as Triton's or OpenAI's do: models of known answers, and any fault."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.models import CLASSES, label_of, write_manifest

KEY = "sk-very-secret-0123456789"


class Endpoint:
    """One on loopback. `before(handler)`: called first for each POST; True where it answered by itself.

    requests: bodies of the POSTs that came, in order. dropped: a client hung up before its reply.
    """

    def __init__(self, port: int = 0, *, key: str = "", key_header: str = "", query: str = "") -> None:
        self.key = key
        self.key_header = key_header  # "": a bearer's token
        self.query = query  # that each request must have
        self.before: Callable[[Handler], bool] = lambda handler: False
        self.answer: Callable[[dict[str, Any]], Any] | None = None  # of a chat: text, reply, or None as usual
        self.requests: list[dict[str, Any]] = []
        self.dropped = threading.Event()
        self.port = port
        self._server: ThreadingHTTPServer | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def is_stopped(self) -> bool:
        """Whether it listens no more."""
        return self._server is None

    def start(self) -> None:
        """Listen, on the port that it had before."""
        endpoint = self

        class Bound(Handler):
            of = endpoint

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            allow_reuse_address = True

            def handle_error(self, *_: Any) -> None:
                endpoint.dropped.set()

        self._server = Server(("127.0.0.1", self.port), Bound)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """Hang up, and listen no more."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()


class Handler(BaseHTTPRequestHandler):
    """`/v2/models/NAME` as the Open Inference Protocol has it, `/v1` as OpenAI."""

    of: Endpoint
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = 20

    def log_message(self, *_: Any) -> None:
        pass

    def handle_one_request(self) -> None:
        # One that was stopped answers nobody, on no connection of before.
        super().handle_one_request()
        if self.of._server is None:
            self.close_connection = True

    def do_GET(self) -> None:  # the library's name
        if not self._may_ask():
            return
        if self.path == "/v2":
            self.reply({"name": "stub", "extensions": ["binary_tensor_data"]})
        elif self.path.startswith("/v2/models/"):
            self.reply(_METADATA.get(self.path.split("/")[3]) or {"error": "unknown model"})
        elif self.path == "/v1/models":
            self.reply({"data": [{"id": "small"}]})
        else:
            self.reply({"error": "not found"}, 404)

    def do_POST(self) -> None:  # the library's name
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if not self._may_ask():
            return
        asked = _read(body, int(self.headers.get("Inference-Header-Content-Length") or len(body)))
        self.of.requests.append(asked)
        if self.of._server is None:
            self.close_connection = True
            return
        if self.of.before(self):
            return
        if self.path.endswith("/chat/completions"):
            self.reply(_chat(asked, self.of.answer))
        elif self.path.endswith("/embeddings"):
            data = [{"index": at, "embedding": vector_of(text)} for at, text in enumerate(asked["input"])]
            self.reply({"data": data[::-1]})
        else:
            self.reply(_infer(self.path.split("/")[3], asked))

    def reply(self, content: Any, status: int = 200, **headers: str) -> None:
        """JSON, or bytes as they are."""
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def wait_for_hang_up(self, within_s: float = 10.0) -> bool:
        """Whether the client hung up instead of waiting for its reply."""
        self.connection.settimeout(within_s)
        with contextlib.suppress(OSError):
            if self.connection.recv(1) == b"":
                self.of.dropped.set()
                self.close_connection = True
                return True
        return False

    def _may_ask(self) -> bool:
        self.path, _, query = self.path.partition("?")
        if query != self.of.query:
            self.reply({"error": f"wrong query {query}"}, 400)
            return False
        header = self.of.key_header or "Authorization"
        said = self.headers.get(header, "")
        if not self.of.key or said == (self.of.key if self.of.key_header else f"Bearer {self.of.key}"):
            return True
        self.reply({"error": f"wrong key {said}"}, 401)
        return False


def vector_of(text: str) -> list[float]:
    """The embedding of a text."""
    return [float(len(text)), float(sum(text.encode()) % 97), 1.0]


@contextlib.contextmanager
def endpoint(**options: Any) -> Iterator[Endpoint]:
    """One for the length of a `with` block."""
    running = Endpoint(**options)
    try:
        yield running
    finally:
        running.stop()


def oip_model(directory: Path, url: str, name: str = "far", *, of: str = "hash", **remote: Any) -> Path:
    """The folder of a text classifier at an OIP endpoint, which answers as a `hashing` model does."""
    return write_manifest(
        directory,
        name,
        task="text-classification",
        runtime="oip",
        input={"form": "text"},
        outputs={"scores": "probs"},
        remote={"url": f"{url}/v2/models/{of}", "retries": 0, "timeout_ms": 5000, **remote},
    )


def openai_model(directory: Path, url: str, name: str = "chat", **fields: Any) -> Path:
    """The folder of a text classifier at an OpenAI-compatible endpoint; `fields` of its manifest."""
    remote = {"url": f"{url}/v1", "model": "small", "retries": 0, "timeout_ms": 5000}
    return write_manifest(
        directory,
        name,
        **{
            "task": "text-classification",
            "runtime": "openai",
            "input": {"form": "text"},
            **fields,
            "remote": remote | fields.get("remote", {}),
        },
    )


_METADATA = {
    "hash": {
        "name": "hash",
        "versions": ["1"],
        "platform": "stub",
        "inputs": [{"name": "text", "datatype": "BYTES", "shape": [-1, 1]}],
        "outputs": [
            {"name": "probs", "datatype": "FP32", "shape": [-1, 4]},
            {"name": "label", "datatype": "BYTES", "shape": [-1]},
        ],
    },
    "sums": {
        "name": "sums",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}],
        "outputs": [{"name": "sum", "datatype": "FP64", "shape": [-1, 1]}],
    },
    "finds": {
        "name": "finds",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 3, 4, 4]}],
        "outputs": [{"name": "boxes", "datatype": "FP32", "shape": [-1, -1, 6]}],
    },
    "pixels": {
        "name": "pixels",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 3, 4, 4]}],
        "outputs": [{"name": "probs", "datatype": "FP32", "shape": [-1, 4]}],
    },
}


def _read(body: bytes, head: int) -> dict[str, Any]:
    asked: dict[str, Any] = json.loads(body[:head]) if body else {}
    raw = body[head:]
    if raw:
        (tensor,) = asked["inputs"]
        if tensor["datatype"] == "BYTES":
            rows = []
            while raw:
                size = int.from_bytes(raw[:4], "little")
                rows.append(raw[4 : 4 + size].decode())
                raw = raw[4 + size :]
            tensor["data"] = rows
        else:
            tensor["data"] = list(memoryview(raw).cast("f"))
    return asked


def _infer(model: str, asked: dict[str, Any]) -> dict[str, Any]:
    (tensor,) = asked["inputs"]
    count = tensor["shape"][0]
    if model == "sums":
        sums = [sum(tensor["data"][2 * row : 2 * row + 2]) for row in range(count)]
        return _output("sum", "FP64", [count, 1], sums)
    if model == "finds":
        return _output("boxes", "FP32", [count, 2, 6], [0, 0, 2, 2, 0.9, 1, 0, 0, 1, 1, 0.0, 0] * count)
    if model == "pixels":
        each = len(tensor["data"]) // count
        means = [sum(tensor["data"][row * each : (row + 1) * each]) / each for row in range(count)]
        hot = [[float(at == (1 if mean > 0.5 else 0)) for at in range(4)] for mean in means]
        return _output("probs", "FP32", [count, 4], [p for row in hot for p in row])
    if asked["outputs"][0]["name"] == "label":
        return _output("label", "BYTES", [count], [label_of(text) for text in tensor["data"]])
    hot = [[0.7 if each == label_of(text) else 0.1 for each in CLASSES] for text in tensor["data"]]
    return _output("probs", "FP32", [count, 4], [p for row in hot for p in row])


def _output(name: str, datatype: str, shape: list[int], data: list[Any]) -> dict[str, Any]:
    return {
        "model_name": "stub",
        "outputs": [{"name": name, "datatype": datatype, "shape": shape, "data": data}],
    }


def data_of(asked: dict[str, Any]) -> str:
    """What a chat's prompt holds between the marks."""
    content = asked["messages"][1]["content"]
    text = content if isinstance(content, str) else content[-1]["text"]
    return text.partition("<<<DATA\n")[2].partition("\nDATA>>>")[0] if "<<<DATA" in text else text


def _chat(asked: dict[str, Any], answer: Callable[[dict[str, Any]], Any] | None) -> Any:
    said = None if answer is None else answer(asked)
    is_usual = said is None
    said = json.dumps({"label": label_of(data_of(asked))}) if said is None else said
    if not isinstance(said, str):
        return said
    choice: dict[str, Any] = {"message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
    if asked.get("logprobs") and is_usual:
        label = label_of(data_of(asked))
        head, tail = said.split(label)
        tokens = [(head, 0.0), (label[:2], -0.1), (label[2:], -0.2), (tail, 0.0)]
        choice["logprobs"] = {"content": [{"token": token, "logprob": p} for token, p in tokens]}
    return {"choices": [choice]}
