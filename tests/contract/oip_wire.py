"""A bare HTTP client of the protocol, for the tests that must see statuses, headers and bytes."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from typing import Any

__all__ = ["Reply", "call", "infer_body", "metric"]


@dataclass(frozen=True)
class Reply:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:  # JSON
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The text of an error, which every reply of 400 and more must have, and nothing else beside it."""
        content = self.json()
        assert list(content) == ["error"]
        assert isinstance(content["error"], str)
        return str(content["error"])


def call(
    port: int,
    method: str,
    path: str,
    body: object = None,
    headers: dict[str, str] | None = None,
    timeout_s: float = 60.0,
) -> Reply:
    """One request on a connection of its own; a body that is not bytes goes as JSON, and all say so."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        given = {"Content-Type": "application/json"} if data else {}
        connection.request(method, path, data, given | (headers or {}))
        response = connection.getresponse()
        return Reply(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
    finally:
        connection.close()


def infer_body(
    *rows: str, name: str = "text", outputs: tuple[str, ...] = (), **parameters: Any
) -> dict[str, Any]:
    """The JSON form of an infer request with one BYTES column."""
    body: dict[str, Any] = {
        "inputs": [{"name": name, "datatype": "BYTES", "shape": [len(rows)], "data": list(rows)}],
        "parameters": parameters,
    }
    if outputs:
        body["outputs"] = [{"name": output} for output in outputs]
    return body


def metric(port: int, name: str, **labels: str) -> float:
    """The value of a Prometheus sample; 0 if there is none."""
    for line in call(port, "GET", "/metrics").body.decode().splitlines():
        if line.startswith(name) and all(f'{key}="{value}"' in line for key, value in labels.items()):
            return float(line.rpartition(" ")[2])
    return 0.0
