"""Which worker a batch goes to: where it begins first, and none where that one has no room yet."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from server.scheduling.routing import backlog_s, worker_for


@dataclass
class Place:
    """A worker as routing sees it."""

    name: str
    free_s: float = 0.0
    room: bool = True
    is_reserved: bool = False
    pace: float = 1.0
    view: Any = field(default_factory=lambda: SimpleNamespace(device="cpu"))

    def has_room(self, now_s: float) -> bool:
        return self.room

    def is_overdue(self, now_s: float) -> bool:
        return False

    def starts_at_s(self, now_s: float) -> float:
        return max(now_s, self.free_s)


class Line:
    """A function's rows: `rows` interactive ones wait, a row takes 10 ms, `swaps` by worker."""

    def __init__(self, rows: int = 0, max_batch: int = 8, due_s: float = math.inf, **swaps: float) -> None:
        self.interactive = SimpleNamespace(rows=rows, first=SimpleNamespace(due_s=due_s))
        self.spec = SimpleNamespace(max_batch=max_batch)
        self._swaps = swaps

    @property
    def members(self) -> tuple[SimpleNamespace, ...]:
        return (SimpleNamespace(name="m"),)

    def can_run_on(self, worker: Place) -> bool:
        return worker.name not in self._swaps

    def takes_s(self, rows: int, worker: Place) -> float:
        return 0.01 * rows * worker.pace


def route(line: Line, *workers: Place, waiting: dict[str, float] | None = None) -> str | None:
    chosen = worker_for(1.0, line, workers, waiting or {})  # type: ignore[arg-type]  # what it looks at
    return None if chosen is None else chosen.name


def test_the_worker_that_is_free_first_gets_it() -> None:
    assert route(Line(), Place("a", 3.0), Place("b", 2.0), Place("c", 2.5)) == "b"


def test_of_two_that_begin_at_once_the_one_with_room_gets_it_and_else_the_first() -> None:
    assert route(Line(), Place("a", room=False), Place("b")) == "b"
    assert route(Line(), Place("a"), Place("b", room=False)) == "a"
    assert route(Line(), Place("a"), Place("b")) == "a"


def test_it_waits_for_the_one_that_begins_first_though_another_has_room() -> None:
    assert route(Line(), Place("a", 2.0, room=False), Place("b", 5.0)) is None


def test_a_worker_that_lacks_the_model_is_never_chosen() -> None:
    assert route(Line(a=1.0), Place("a", 1.0), Place("b", 3.0)) == "b"
    assert route(Line(a=math.inf), Place("a")) is None
    assert route(Line(a=math.inf), Place("a"), Place("b", 9.0)) == "b"


def test_a_worker_that_is_reserved_is_passed_over() -> None:
    assert route(Line(), Place("a", is_reserved=True), Place("b", 9.0)) == "b"


def test_what_others_wait_for_a_full_worker_counts_before_this_batch() -> None:
    full, later = Place("a", 2.0, room=False), Place("b", 2.2)
    line = Line(rows=4)  # 40 ms of its own
    assert route(line, full, later, waiting={"a": 0.14, "b": 0.0}) is None  # 2.0 + 0.1 is before 2.2
    assert route(line, full, later, waiting={"a": 0.34, "b": 0.0}) == "b"
    assert route(line, full, Place("b", 2.05), waiting={"a": 0.0, "b": 0.0}) is None  # never negative


def test_what_waits_is_shared_by_the_workers_that_hold_the_model() -> None:
    workers = (Place("a"), Place("b"), Place("c"))
    both, one, none = Line(rows=20, c=1.0), Line(rows=3, b=1.0, c=1.0), Line()
    waiting = backlog_s((both, one, none), workers)  # type: ignore[arg-type]  # what it looks at
    assert waiting == pytest.approx({"a": 0.04 + 0.03, "b": 0.04, "c": 0.0})  # 8 rows at most are a batch


def test_of_workers_that_are_not_equally_fast_the_one_that_ends_it_first_gets_it() -> None:
    slow, fast = Place("slow", 1.0, pace=3.0), Place("fast", 1.05)  # from 1.0 on 120 ms, from 1.05 on 40
    assert route(Line(rows=4), slow, fast) == "fast"
    assert route(Line(rows=4), slow, Place("fast", 1.1)) == "slow"
    assert route(Line(rows=4), slow, Place("fast", 1.05, room=False)) == "slow", "it works meanwhile"


def test_rows_that_only_a_worker_without_room_answers_in_time_wait_for_it() -> None:
    slow, fast = Place("slow", 1.0, pace=3.0), Place("fast", 1.005, room=False)
    assert route(Line(rows=4, due_s=1.02), slow, fast) is None  # a row alone: at 1.03 and at 1.015
    assert route(Line(rows=4, due_s=1.04), slow, fast) == "slow"
    assert route(Line(rows=4, due_s=1.01), slow, fast) == "slow", "it is late on either"
