"""Requests that come together: some get in at each turn, by goal; who would be late is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from server.http.application import AlikeRequests, Reply, WholeRequest
from server.http.backpressure import Backpressure, RequestHint


@dataclass
class Route:
    """Notes who got in. A request's path is its function, its headers what it claims."""

    entered: list[bytes] = field(default_factory=list)
    left: list[bytes] = field(default_factory=list)
    refused: list[bytes] = field(default_factory=list)
    most_together: int = 1000
    together: list[int] = field(default_factory=list)

    def answer(self, whole: WholeRequest, reply: Reply) -> Inside:
        self.entered.append(whole.body)
        return Inside(self, whole.body)

    def answer_alike(self, alike: AlikeRequests, places: Sequence[int]) -> InsideTogether | None:
        if len(places) > self.most_together:
            return None
        self.entered += [alike.rows[place] for place in places]
        self.together.append(len(places))
        return InsideTogether(self)

    def takes(self, path: str) -> bool:
        return True

    def rest_s(self, *, is_busy: bool) -> float:
        return 0.0

    def hint(self, whole: WholeRequest) -> RequestHint:
        said = {key.decode(): value.decode() for key, value in whole.headers.items()}
        line = (whole.path, said.get("row_class", "interactive"))
        goal_s, time_s = float(said.get("goal", "1")), float(said.get("time", "inf"))
        return RequestHint(line, goal_s, time_s, can_wait=line[1] == "bulk")

    def refuse(self, whole: WholeRequest, reply: Reply, alike_s: float) -> None:
        self.refused.append(whole.body)


@dataclass
class Inside:
    route: Route
    name: bytes

    def leave(self) -> None:
        self.route.left.append(self.name)


@dataclass
class InsideTogether:
    route: Route

    def leave(self, place: int) -> None:
        self.route.left.append(b"%d" % place)


class Alike:
    """So many requests. said: as `request` has it."""

    def __init__(self, count: int, came_s: float = 0.0, **said: Any) -> None:
        self.rows = [b"%d" % place for place in range(count)]
        self.came_s, self.said = came_s, said
        self.first = self.whole(0)

    def whole(self, place: int) -> WholeRequest:
        return request(place, self.came_s, **self.said)

    def reply(self, place: int, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        raise AssertionError("the backpressure itself never replies")

    def reply_filled(self, places: Sequence[int], filled: Sequence[object]) -> None:
        raise AssertionError("the backpressure itself never replies")


def request(name: object, came_s: float = 0.0, path: str = "f", **said: object) -> WholeRequest:
    headers = {key.encode(): str(value).encode() for key, value in said.items()}
    return WholeRequest(path, headers, str(name).encode(), came_s)


def reply(status: int, body: bytes, headers: Mapping[str, str]) -> None:
    raise AssertionError("the backpressure itself never replies")


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def after(*requests: WholeRequest, most: int = 1) -> Route:
    """What became of these, come in one turn of the loop."""

    async def scene() -> Route:
        route = Route()
        door = Backpressure(route, most=most, clock=lambda: 0.0)
        for one in requests:
            door.answer(one, reply)
        await turns(len(requests) + 2)
        return route

    return asyncio.run(scene())


def test_so_many_get_in_at_each_turn_in_the_order_they_came():
    async def scene() -> Route:
        route = Route()
        door = Backpressure(route, most=2, clock=lambda: 0.0)
        for number in range(5):
            door.answer(request(number), reply)
        for inside in (2, 4, 5):
            assert len(route.entered) == inside
            await turns(1)
        await turns(1)
        door.answer(request(5), reply)
        return route

    assert asyncio.run(scene()).entered == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_a_deadline_that_its_own_line_would_eat_into_is_refused_and_the_line_goes_on():
    came = enumerate((0.0, 0.0, 0.2, 0.9))
    route = after(*(request(number, came_s, time=1) for number, came_s in came))
    assert route.refused == [b"3"]
    assert route.entered == [b"0", b"1", b"2"]


def test_rows_without_a_deadline_and_bulk_rows_are_never_refused():
    route = after(
        *(request(number, time=1) for number in range(4)),
        request("none", 100.0),
        *(request(f"bulk {number}", number * 100.0, row_class="bulk") for number in range(3)),
    )
    assert route.refused == []
    assert len(route.entered) == 8


def test_no_flood_for_another_function_refuses_or_delays_an_urgent_one():
    flood = [request(number, path="flood", goal=1) for number in range(20)]
    urgent = [request(f"urgent {n}", 0.001, path="urgent", goal=0.02, time=0.02) for n in range(10)]
    route = after(*flood, *urgent)
    assert route.refused == []
    assert route.entered[1:11] == [one.body for one in urgent]
    assert len(route.entered) == 30


def test_the_flood_is_what_is_refused():
    flood = [request(n, n * 0.01, path="flood", goal=0.02, time=0.02) for n in range(20)]
    route = after(*flood, request("other", 0.2, path="other", goal=0.02, time=0.02))
    assert route.entered == [b"0", b"1", b"other"]
    assert len(route.refused) == 18


def test_a_line_with_a_late_goal_has_its_turn_however_many_urgent_ones_come():
    async def scene() -> Route:
        route = Route()
        door = Backpressure(route, most=1, clock=lambda: 0.0)
        door.answer(request("first"), reply)
        door.answer(request("patient", 0.0, path="patient", goal=1), reply)
        for number in range(200):
            for _ in range(2):
                door.answer(request(number, number * 0.02, goal=0.02), reply)
            await turns(1)
        return route

    entered = asyncio.run(scene()).entered
    assert entered.index(b"patient") < 120


def test_rows_that_have_waited_for_a_quarter_of_their_goal_stand_aside_and_get_in_all_the_same():
    async def scene() -> Route:
        route = Route()
        now_s = 0.0
        door = Backpressure(route, most=16, clock=lambda: now_s)
        for number in range(80):
            door.answer(request(f"old {number}", goal=0.1), reply)
        door.answer(request("bulk", row_class="bulk"), reply)
        door.answer(request("due", goal=0.1, time=0.1), reply)
        now_s = 0.11
        for number in range(20):
            door.answer(request(f"new {number}", 0.11, goal=0.1), reply)
        await turns(8)
        return route

    entered = asyncio.run(scene()).entered
    assert entered[:16] == [b"old %d" % number for number in range(16)]  # before anybody waited
    assert entered[16:32] == [b"due", *(b"new %d" % number for number in range(15))]
    # Of each turn the one that has stood aside longest; then those that are in time, by their goals; then of
    # the others those that came last, which have most of their goals left.
    assert entered[32:39] == [b"old 16", *(b"new %d" % number for number in range(15, 20)), b"bulk"]
    assert entered[39:48] == [b"old %d" % number for number in range(79, 70, -1)]
    assert entered[48:51] == [b"old 17", b"old 70", b"old 69"]
    assert len(set(entered)) == len(entered) == 102


def test_a_burst_that_passes_within_a_goal_keeps_its_order():
    async def scene() -> Route:
        route = Route()
        now_s = 0.0
        door = Backpressure(route, most=16, clock=lambda: now_s)
        for number in range(60):
            door.answer(request(number, goal=0.1), reply)
        now_s = 0.09
        for number in range(60, 80):
            door.answer(request(number, 0.09, goal=0.1), reply)
        await turns(8)
        now_s = 5.0  # another burst: nobody has waited since the first one
        for number in range(80, 120):
            door.answer(request(number, 4.95, goal=0.1), reply)
        await turns(5)
        return route

    assert asyncio.run(scene()).entered == [b"%d" % number for number in range(120)]


def test_who_leaves_while_standing_aside_is_never_let_in():
    async def scene() -> Route:
        route = Route()
        now_s = 0.0
        door = Backpressure(route, most=1, clock=lambda: now_s)
        waiting = [door.answer(request(number, goal=0.1), reply) for number in range(5)]
        now_s = 1.0
        door.answer(request("new", 1.0, goal=0.1), reply)
        await turns(1)
        for number in (1, 3):
            one = waiting[number]
            assert one is not None
            one.leave()
        await turns(6)
        return route

    assert asyncio.run(scene()).entered == [b"0", b"new", b"4", b"2"]


def test_who_leaves_the_line_is_never_let_in_and_who_leaves_inside_is_told_to_the_route():
    async def scene() -> Route:
        route = Route()
        door = Backpressure(route, most=1, clock=lambda: 0.0)
        places = [door.answer(request(number), reply) for number in range(4)]
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


def test_requests_that_are_alike_get_in_together_as_many_as_a_turn_has_time_for():
    async def scene() -> None:
        route = Route()
        door = Backpressure(route, most=2, clock=lambda: 0.0)
        inside = door.answer_alike(Alike(40))
        assert 2 < len(route.entered) < 40
        door.answer(request("last"), reply)
        inside.leave(1)
        assert route.left == [b"1"]
        inside.leave(38)  # it is queued
        await turns(10)
        assert len(route.together) > 2
        assert route.entered == [b"%d" % place for place in range(40) if place != 38] + [b"last"]
        inside.leave(39)
        assert route.left == [b"1", b"39"]

    asyncio.run(scene())


def test_requests_that_are_alike_get_in_before_nobody_who_waits():
    async def scene() -> None:
        route = Route()
        door = Backpressure(route, most=1, clock=lambda: 0.0)
        for number in range(3):
            door.answer(request(f"before {number}"), reply)
        door.answer_alike(Alike(3))
        door.answer(request("after"), reply)
        await turns(8)
        before = [b"before %d" % number for number in range(3)]
        assert route.entered == [*before, b"0", b"1", b"2", b"after"]
        assert route.together == [3]

    asyncio.run(scene())


def test_requests_that_may_not_come_together_come_one_by_one():
    async def scene() -> None:
        route = Route(most_together=0)
        door = Backpressure(route, most=2, clock=lambda: 0.0)
        inside = door.answer_alike(Alike(5))
        assert route.entered == [b"0", b"1"]
        inside.leave(0)
        inside.leave(3)
        await turns(4)
        assert route.entered == [b"0", b"1", b"2", b"4"]
        assert route.left == [b"0"]
        door.answer(request("next"), reply)
        assert route.entered[-1] == b"next"

    asyncio.run(scene())


def test_requests_that_are_alike_and_would_be_late_are_each_refused():
    async def scene() -> None:
        route = Route()
        door = Backpressure(route, most=1, clock=lambda: 0.0)
        for number in range(2):
            door.answer(request(number, time=1), reply)
        door.answer_alike(Alike(3, 0.9, time=1))
        assert route.refused == [b"0", b"1", b"2"]
        await turns(2)
        assert route.entered == [b"0", b"1"]

    asyncio.run(scene())


def test_requests_that_are_alike_stand_aside_together_and_the_last_that_came_get_in_first():
    async def scene() -> None:
        now_s = 0.0
        route = Route()
        door = Backpressure(route, most=1, clock=lambda: now_s)
        door.answer(request("first"), reply)
        old = door.answer_alike(Alike(3, 0.0, goal=1))
        door.answer_alike(Alike(12, 0.5, goal=1))
        now_s = 2.0  # somebody has waited for more than a goal
        await turns(8)
        old.leave(0)
        assert route.together == [8, 4, 3]
        assert route.left == [b"0"]

    asyncio.run(scene())
