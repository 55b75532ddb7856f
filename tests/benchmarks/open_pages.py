"""`python -m tests.benchmarks.open_pages URL COUNT`: so many pages held open, their streams read.

As a browser does it, without the browser: each asks for the page, then for its stream of events. It says
`open` once all are, and ends with its standard input.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urljoin, urlsplit

__all__ = ["pages_open"]

_LIVE = re.compile(rb'data-live="([^"]+)"')
_ENDS_S = 10.0


@contextlib.contextmanager
def pages_open(url: str, count: int) -> Iterator[None]:
    """They are open for the length of a `with` block, in a process of their own. Raises RuntimeError."""
    command = [sys.executable, "-m", "tests.benchmarks.open_pages", url, str(count)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        if child.stdout.readline() != b"open\n":
            raise RuntimeError(f"{url} could not be opened {count} times")
        yield
        if child.poll() is not None:
            raise RuntimeError("a page was lost")
    finally:
        child.stdin.close()
        try:
            child.wait(_ENDS_S)
        finally:
            child.kill()
            child.wait()
            child.stdout.close()


async def _ask(url: str, path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(head.decode(errors="replace"))
    return reader, writer


async def _page(url: str, opened: asyncio.Queue[None]) -> None:
    reader, writer = await _ask(url, urlsplit(url).path)
    found = None
    text = b""
    while found is None:
        part = await reader.read(1 << 16)
        text += part
        found = _LIVE.search(text)
        if not part:
            raise RuntimeError(f"{url} is no live page")
    writer.close()
    stream, _ = await _ask(url, urlsplit(urljoin(url, found[1].decode())).path)
    await stream.readuntil(b"\n\n")
    opened.put_nowait(None)
    while await stream.read(1 << 16):
        pass
    raise RuntimeError("a stream ended")


async def _main(url: str, count: int) -> None:
    opened: asyncio.Queue[None] = asyncio.Queue()
    over = asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)
    pages = [asyncio.create_task(_page(url, opened)) for _ in range(count)]
    for _ in pages:
        await _unless_lost(asyncio.ensure_future(opened.get()), pages)
    print("open", flush=True)
    await _unless_lost(over, pages)
    for page in pages:
        page.cancel()


async def _unless_lost(event: asyncio.Future[Any], pages: Sequence[asyncio.Task[None]]) -> None:
    """Wait for an event; raises what ended a page meanwhile."""
    waiting: list[asyncio.Future[Any]] = [event, *pages]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for page in pages:
        if page.done():
            page.result()


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], int(sys.argv[2])))
