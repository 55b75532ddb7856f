"""A small Open Inference Protocol server with known answers: label = crc32 of the row.

For tests of the SQL side alone: it counts what it is sent, can be slow, faulty, foreign, or want a token. A
row `missing…` does not exist, `fault:CODE` meets that error, `refuse:CODE` fails its whole request, `/late…`
takes half a second, `zero…` is answered with a zero character, `bytes…` with bytes that are no text; with
`ours=False` it knows no extension of ml_udf at all.
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
import time
import zlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

from ml_udf.oip import HEADER_LENGTH, InferResponse, Tensor, decode_request, encode_response

LATE_S = 0.5
WHAT_HAPPENED = "what happened, and to what"


_ODD = {b"zero": b"a\0b", b"bytes": b"\xff\0"}


def label_of(row: str | bytes) -> str:
    return f"c{zlib.crc32(row.encode() if isinstance(row, str) else row) % 7}"


class OipServer:
    """Serves any function named in `functions`; attributes may be changed while it runs."""

    def __init__(
        self, *, ours: bool = True, token: str | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self.ours = ours
        self.token = token
        self.version = "1"
        self.delay_s = 0.0
        self.away = False
        self.functions: dict[str, str] = {"udf_food_name": "path", "food": "path"}
        self.requests: list[list[bytes]] = []  # the rows of every infer request
        self.parameters: list[dict[str, Any]] = []
        self.inputs: list[str] = []  # the name of every request's input
        self.paths: list[str] = []
        self.tokens: list[str | None] = []
        self.claims: list[tuple[str, str]] = []  # of every request: in whose name, from which database
        self.connections: set[socket.socket] = set()
        self.under_way = 0  # infer requests that were read and not answered
        self.most_at_once = 0
        self._lock = threading.Lock()
        self.abandoned = 0  # requests whose client went away while they were computed
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self.url = f"http{'' if tls is None else 's'}://127.0.0.1:{self.port}"
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    @property
    def rows(self) -> list[str]:
        return [row.decode() for request in self.requests for row in request]

    def forget(self) -> None:
        self.requests.clear()
        self.most_at_once = 0
        self.parameters.clear()
        self.inputs.clear()
        self.paths.clear()
        self.tokens.clear()
        self.claims.clear()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        for connection in list(self.connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def setup(self) -> None:
                super().setup()
                owner.connections.add(self.connection)

            def finish(self) -> None:
                owner.connections.discard(self.connection)
                super().finish()

            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                owner.answer_get(self)

            def do_POST(self) -> None:
                owner.answer_infer(self, self.rfile.read(int(self.headers["Content-Length"])))

        return Handler

    def answer_get(self, handler: BaseHTTPRequestHandler) -> None:
        self.paths.append(handler.path)
        if not self._authorized(handler):
            return
        name = handler.path.rpartition("/")[2]
        if handler.path == "/v2":
            _json(handler, 200, {"name": "fake", "extensions": ["ml_udf"] if self.ours else []})
        elif handler.path.startswith("/v2/models/") and name in self.functions:
            _json(handler, 200, self._metadata(name))
        elif handler.path == "/v1/functions" and self.ours:
            rows = [
                {"name": n, "version": self.version, "task": "t", "models": ["m"], "policy": "greedy"}
                for n in self.functions
            ]
            _json(handler, 200, {"functions": rows})
        elif handler.path == "/v1/models" and self.ours:
            _json(handler, 200, {"models": [{"name": "m", "version": "1", "task": "t", "accuracy": 0.9}]})
        elif name == "config":
            _json(handler, 404, {"error": "not here"})
        else:
            _json(handler, 404, {"error": f"unknown_function: there is no function or model {name!r} here"})

    def answer_infer(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        self.paths.append(handler.path)
        if not self._authorized(handler):
            return
        if handler.path == "/v2/repository/index":
            _json(handler, 200, [{"name": n, "version": "1", "state": "READY"} for n in self.functions])
            return
        version = handler.path.partition("/versions/")[2].partition("/")[0]
        if version not in ("", self.version):
            name = handler.path.split("/")[3]
            _json(handler, 410, {"error": f"version_gone: version {version} of {name} is not served"})
            return
        asked = decode_request(body, handler.headers.get(HEADER_LENGTH))
        tensor = asked.inputs[0]
        self.requests.append(tensor.elements if tensor.datatype == "BYTES" else [b""] * tensor.shape[0])
        self.parameters.append(asked.parameters)
        self.inputs.append(tensor.name)
        with self._lock:
            self.under_way += 1
            self.most_at_once = max(self.most_at_once, self.under_way)
        late = any(row.startswith(b"/late") for row in self.requests[-1])
        time.sleep(self.delay_s + LATE_S * late)
        with self._lock:
            self.under_way -= 1
        if self.away:
            _json(handler, 502, {"error": "connection_lost: nobody is behind this"})
            return
        refused = next((row for row in self.requests[-1] if row.startswith(b"refuse:")), None)
        if refused is not None:
            _json(handler, 400, {"error": f"{refused[7:].decode()}: {WHAT_HAPPENED}"})
            return
        outputs = self._answered(handler.path.split("/")[3], tensor)
        reply, headers = encode_response(InferResponse("f", outputs, self.version, asked.id), asked)
        try:
            _send(handler, 200, reply, headers)
        except OSError:
            self.abandoned += 1

    def _answered(self, function: str, tensor: Tensor) -> list[Tensor]:
        """The outputs of a function for rows that came."""
        if function == "embed":
            return [
                Tensor.of_numbers("embedding", "FP32", _embeddings(tensor.elements), (tensor.shape[0], 2))
            ]
        if tensor.datatype != "BYTES":
            return [Tensor.of_numbers("sum", "FP32", [sum(row) for row in _rows(tensor)])]
        return self._outputs(tensor.elements)

    def _gone(self, rows: list[bytes]) -> list[bool]:
        return [self.ours and row.startswith((b"missing", b"fault:")) for row in rows]

    def _errors(self, rows: list[bytes]) -> list[bytes]:
        return [_fault_of(row) if gone else b"" for row, gone in zip(rows, self._gone(rows), strict=True)]

    def _outputs(self, rows: list[bytes]) -> list[Tensor]:
        gone = self._gone(rows)
        labels = [b"" if g else _label(r) for r, g in zip(rows, gone, strict=True)]
        outputs = [Tensor.of_bytes("label", labels)]
        if self.ours:
            confidences = [0.0 if g else 0.5 for g in gone]
            outputs += [
                Tensor.of_numbers("confidence", "FP32", confidences),
                Tensor.of_bytes("error", self._errors(rows)),
            ]
        return outputs

    def _metadata(self, name: str) -> dict[str, Any]:
        form = self.functions[name]
        if name == "embed":
            number = {"name": "embedding", "datatype": "FP32", "shape": [-1, 2]}
            text = {"name": "text", "datatype": "BYTES", "shape": [-1]}
            return {"name": name, "versions": [self.version], "inputs": [text], "outputs": [number]}
        numbers = form == "numbers"
        return {
            "name": name,
            "versions": [self.version],
            "inputs": [
                {
                    "name": {"path": "image_path"}.get(form, form),
                    "datatype": "FP32" if numbers else "BYTES",
                    "shape": [-1, 3] if numbers else [-1],
                }
            ],
            "outputs": [
                {"name": "sum", "datatype": "FP32", "shape": [-1]}
                if numbers
                else {"name": "label", "datatype": "BYTES", "shape": [-1]},
                *([{"name": "confidence", "datatype": "FP32", "shape": [-1]}] if self.ours else []),
            ],
            "parameters": self._parameters(form) if self.ours else {},
        }

    def _parameters(self, form: str) -> dict[str, Any]:
        inputs = {"image_path": "path", "image": "image"} if form in ("path", "image") else {form: form}
        return {"form": form, "inputs": inputs, "classes": [f"c{n}" for n in range(7)]}

    def _authorized(self, handler: BaseHTTPRequestHandler) -> bool:
        said = [unquote(handler.headers.get(f"ML-UDF-{name}", "")) for name in ("User", "Database")]
        self.claims.append((said[0], said[1]))
        given = handler.headers.get("Authorization")
        self.tokens.append(given.removeprefix("Bearer ") if given else None)
        if self.token is None or given == f"Bearer {self.token}":
            return True
        _json(handler, 401, {"error": "unauthorized: the token is missing or wrong"})
        return False


@contextlib.contextmanager
def oip_server(
    *, ours: bool = True, token: str | None = None, tls: ssl.SSLContext | None = None
) -> Iterator[OipServer]:
    server = OipServer(ours=ours, token=token, tls=tls)
    try:
        yield server
    finally:
        server.stop()


def _label(row: bytes) -> bytes:
    odd = (label for start, label in _ODD.items() if row.startswith(start))
    return next(odd, label_of(row).encode())


def _fault_of(row: bytes) -> bytes:
    if row.startswith(b"missing"):
        return b"input_not_found: there is no file " + row
    return row[6:] + b": " + WHAT_HAPPENED.encode()


def _embeddings(rows: list[bytes]) -> list[float]:
    """What the function `embed` answers: per row its length, and a half."""
    return [number for row in rows for number in (float(len(row)), 0.5)]


def _rows(tensor: Tensor) -> list[list[float]]:
    numbers, width = tensor.numbers(), tensor.shape[1]
    return [list(numbers[at : at + width]) for at in range(0, len(numbers), width)]


def _json(handler: BaseHTTPRequestHandler, status: int, body: dict[str, Any] | list[dict[str, str]]) -> None:
    _send(handler, status, json.dumps(body).encode(), {"Content-Type": "application/json"})


def _send(handler: BaseHTTPRequestHandler, status: int, body: bytes, headers: dict[str, str]) -> None:
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)
