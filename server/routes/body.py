"""Reading a request's body, and no more of it than is allowed.

ASGI alone, no framework: the infer route has nothing between it and the socket. Knows limits and
encodings, not what a body means.
"""

from __future__ import annotations

import zlib
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import TYPE_CHECKING, Any

from server.errors import BadOption, BodyTooLarge, Unsupported

if TYPE_CHECKING:
    from starlette.requests import Request

__all__ = ["ClientGone", "Receive", "Scope", "Send", "header", "json_object", "read_body", "too_large"]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class ClientGone(Exception):
    """The client hung up; nobody is left to be told anything."""


def header(scope: Scope, name: bytes) -> str | None:
    """The value of a header, `name` in lower case; None if it is absent."""
    headers: Iterable[tuple[bytes, bytes]] = scope["headers"]
    for key, value in headers:
        if key == name:
            return value.decode("latin-1")
    return None


async def read_body(scope: Scope, receive: Receive, limit_bytes: int) -> bytes:
    """The whole body, decompressed.

    Raises `BodyTooLarge` before more than `limit_bytes` of it are kept, `ClientGone`, `Unsupported` for an
    encoding other than gzip and deflate, `BadOption` for a body that is not what its encoding says.
    """
    announced = header(scope, b"content-length")
    if announced is not None and announced.isdigit() and int(announced) > limit_bytes:
        raise too_large(limit_bytes)
    encoding = header(scope, b"content-encoding")
    message = await receive()
    if not message.get("more_body") and message["type"] == "http.request":
        body: bytes = message.get("body", b"")
        if len(body) > limit_bytes:
            raise too_large(limit_bytes)
        return body if encoding is None else _decompressed([body], encoding, limit_bytes)
    parts: list[bytes] = []
    size = 0
    while True:
        if message["type"] == "http.disconnect":
            raise ClientGone
        part = message.get("body", b"")
        size += len(part)
        if size > limit_bytes:
            raise too_large(limit_bytes)
        parts.append(part)
        if not message.get("more_body"):
            break
        message = await receive()
    return b"".join(parts) if encoding is None else _decompressed(parts, encoding, limit_bytes)


async def json_object(request: Request) -> dict[str, Any]:
    """The body as a JSON object, whatever its content type says: `curl -d` calls it a form.

    Raises `BadOption`.
    """
    try:
        content = await request.json()
    except (ValueError, RecursionError) as exc:
        raise BadOption(f"the body is not JSON: {exc}") from exc
    if not isinstance(content, dict):
        raise BadOption("the body must be a JSON object")
    return content


def _decompressed(parts: Iterable[bytes], encoding: str, limit_bytes: int) -> bytes:
    name = encoding.strip().lower()
    if name == "identity":
        return b"".join(parts)
    if name not in {"gzip", "deflate"}:
        raise Unsupported(f"the content encoding {encoding[:40]!r} is not known; there are gzip and deflate")
    inflater = zlib.decompressobj(zlib.MAX_WBITS | 32)  # either header
    out: list[bytes] = []
    size = 0
    try:
        for part in parts:
            # One byte over the limit is enough to know; a bomb is not blown up.
            out.append(inflater.decompress(part, limit_bytes - size + 1))
            size += len(out[-1])
            if size > limit_bytes:
                raise too_large(limit_bytes)
    except zlib.error as exc:
        raise BadOption(f"the body is not {name}: {exc}") from exc
    if not inflater.eof:
        raise BadOption(f"the body ends in the middle of its {name} stream")
    return b"".join(out)


def too_large(limit_bytes: int) -> BodyTooLarge:
    """What a body over the limit is refused with."""
    return BodyTooLarge(
        f"the request's body is over the limit of {limit_bytes} bytes; send fewer rows at a time"
    )
