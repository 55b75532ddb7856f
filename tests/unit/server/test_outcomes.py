"""What is under way ends once, and whoever listens, or awaits it, hears how."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from server.serving.outcomes import Outcomes, UnderWay
from tests.unit.server.fake_worker import settle


class Heard:
    def __init__(self) -> None:
        self.outcomes = Outcomes()
        self.told: list[tuple[str, Any]] = []

    def begin(self, name: str) -> UnderWay[str]:
        one: UnderWay[str] = UnderWay(self.outcomes)
        one.listen(self.hear, name)
        return one

    def hear(self, one: UnderWay[str], name: str) -> None:
        self.told.append((name, one.outcome))


def test_its_listener_hears_once_and_never_while_it_ends() -> None:
    async def scenario() -> None:
        heard, error = Heard(), ValueError("no")
        first, second = heard.begin("first"), heard.begin("second")
        second.fail(error)
        first.finish("yes")
        second.finish("too late")
        assert heard.told == []
        assert first.done
        await settle()
        assert heard.told == [("second", error), ("first", "yes")]
        assert first.result == "yes"
        with pytest.raises(ValueError, match="no"):
            _ = second.result

    asyncio.run(scenario())


def test_what_ended_before_anybody_listened_is_told_too() -> None:
    async def scenario() -> None:
        heard = Heard()
        one: UnderWay[str] = UnderWay(heard.outcomes)
        one.finish("yes")
        one.listen(heard.hear, "late")
        assert heard.told == []
        await settle()
        assert heard.told == [("late", "yes")]

    asyncio.run(scenario())


def test_what_is_cancelled_is_told_to_nobody_but_ends_who_awaits_it() -> None:
    async def scenario() -> None:
        heard = Heard()
        one = heard.begin("one")
        future = one.future
        one.cancel()
        one.finish("too late")
        await settle()
        assert heard.told == []
        assert one.done
        assert future.cancelled()
        assert one.future is future

    asyncio.run(scenario())


def test_who_awaits_it_has_the_outcome_before_and_after_it_is_there() -> None:
    async def scenario() -> None:
        heard = Heard()
        early, late = heard.begin("early"), heard.begin("late")
        future = early.future
        early.finish("yes")
        late.fail(ValueError("no"))
        assert await future == "yes"
        with pytest.raises(ValueError, match="no"):
            await late.future
        gave_up = heard.begin("gave up")
        gave_up.future.cancel()
        assert not gave_up.done  # who awaited it went; it goes on
        gave_up.finish("yes")
        await settle()
        assert heard.told[-1] == ("gave up", "yes")

    asyncio.run(scenario())


def test_a_listener_that_fails_is_reported_and_spoils_no_other() -> None:
    async def scenario() -> None:
        heard = Heard()
        reported: list[Any] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: reported.append(context["exception"]))
        broken: UnderWay[str] = UnderWay(heard.outcomes)
        error = RuntimeError("a bug")

        def fail(one: UnderWay[str], name: str) -> None:
            raise error

        broken.listen(fail, "broken")
        broken.finish("yes")
        heard.begin("other").finish("yes")
        await settle()
        assert reported == [error]
        assert heard.told == [("other", "yes")]

    asyncio.run(scenario())
