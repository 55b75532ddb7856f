"""A proxy that is kept off is tried again: few rows, of its own model, while nothing waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from server.catalog.functions import Function
from server.ensemble.gearing import FollowedPlans
from server.ensemble.places import MemberPlace
from server.ensemble.policies.proxied import Proxied
from server.errors import Overloaded, UnknownFunction
from server.serving.calls import Call
from server.serving.plans import ensemble_of
from server.serving.proxy_trials import ProxyTrials
from tests.unit.server.served import function, text_model
from tests.unit.server.test_cascade_saving import cascading

BARE = replace(function(text_model("small"), name="small"), bare=True)


class Desk:
    """In place of dispatcher and catalog: a clock that goes as a batch takes its time, and what was asked."""

    def __init__(self, *, small_s: float = 0.02) -> None:
        self.now_s = 1_000.0
        self.small_s = small_s  # a row of the proxy; one of the full function takes 10 ms
        self.taken_s = 0.05  # by each trial
        self.asked: list[Call] = []
        self.ended = 0
        self.waiting = 0
        self.is_full = False
        self.function = cascading()
        self.bare: list[Function] = [BARE]
        self.trials = ProxyTrials(self, self, clock=lambda: self.now_s)  # type: ignore[arg-type]  # as far as they are asked

    def served(self) -> list[Function]:
        return [self.function]

    def versions(self, name: str) -> list[Function]:
        if not self.bare:
            raise UnknownFunction(name)
        return self.bare

    def queue_depth(self) -> dict[tuple[str, int], tuple[int, int]]:
        return {("udf", 1): (self.waiting, 0)}

    def followed(self, asked: Function, form: str) -> FollowedPlans:
        def latency_of(model: Any) -> Callable[[int], float]:
            return lambda rows: rows * (self.small_s if model.name == "small" else 0.01)

        assert asked.proxy is not None
        place = MemberPlace(0, ("cpu",))
        ensemble = ensemble_of(asked, latency_of, [place, place], asked.form)
        policy = Proxied(ensemble, asked.proxy.fit, asked.proxy.place)
        return FollowedPlans(policy.plans, policy.init()["gear"])

    def begin(self, call: Call) -> Any:
        if self.is_full:
            raise Overloaded("full")
        self.asked.append(call)
        self.now_s += self.taken_s
        future = asyncio.get_running_loop().create_future()
        future.set_result(None)
        return SimpleNamespace(future=future)

    def end(self, pending: object) -> None:
        self.ended += 1

    def answer(self, *rows: str, **fields: Any) -> None:
        data = [row.encode() for row in rows]
        self.trials.answered(Call(self.function, "text", data, sum(map(len, data)), **fields))

    def look(self) -> int:
        """How often a model has been asked so far, after one more look."""
        asyncio.run(self.trials.try_due())
        return len(self.asked)


def test_a_proxy_that_is_kept_off_is_asked_by_itself_of_rows_that_were_answered_without_it() -> None:
    desk = Desk()
    desk.answer("a", "b")
    desk.answer(*(f"{number}" for number in range(100)))
    assert desk.look() == 1
    (call,) = desk.asked
    assert call.function is BARE
    assert call.rows[:3] == [b"a", b"b", b"0"]
    assert len(call.rows) == 32
    assert (call.row_class, call.is_traffic, call.answer_cache) == ("bulk", False, False)
    assert desk.ended == 1


def test_a_proxy_that_is_asked_is_not_tried_and_nothing_else_is() -> None:
    asked = Desk(small_s=0.001)
    asked.answer("a")
    assert asked.look() == 0
    named = Desk()
    named.answer("a", members=("large/1",))
    assert named.look() == 0
    plain = Desk()
    plain.function = function(text_model("large"))
    plain.answer("a")
    assert plain.look() == 0


def test_once_it_saves_time_again_it_is_tried_no_more() -> None:
    desk = Desk()
    desk.answer("a")
    desk.small_s = 0.001
    desk.answer("b")
    assert desk.look() == 0


def test_trials_are_rare_and_take_no_more_than_a_hundredth_of_the_time() -> None:
    desk = Desk()
    for pause_s, asked in ((0.0, 1), (19.0, 1), (2.0, 2)):
        desk.now_s += pause_s
        desk.answer("a")
        assert desk.look() == asked
    desk.taken_s = 1.0
    desk.now_s += 21.0
    desk.answer("a")
    assert desk.look() == 3
    desk.answer("a")
    desk.now_s += 99.0
    assert desk.look() == 3
    desk.now_s += 2.0
    assert desk.look() == 4


def test_it_waits_for_an_idle_moment_and_for_rows() -> None:
    desk = Desk()
    assert desk.look() == 0
    desk.answer("a")
    desk.waiting = 1
    assert desk.look() == 0
    desk.waiting = 0
    assert desk.look() == 1
    desk.now_s += 1_000.0
    assert desk.look() == 1, "the same rows are not asked twice"


@pytest.mark.parametrize("what", ["full", "gone", "nowhere"])
def test_what_cannot_be_asked_is_left_until_there_are_other_rows(what: str) -> None:
    desk = Desk()
    desk.answer("a")
    if what == "full":
        desk.is_full = True
    elif what == "gone":
        desk.function = replace(desk.function, version=2)
    else:
        desk.bare = []
    assert desk.look() == 0
    desk.is_full, desk.bare = False, [BARE]
    desk.now_s += 1_000.0
    desk.answer("b")
    assert desk.look() == 1
    assert desk.asked[0].rows == [b"b"]


@pytest.mark.parametrize(
    ("functions", "callers", "read"),
    [
        (None, None, None),
        (("/a",), None, ("/a",)),
        (None, ("/a",), ("/a",)),
        (("/a",), ("/a",), ("/a",)),
        (("/a",), ("/b",), ()),
    ],
)
def test_paths_are_read_below_the_folders_of_both(functions: Any, callers: Any, read: Any) -> None:
    desk = Desk()
    desk.function = replace(desk.function, media_roots=functions)
    desk.answer("a", media_roots=callers)
    desk.answer("b", media_roots=("/elsewhere",))
    assert desk.look() == 1
    assert desk.asked[0].media_roots == read
    assert desk.asked[0].rows[0] == b"a"


def test_rows_put_aside_are_bounded_in_bytes() -> None:
    desk = Desk()
    desk.answer(*(5 * ("x" * (1 << 20),)))
    desk.answer(*(5 * ("x" * (1 << 20),)))
    assert desk.look() == 1
    assert len(desk.asked[0].rows) == 8
