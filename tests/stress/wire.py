"""One HTTP/1.1 connection, byte by byte: for callers that send slowly, in parts, or rubbish."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

__all__ = ["Connection", "NoAnswer", "Reply", "infer_request", "request"]


class NoAnswer(Exception):
    """The connection ended, or nothing came in time."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back."""

    status: int
    body: bytes

    @property
    def code(self) -> str:
        """`200`, or the code of the error's text."""
        if self.status == 200:
            return "200"
        try:
            return f"{self.status} {json.loads(self.body)['error'].partition(':')[0]}"
        except (ValueError, KeyError, TypeError, AttributeError):
            return str(self.status)

    def labels(self) -> list[str]:
        """The answers of an infer request."""
        outputs = {output["name"]: output["data"] for output in json.loads(self.body)["outputs"]}
        return list(outputs["label"])


class Connection:
    """Open it with `await Connection.to(port)`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.is_open = True

    @classmethod
    async def to(cls, port: int) -> Connection:
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 26))

    async def send(self, data: bytes) -> None:
        """Raises `NoAnswer`."""
        try:
            self._writer.write(data)
            await self._writer.drain()
        except OSError as exc:
            self.close()
            raise NoAnswer(f"while sending: {exc}") from exc

    async def reply(self, within_s: float) -> Reply:
        """Raises `NoAnswer`."""
        try:
            return await asyncio.wait_for(self._reply(), within_s)
        except (OSError, asyncio.IncompleteReadError, ValueError) as exc:
            self.close()
            raise NoAnswer(f"{type(exc).__name__}: {exc}") from exc
        except TimeoutError as exc:
            self.close()
            raise NoAnswer(f"nothing within {within_s:g} s") from exc

    def close(self) -> None:
        self.is_open = False
        self._writer.close()

    def abort(self) -> None:
        """Go as a process does that was killed."""
        self.is_open = False
        self._writer.transport.abort()

    async def _reply(self) -> Reply:
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
        headers = dict(line.split(": ", 1) for line in head[1:] if ": " in line)
        body = await self._reader.readexactly(int(headers.get("content-length", "0")))
        if headers.get("connection") == "close":
            self.close()
        return Reply(int(head[0].split()[1]), body)


def request(path: str, body: bytes, method: str = "POST") -> bytes:
    """A whole request."""
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def infer_request(function: str, rows: list[str], **parameters: Any) -> bytes:
    """Rows of text for a function."""
    body = {
        "inputs": [{"name": "text", "datatype": "BYTES", "shape": [len(rows)], "data": rows}],
        "outputs": [{"name": "label"}],
        "parameters": parameters,
    }
    return request(f"/v2/models/{function}/infer", json.dumps(body).encode())
