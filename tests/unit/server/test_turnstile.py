"""Requests that come together: some get in at each turn of the loop; who would be late is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from server.shortcut import Reply, WholeRequest
from server.turnstile import Turnstile


@dataclass
class Route:
    """Notes who got in."""

    entered: list[bytes] = field(default_factory=list)
    left: list[bytes] = field(default_factory=list)
    refused: list[bytes] = field(default_factory=list)

    def answer(self, whole: WholeRequest, reply: Reply) -> Inside:
        self.entered.append(whole.body)
        return Inside(self, whole.body)

    def goal_s(self, whole: WholeRequest) -> float:
        return 1.0

    def refuse(self, whole: WholeRequest, reply: Reply) -> None:
        self.refused.append(whole.body)


@dataclass
class Inside:
    route: Route
    name: bytes

    def leave(self) -> None:
        self.route.left.append(self.name)


def request(number: int, came_s: float = 0.0) -> WholeRequest:
    return WholeRequest("/v2/models/f/infer", {}, b"%d" % number, came_s)


def reply(status: int, body: bytes, headers: Mapping[str, str]) -> None:
    raise AssertionError("the turnstile itself never replies")


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_so_many_get_in_at_each_turn_in_the_order_they_came():
    async def scene() -> Route:
        route = Route()
        turnstile = Turnstile(route, most=2)
        for number in range(5):
            turnstile.answer(request(number), reply)
        for inside in (2, 4, 5):
            assert len(route.entered) == inside
            await turns(1)
        turnstile.answer(request(5), reply)
        return route

    assert asyncio.run(scene()).entered == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_who_came_while_the_line_had_stood_too_long_is_refused_and_the_line_goes_on():
    async def scene() -> Route:
        route = Route()
        turnstile = Turnstile(route, most=1)
        for number, came_s in enumerate((0.0, 0.0, 0.2, 0.9)):
            turnstile.answer(request(number, came_s), reply)
        await turns(4)
        return route

    route = asyncio.run(scene())
    assert route.refused == [b"3"]
    assert route.entered == [b"0", b"1", b"2"]


def test_who_leaves_the_line_is_never_let_in_and_who_leaves_inside_is_told_to_the_route():
    async def scene() -> Route:
        route = Route()
        turnstile = Turnstile(route, most=1)
        places = [turnstile.answer(request(number), reply) for number in range(4)]
        for number in (1, 2):
            place = places[number]
            assert place is not None
            if number == 1:
                place.leave()
        await turns(3)
        assert places[2] is not None
        places[2].leave()
        return route

    route = asyncio.run(scene())
    assert route.entered == [b"0", b"2", b"3"]
    assert route.left == [b"2"]
