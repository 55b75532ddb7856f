"""Streams of pages: each view is made once for all, and every stream ends when it should."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from server.dashboard.live import Live
from server.errors import UnknownFunction

PATIENCE_S = 90.0


class View:
    """A number, and how often it was looked at and rendered."""

    def __init__(self) -> None:
        self.value, self.views, self.renders = 0, 0, 0

    def __call__(self) -> int:
        self.views += 1
        return self.value

    def render(self, value: int) -> Mapping[str, str]:
        self.renders += 1
        return {"number": f"<b>{value}</b>", "title": "always the same"}


async def told(stream: AsyncIterator[bytes]) -> dict[str, str]:
    """The next parts that are sent."""
    async with asyncio.timeout(PATIENCE_S):
        async for message in stream:
            if message.startswith(b"data: "):
                found: dict[str, str] = json.loads(message[6:])
                return found
    raise AssertionError("the stream has ended")


async def ends(stream: AsyncIterator[bytes]) -> bool:
    async with asyncio.timeout(PATIENCE_S):
        async for _ in stream:
            pass
    return True


def run(work: Callable[[Live], Any], every_s: float = 0.01) -> None:
    async def whole() -> None:
        live = Live(every_s=every_s)
        try:
            await work(live)
        finally:
            await live.close()

    asyncio.run(whole())


def test_a_page_gets_everything_first_and_then_what_has_changed() -> None:
    async def work(live: Live) -> None:
        view = View()
        stream = live.watch("v", view, view.render)
        assert await told(stream) == {"number": "<b>0</b>", "title": "always the same"}
        view.value = 1
        assert await told(stream) == {"number": "<b>1</b>"}

    run(work)


def test_fifty_pages_cost_one_rendering_a_tick() -> None:
    async def work(live: Live) -> None:
        view = View()
        streams = [live.watch("v", view, view.render) for _ in range(50)]
        await asyncio.gather(*map(told, streams))
        before = view.renders
        for value in range(1, 6):
            view.value = value
            found = await asyncio.gather(*map(told, streams))
            assert found == [{"number": f"<b>{value}</b>"}] * 50
        assert live.watching == 50
        assert view.renders - before < 50

    run(work, every_s=0.05)


def test_other_views_are_made_by_themselves() -> None:
    async def work(live: Live) -> None:
        mine, yours = View(), View()
        yours.value = 7
        streams = live.watch("mine", mine, mine.render), live.watch("yours", yours, yours.render)
        first, second = await asyncio.gather(*map(told, streams))
        assert (first["number"], second["number"]) == ("<b>0</b>", "<b>7</b>")

    run(work)


def test_every_stream_ends_when_the_server_drains_and_new_ones_end_at_once() -> None:
    async def work(live: Live) -> None:
        view = View()
        streams = [live.watch("v", view, view.render) for _ in range(3)]
        await asyncio.gather(*map(told, streams))
        live.end()
        assert await asyncio.gather(*map(ends, streams)) == [True] * 3
        assert await ends(live.watch("v", view, view.render))

    run(work)


def test_what_is_no_more_ends_its_own_streams_alone() -> None:
    async def work(live: Live) -> None:
        view = View()

        def gone() -> int:
            raise UnknownFunction("there is no function 'f' here")

        other = live.watch("other", view, view.render)
        assert await ends(live.watch("f", gone, view.render))
        assert await told(other)

    run(work)


def test_a_page_that_reads_too_slowly_holds_nobody_up_and_gets_everything_anew() -> None:
    async def work(live: Live) -> None:
        view = View()
        slow, quick = live.watch("v", view, view.render), live.watch("v", view, view.render)
        await asyncio.gather(told(slow), told(quick))
        for value in range(1, 12):
            view.value = value
            assert await told(quick) == {"number": f"<b>{value}</b>"}
        found = await told(slow)
        while "title" not in found:
            found = await told(slow)
        assert found["number"] == "<b>11</b>"

    run(work)


def test_nothing_is_looked_at_once_nobody_watches() -> None:
    async def work(live: Live) -> None:
        view = View()
        stream = live.watch("v", view, view.render)
        await told(stream)
        await stream.aclose()  # type: ignore[attr-defined]
        assert live.watching == 0
        await asyncio.sleep(0.05)
        before = view.views
        await asyncio.sleep(0.1)
        assert view.views == before
        again = live.watch("v", view, view.render)
        assert await told(again)

    run(work)
