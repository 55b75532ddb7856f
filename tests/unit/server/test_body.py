"""Bodies are read whole, and never further than allowed."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import MutableMapping
from typing import Any

import pytest

from server.errors import BadOption, BodyTooLarge, ServiceError, Unsupported
from server.routes.body import ClientGone, read_body


def read(*messages: dict[str, Any], limit: int = 100, **headers: str) -> bytes:
    scope = {"headers": [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()]}
    waiting = list(messages)

    async def receive() -> MutableMapping[str, Any]:
        return waiting.pop(0)

    return asyncio.run(read_body(scope, receive, limit))


def part(body: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


def test_a_body_in_one_piece_or_in_many_is_the_same() -> None:
    assert read(part(b"abc")) == b"abc"
    assert read(part(b"a", more=True), part(b"", more=True), part(b"bc")) == b"abc"


def test_an_announced_size_over_the_limit_is_refused_before_a_byte_is_read() -> None:
    with pytest.raises(BodyTooLarge):
        read(content_length="101")


def test_a_body_that_grows_over_the_limit_is_refused_when_it_does() -> None:
    with pytest.raises(BodyTooLarge):
        read(part(b"x" * 60, more=True), part(b"x" * 60, more=True))
    with pytest.raises(BodyTooLarge):
        read(part(b"x" * 101))


def test_a_client_that_goes_in_the_middle_is_noticed() -> None:
    with pytest.raises(ClientGone):
        read(part(b"x", more=True), {"type": "http.disconnect"})


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_a_compressed_body_is_unpacked(encoding: str, pack: Any) -> None:
    packed = pack(b"hello")
    assert read(part(packed[:4], more=True), part(packed[4:]), content_encoding=encoding) == b"hello"


def test_a_bomb_is_not_blown_up() -> None:
    with pytest.raises(BodyTooLarge):
        read(part(gzip.compress(bytes(10_000_000))), limit=100_000, content_encoding="gzip")


@pytest.mark.parametrize(
    ("body", "encoding", "error"),
    [
        (b"not packed", "gzip", BadOption),
        (gzip.compress(b"hello")[:-9], "gzip", BadOption),
        (b"x", "br", Unsupported),
    ],
)
def test_a_body_that_is_not_what_its_encoding_says_is_refused(
    body: bytes, encoding: str, error: type[ServiceError]
) -> None:
    with pytest.raises(error):
        read(part(body), content_encoding=encoding)
