"""Which worker a batch goes to: where it begins first, and none where that one has no room yet."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from server.scheduling.routing import Backlog, worker_for


@dataclass
class Place:
    """A worker as routing sees it."""

    name: str
    free_s: float = 0.0
    room: bool = True
    pace: float = 1.0
    view: Any = field(default_factory=lambda: SimpleNamespace(device="cpu"))

    @property
    def end_s(self) -> float:
        return self.free_s

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

    def are_alike(self, workers: Sequence[Place]) -> bool:
        return len({worker.pace for worker in workers}) == 1

    def takes_s(self, rows: int, worker: Place) -> float:
        return 0.01 * rows * worker.pace


class Places:
    """Workers as `Backlog` sees them."""

    def __init__(self, *places: Place) -> None:
        self._places = places

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Place]:
        return iter(self._places)

    def holders(self, line: Line) -> list[Place]:
        return [place for place in self._places if line.can_run_on(place)]


class Waiting:
    """Seconds that wait for a worker, all of them others'."""

    def __init__(self, **before_s: float) -> None:
        self._before_s = before_s

    def before(self, line: Line, worker: Place) -> float:
        return self._before_s.get(worker.name, 0.0)


def route(line: Line, *workers: Place, waiting: Any = None) -> str | None:
    chosen = worker_for(1.0, line, workers, waiting or Waiting())  # type: ignore[arg-type]  # what it looks at
    return None if chosen is None else chosen.name


def backlog(lines: Sequence[Line], *workers: Place) -> Backlog:
    return Backlog(lines, Places(*workers))  # type: ignore[arg-type]  # what it looks at


def test_the_worker_that_is_free_first_gets_it() -> None:
    assert route(Line(), Place("a", 3.0), Place("b", 2.0), Place("c", 2.5)) == "b"


def test_of_two_that_begin_at_once_the_one_with_room_gets_it_and_else_the_first() -> None:
    assert route(Line(), Place("a", room=False), Place("b")) == "b"
    assert route(Line(), Place("a"), Place("b", room=False)) == "a"
    assert route(Line(), Place("a"), Place("b")) == "a"


def test_it_waits_for_the_one_that_begins_first_though_another_has_room() -> None:
    assert route(Line(), Place("a", 2.0, room=False), Place("b", 5.0)) is None


def test_nobody_gets_it_where_nobody_is_able() -> None:
    assert route(Line()) is None


def test_what_others_wait_for_a_full_worker_counts_before_this_batch() -> None:
    full, later = Place("a", 2.0, room=False), Place("b", 2.2)
    assert route(Line(rows=4), full, later, waiting=Waiting(a=0.1)) is None  # 2.1 is before 2.2
    assert route(Line(rows=4), full, later, waiting=Waiting(a=0.3)) == "b"


def test_what_waits_is_shared_by_the_workers_that_hold_the_model() -> None:
    workers = (Place("a"), Place("b"), Place("c"))
    both, one, none = Line(rows=20, c=1.0), Line(rows=3, b=1.0, c=1.0), Line()
    before = backlog((both, one, none), *workers).before
    waits_s = [before(none, worker) for worker in workers]  # type: ignore[arg-type]  # what it looks at
    assert waits_s == pytest.approx([0.04 + 0.03, 0.04, 0.0])  # 8 rows at most are a batch


def test_a_lane_waits_neither_for_itself_nor_for_less_than_nothing() -> None:
    a, b = Place("a"), Place("b")
    mine, other = Line(rows=4), Line(rows=6, b=1.0)
    assert backlog((mine, other), a, b).before(mine, a) == pytest.approx(0.04)  # type: ignore[arg-type]
    assert backlog((mine, other), a, b).before(mine, b) == 0.0  # type: ignore[arg-type]
    assert backlog((mine,), a, b).before(other, a) == 0.0, "one lane alone"  # type: ignore[arg-type]


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
