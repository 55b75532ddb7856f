"""Pages that stay up to date: one ticker, and each distinct view rendered once for all who watch it.

    tick → view of the server's state (on the event loop, cheap) → HTML (in a thread)
         → the parts that changed, encoded once → the queue of every page that shows the view

A stream ends when the server drains. Knows no page, and nobody who looks.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Hashable, Mapping
from dataclasses import dataclass, field
from inspect import isawaitable
from typing import Any

from server.errors import ServiceError
from server.supervision import Tasks

__all__ = ["Live"]

_EVERY_S = 1.0
_WAITING = 4  # messages that a slow page may be behind; then it gets everything anew
_SILENT_S = 15.0  # a proxy closes what says nothing for long

ViewOf = Callable[[], Any]
Render = Callable[[Any], Mapping[str, str]]


@dataclass(eq=False, slots=True)
class _Watcher:
    queue: asyncio.Queue[bytes | None] = field(default_factory=lambda: asyncio.Queue(_WAITING + 1))
    is_behind: bool = True  # has not got the parts as they were at the last tick

    def end(self) -> None:
        while not self.queue.empty():
            self.queue.get_nowait()
        self.queue.put_nowait(None)


@dataclass(eq=False, slots=True)
class _Shown:
    """One view, and who watches it."""

    view_of: ViewOf
    render: Render
    every: int  # ticks
    watchers: set[_Watcher] = field(default_factory=set)
    parts: Mapping[str, str] = field(default_factory=dict)
    due: int = 0


class Live:
    """The streams of all open pages. On one event loop."""

    def __init__(self, tasks: Tasks | None = None, every_s: float = _EVERY_S) -> None:
        self._tasks = tasks or Tasks()
        self._every_s = every_s
        self._shown: dict[Hashable, _Shown] = {}
        self._ticking: asyncio.Task[None] | None = None
        self._closed = False

    async def close(self) -> None:
        """End every stream, and those to come."""
        self.end()
        await self._tasks.close()

    def end(self) -> None:
        """End every stream; the browsers come back once the server is there again."""
        self._closed = True
        for shown in self._shown.values():
            for watcher in shown.watchers:
                watcher.end()

    @property
    def watching(self) -> int:
        """Streams that are open."""
        return sum(len(shown.watchers) for shown in self._shown.values())

    async def watch(
        self,
        key: Hashable,
        view_of: ViewOf,
        render: Render,
        *,
        every: int = 1,
    ) -> AsyncIterator[bytes]:
        """Server-sent events: the parts of a view, by their element's id, whenever they have changed.

        key: watchers who give the same one see the same. view_of: called on the event loop, returns plain
        values, or what gives them once it is awaited; render: called in a thread. every: so many ticks pass
        between two looks.
        """
        if self._closed:
            return
        shown = self._shown.setdefault(key, _Shown(view_of, render, every))
        watcher = _Watcher()
        shown.watchers.add(watcher)
        shown.due = 0
        if self._ticking is None or self._ticking.done():
            self._ticking = self._tasks.always("live pages", self._tick)
        try:
            yield b"retry: 1000\n\n"
            while not self._closed:
                try:
                    async with asyncio.timeout(_SILENT_S):
                        message = await watcher.queue.get()
                except TimeoutError:
                    message = b":\n\n"
                if message is None:
                    break
                yield message
        finally:
            shown.watchers.discard(watcher)
            if not shown.watchers and self._shown.get(key) is shown:
                del self._shown[key]

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        while self._shown and not self._closed:
            began_s = loop.time()
            for shown in list(self._shown.values()):
                await self._show(shown)
            await asyncio.sleep(max(0.0, self._every_s - (loop.time() - began_s)))

    async def _show(self, shown: _Shown) -> None:
        shown.due -= 1
        if shown.due > 0 or not shown.watchers:
            return
        shown.due = shown.every
        try:
            view = shown.view_of()
            if isawaitable(view):
                view = await view
        except ServiceError:  # what it shows is no more
            for watcher in shown.watchers:
                watcher.end()
            return
        parts = await asyncio.to_thread(shown.render, view)
        changed = {id: text for id, text in parts.items() if shown.parts.get(id) != text}
        shown.parts = parts
        news = _event(changed) if changed else b""
        whole = b""
        for watcher in shown.watchers:
            if watcher.queue.qsize() >= _WAITING:
                watcher.is_behind = True
            elif watcher.is_behind:
                whole = whole or _event(parts)
                watcher.is_behind = False
                watcher.queue.put_nowait(whole)
            elif news:
                watcher.queue.put_nowait(news)


def _event(parts: Mapping[str, str]) -> bytes:
    return f"data: {json.dumps(parts, separators=(',', ':'))}\n\n".encode()
