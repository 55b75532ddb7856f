"""Reading a request's body, and no more of it than is allowed.

Knows limits and encodings, not what a body means.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import TYPE_CHECKING, Any

from server.errors import BadOption, BodyTooLarge, Unsupported
from server.kept_json import check_kept

if TYPE_CHECKING:
    from starlette.requests import Request

__all__ = [
    "JSON_BYTES",
    "ClientGone",
    "Receive",
    "Scope",
    "Send",
    "content_type_of",
    "decompressed",
    "json_object",
    "object_in",
    "too_large",
]

JSON_BYTES = 1 << 20  # of the JSON of every route but infer and feedback

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class ClientGone(Exception):
    """The client hung up; nobody is left to be told anything."""


def content_type_of(request: Request) -> str:
    """What a body is said to be, in lower case and without parameters; "" where nothing is said."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def json_object(request: Request, *, may_be_empty: bool = False) -> dict[str, Any]:
    """The body as a JSON object. Raises `BadOption`, `BodyTooLarge`.

    Read on the event loop, which does nothing else meanwhile: hence the limit.
    """
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > JSON_BYTES:
            raise BodyTooLarge(f"the request's JSON is over the limit of {JSON_BYTES} bytes")
        parts.append(part)
    content = object_in(b"".join(parts) or (b"{}" if may_be_empty else b""))
    check_kept(content, "the body")
    return content


def object_in(body: bytes) -> dict[str, Any]:
    """A JSON object. Raises `BadOption` for what is none."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as exc:
        raise BadOption(f"the body is not JSON: {exc}") from exc
    if not isinstance(content, dict):
        raise BadOption("the body must be a JSON object")
    return content


def decompressed(parts: Iterable[bytes], encoding: str, limit_bytes: int) -> bytes:
    """A body without its content encoding. Blocking: some 0.2 s for 64 MiB.

    Raises `BodyTooLarge` before more than `limit_bytes` of it are kept, `Unsupported` for an encoding other
    than gzip and deflate, `BadOption` for a body that is not what its encoding says.
    """
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
