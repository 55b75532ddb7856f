"""A transport without a socket: answers the protocol from a script, for tests of the client."""

from __future__ import annotations

import json
import threading
import time
import zlib
from collections.abc import Callable

from ml_udf.client.transport import Abort, HttpRequest, HttpResponse
from ml_udf.errors import Cancelled
from ml_udf.oip import (
    HEADER_LENGTH,
    InferRequest,
    InferResponse,
    Tensor,
    decode_request,
    encode_response,
)


def label_of(row: bytes) -> str:
    return str(zlib.crc32(row))


class FakeTransport:
    """Function `f`: label = crc32 of the row; a row `bad…` is at fault. `faults` fail whole requests."""

    def __init__(self, *, ours: bool = True, version: str = "1", delay_s: float = 0.0) -> None:
        self.ours = ours
        self.version = version
        self.delay_s = delay_s
        self.faults: list[Exception | HttpResponse] = []
        self.sent: list[list[bytes]] = []
        self.requests: list[InferRequest] = []
        self.paths: list[str] = []
        self.most_in_flight = 0
        self.on_infer: Callable[[], None] = lambda: None
        self._in_flight = 0
        self._lock = threading.Lock()

    def send(self, request: HttpRequest, *, timeout_s: float, abort: Abort) -> HttpResponse:
        with self._lock:
            self.paths.append(request.path)
        if request.path == "/v2":
            return _json({"name": "fake", "extensions": ["ml_udf"] if self.ours else []})
        if request.path == "/v2/models/f":
            return _json(self._metadata())
        if request.path.startswith("/v2/models/f/") and request.path.endswith("/infer"):
            return self._infer(request, abort)
        return HttpResponse(404, {}, b'{"error": "unknown_function: there is no such function"}')

    def close(self) -> None:
        pass

    def _metadata(self) -> dict[str, object]:
        return {
            "name": "f",
            "versions": [self.version],
            "inputs": [{"name": "text", "datatype": "BYTES", "shape": [-1]}],
            "outputs": [
                {"name": "label", "datatype": "BYTES", "shape": [-1]},
                {"name": "confidence", "datatype": "FP32", "shape": [-1]},
            ],
            "parameters": {"form": "text"},
        }

    def _infer(self, request: HttpRequest, abort: Abort) -> HttpResponse:
        asked = decode_request(request.body, request.headers.get(HEADER_LENGTH))
        rows = asked.inputs[0].elements
        with self._lock:
            self.requests.append(asked)
            self._in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self._in_flight)
            fault = self.faults.pop(0) if self.faults else None
        try:
            self.on_infer()
            ends_s = time.monotonic() + self.delay_s
            while time.monotonic() < ends_s:
                abort.sleep(0.005)
                if abort:
                    raise Cancelled("aborted")
            if isinstance(fault, Exception):
                raise fault
            if fault is not None:
                return fault
            with self._lock:
                self.sent.append(rows)
            return self._answer(asked, rows)
        finally:
            with self._lock:
                self._in_flight -= 1

    def _answer(self, asked: InferRequest, rows: list[bytes]) -> HttpResponse:
        bad = [row.startswith(b"bad") for row in rows]
        outputs = [
            Tensor.of_bytes(
                "label", [b"" if b else label_of(r).encode() for r, b in zip(rows, bad, strict=True)]
            )
        ]
        if self.ours:
            outputs += [
                Tensor.of_numbers("confidence", "FP32", [0.0 if b else 0.5 for b in bad]),
                Tensor.of_bytes(
                    "error",
                    [
                        f"input_not_found: {r.decode()} is not there".encode() if b else b""
                        for r, b in zip(rows, bad, strict=True)
                    ],
                ),
            ]
        body, headers = encode_response(InferResponse("f", outputs, self.version, asked.id), asked)
        return HttpResponse(200, {name.lower(): value for name, value in headers.items()}, body)


def _json(body: dict[str, object]) -> HttpResponse:
    return HttpResponse(200, {}, json.dumps(body).encode())
