"""The head of an HTTP/1.1 request, and the chunks of its body: the one parser, for every way a request takes.

Strict where RFC 9112 lets a server choose: what two parsers may read in two ways is refused, since behind
it a second request can be hidden from whoever stands in between. A line ends with CR LF and nothing else;
a length is told once and in one way; names are tokens, values printable. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

__all__ = [
    "MAX_HEAD_BYTES",
    "ChunkedBody",
    "Head",
    "MalformedRequest",
    "SizedBody",
    "check_part",
    "parse_head",
    "too_long",
]

MAX_HEAD_BYTES = 32 << 10

_HEAD = re.compile(
    rb"(GET|HEAD|POST|PUT|PATCH|DELETE|OPTIONS) (/[\x21-\x7e]*) HTTP/1\.([01])\r\n"
    rb"((?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*\r\n)*)\r\n"
)
_LONE = re.compile(rb"(?<!\r)\n|\r[^\n]|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
# What decides how a request is read or who may send it, and so may be told only once.
_ONCE = frozenset(
    (
        b"authorization",
        b"connection",
        b"content-encoding",
        b"content-length",
        b"content-type",
        b"expect",
        b"host",
        b"inference-header-content-length",
        b"ml-udf-database",
        b"ml-udf-job",
        b"ml-udf-user",
        b"origin",
        b"transfer-encoding",
    )
)
_LONGEST_LENGTH = 15  # digits
_CHUNK_SIZE = re.compile(rb"[0-9A-Fa-f]{1,12}")
_LONGEST_SIZE_LINE = 14


class MalformedRequest(Exception):
    """Not a request that is taken here; the connection cannot go on."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


@dataclass(frozen=True, slots=True)
class Head:
    """A head that was read. Names of `headers` are in lower case; of one that came twice, the first value.

    length: of the body in bytes; None where it comes in chunks
    lines: every header in its order, as ASGI wants them
    """

    method: str
    target: bytes
    http_1_0: bool
    headers: Mapping[bytes, bytes]
    lines: list[tuple[bytes, bytes]]
    length: int | None
    keep_alive: bool


def parse_head(raw: bytes) -> Head:
    """`raw` is everything up to the empty line, that line included. Raises `MalformedRequest`."""
    match = _HEAD.fullmatch(raw)
    if match is None:
        raise MalformedRequest(400, "this is not a request of HTTP/1.1")
    method, target, minor, fields = match.groups()
    headers: dict[bytes, bytes] = {}
    lines: list[tuple[bytes, bytes]] = []
    has_tabs = b"\t" in fields
    for line in fields.split(b"\r\n")[:-1]:
        name, _, value = line.partition(b":")
        name = name.lower()
        if has_tabs and b"\t" in value and name in _ONCE:  # white space, or not: opinions differ
            raise MalformedRequest(400, f"the header {name.decode('ascii')!r} holds a tab")
        value = value.strip(b" \t")
        lines.append((name, value))
        if name not in headers:
            headers[name] = value
        elif name in _ONCE:
            raise MalformedRequest(400, f"the header {name.decode('ascii')!r} came twice")
    http_1_0 = minor == b"0"
    if not http_1_0 and b"host" not in headers:
        raise MalformedRequest(400, "the header 'host' is missing")
    keep_alive = not http_1_0
    wish = headers.get(b"connection")
    if wish is not None and b"close" in wish.lower():
        keep_alive = False
    return Head(
        method.decode("ascii"), target, http_1_0, headers, lines, _length(headers, http_1_0), keep_alive
    )


def check_part(raw: bytes | bytearray, start: int = 0) -> None:
    """Whether the beginning of a head can still become one. Raises `MalformedRequest`.

    `start`: what lies before was looked at already.
    """
    if _LONE.search(raw, max(0, start - 1)) is not None:
        raise MalformedRequest(400, "this is not a request of HTTP/1.1")
    if len(raw) > MAX_HEAD_BYTES:
        raise too_long()


def too_long() -> MalformedRequest:
    """What a head over the limit is refused with."""
    return MalformedRequest(431, f"the request's head is over the limit of {MAX_HEAD_BYTES} bytes")


def _length(headers: Mapping[bytes, bytes], http_1_0: bool) -> int | None:
    raw = headers.get(b"content-length")
    coding = headers.get(b"transfer-encoding")
    if coding is not None:
        if raw is not None:
            raise MalformedRequest(400, "a body has a length or comes in chunks, not both")
        if http_1_0 or coding.lower() != b"chunked":
            raise MalformedRequest(501, "there is no transfer encoding here but 'chunked'")
        return None
    if raw is None:
        return 0
    if not raw.isdigit() or len(raw) > _LONGEST_LENGTH:
        raise MalformedRequest(400, "the header 'content-length' is not a whole number")
    return int(raw)


class SizedBody:
    """A body of known length, read as `ChunkedBody` are."""

    def __init__(self, length: int) -> None:
        self.ended = length == 0
        self.rest = b""
        self._left = length

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield what of `data` is the body's; what lies behind its end is in `rest`."""
        part = data[: self._left]
        self._left -= len(part)
        self.ended = not self._left
        if self.ended:
            self.rest = data[len(part) :]
        if part:
            yield part


class ChunkedBody:
    """The body of a request in chunks (RFC 9112 §7.1), without extensions and trailers.

    `ended` once the last chunk was read.
    """

    def __init__(self) -> None:
        self.ended = False
        self.rest = b""
        self._left = 0  # bytes of the chunk under way, and 2 of the line end after it
        self._line = b""  # a size line that is not whole
        self._last = False  # the chunk of size 0 was read; an empty line ends the body

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the parts of the body in `data`; what lies behind its end is in `rest`.

        Raises `MalformedRequest`.
        """
        at = 0
        while at < len(data) and not self.ended:
            if self._left > 2:
                part = data[at : at + self._left - 2]
                at += len(part)
                self._left -= len(part)
                yield part
            elif self._left:
                self._line_end(data[at])
                self._left -= 1
                at += 1
            else:
                at = self._size_line(data, at)
        if self.ended:
            self.rest = data[at:]

    def _line_end(self, byte: int) -> None:
        if byte != (13 if self._left == 2 else 10):
            raise MalformedRequest(400, "a chunk of the body does not end where it says")
        if self._left == 1 and self._last:
            self.ended = True

    def _size_line(self, data: bytes, at: int) -> int:
        end = data.find(b"\n", at)
        self._line += data[at : end + 1 if end >= 0 else len(data)]
        if len(self._line) > _LONGEST_SIZE_LINE or (
            end >= 0 and not (self._line.endswith(b"\r\n") and _CHUNK_SIZE.fullmatch(self._line[:-2]))
        ):
            raise MalformedRequest(400, "a chunk of the body does not say its size in one hexadecimal number")
        if end < 0:
            return len(data)
        size = int(self._line[:-2], 16)
        self._line = b""
        self._last = size == 0
        self._left = size + 2
        return end + 1
