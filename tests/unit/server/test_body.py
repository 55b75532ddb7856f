"""Compressed bodies are unpacked, and never further than allowed."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from typing import Any

import pytest
from starlette.requests import Request

from server.errors import BadOption, BodyTooLarge, ServiceError, Unsupported
from server.http.body import decompressed, json_object
from server.http.large_json import LargeJson


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_a_compressed_body_is_unpacked(encoding: str, pack: Any) -> None:
    packed = pack(b"hello")
    assert decompressed([packed[:4], packed[4:]], encoding, 100) == b"hello"


def test_identity_is_no_encoding() -> None:
    assert decompressed([b"he", b"llo"], " Identity", 5) == b"hello"


def test_a_bomb_is_not_blown_up() -> None:
    with pytest.raises(BodyTooLarge):
        decompressed([gzip.compress(bytes(10_000_000))], "gzip", 100_000)


@pytest.mark.parametrize(
    ("body", "encoding", "error"),
    [
        (b"not packed", "gzip", BadOption),
        (gzip.compress(b"hello", mtime=0)[:-9], "gzip", BadOption),
        (b"x", "br", Unsupported),
    ],
)
def test_a_body_that_is_not_what_its_encoding_says_is_refused(
    body: bytes, encoding: str, error: type[ServiceError]
) -> None:
    with pytest.raises(error):
        decompressed([body], encoding, 100)


def read_json(body: bytes, **wish: bool) -> dict[str, Any]:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    return asyncio.run(json_object(Request({"type": "http", "headers": []}, receive), **wish))


def test_json_is_an_object_and_nothing_only_where_that_is_allowed() -> None:
    assert read_json(b'{"a": 1}') == {"a": 1}
    assert read_json(b"", may_be_empty=True) == {}
    for wrong in (b"", b"[1]", b"{", b"[" * 100_000):
        with pytest.raises(BadOption):
            read_json(wrong)


@pytest.mark.security
@pytest.mark.parametrize(
    "value",
    [b"1e400", b"-Infinity", b"NaN", b'"\\ud800"', b'"a\\u0000"', b'"\\\\\\u0000"', b'"\xed\xa0\x80"'],
)
def test_json_that_others_could_not_read_again_is_refused(value: bytes) -> None:
    for wrong in (value, b'[{"deep": ' + value + b"}]"):
        with pytest.raises(BadOption):
            read_json(b'{"a": ' + wrong + b"}")


def test_json_of_any_text_is_read() -> None:
    told = {"a": "\\u0000 is no NUL", "\u00e9\U0001f355": ["\t\n", 1e308, -1]}
    for body in (json.dumps(told), json.dumps(told, ensure_ascii=False)):
        assert read_json(body.encode()) == told


@pytest.mark.security
def test_json_that_would_stop_the_event_loop_for_long_is_refused() -> None:
    text = b'{"a": "' + b"x" * (1 << 20) + b'"}'
    with pytest.raises(BodyTooLarge):
        read_json(text)


@pytest.mark.security
def test_json_of_any_size_is_read_where_it_stops_nobody() -> None:
    bodies = (b'{"a": 1}', b'{"a": "' + b"x" * (1 << 20) + b'"}')
    wrong = (b"[1]", b"x" * (2 << 20), b"[" * (2 << 20), b'["' + b"x" * (2 << 20) + b'"]')

    async def read(large: LargeJson, body: bytes) -> dict[str, Any]:
        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        return await large.json_object(Request({"type": "http", "headers": []}, receive))

    async def scenario() -> None:
        large = LargeJson()
        try:
            assert [len(str((await read(large, body))["a"])) for body in bodies] == [1, 1 << 20]
            for body in wrong:
                with pytest.raises(BadOption, match=r"JSON"):
                    await read(large, body)
        finally:
            large.close()

    asyncio.run(scenario())
