"""What the overview says of a stretch of time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from server.dashboard.error_hints import hint_of
from server.dashboard.overview_charts import Span, charts_of
from server.dashboard.overview_view import OverviewView, WorkerLine, overview_of
from server.observability.history import Slot
from server.observability.readings import Counts, Stretch
from server.observability.stats import LATENCY_S
from tests.unit.server.served import function

SLOW = tuple(100 if bound == 1.0 else 0 for bound in (*LATENCY_S, 0.0))  # between 0.5 and 1 s
WORKER = WorkerLine("w0", "up", "cpu", "a processor", 2, 50, 200, 0.1, 0, "")


def view(stretch: Stretch, *names: str, sees_all: bool = True, **more: Any) -> OverviewView:
    functions = [function(name=name, **more) for name in names]
    return overview_of(stretch, functions, set(names), [WORKER], sees_all=sees_all)


def test_rows_a_second_are_those_of_the_stretch() -> None:
    shown = view(
        Stretch(10.0, {"f": Counts(120, 0, 6, 4, 120), "g": Counts(30, 0, 3, 2, 30)}, {}, {"f": 7}), "f", "g"
    )
    assert (shown.rows_per_s, shown.requests_per_s, shown.waiting, shown.rows_a_batch) == (15.0, 0.9, 7, 25.0)
    assert [line.rows_per_s for line in shown.functions] == [12.0, 3.0]


def test_functions_that_one_may_not_see_count_nowhere() -> None:
    stretch = Stretch(
        10.0,
        {"f": Counts(100, errors={"overloaded": 1}), "secret": Counts(900, errors={"internal": 5})},
        {"unknown_function": 3},
        {"secret": 50},
    )
    shown = view(stretch, "f", sees_all=False)
    assert shown.rows_per_s == 10.0
    assert shown.waiting == 0
    assert [(line.code, line.requests) for line in shown.errors] == [("overloaded", 1)]


def test_what_was_refused_and_what_was_late_are_told_apart() -> None:
    errors = {"overloaded": 4, "deadline_exceeded": 3, "internal": 2}
    shown = view(Stretch(10.0, {"f": Counts(errors=errors)}, {"unknown_function": 1}), "f")
    assert (shown.refused, shown.late) == (4, 3)
    assert [line.code for line in shown.errors] == [
        "overloaded",
        "deadline_exceeded",
        "internal",
        "unknown_function",
    ]
    assert all(line.hint for line in shown.errors)
    assert hint_of("a code of tomorrow") == ""


@pytest.mark.parametrize(("slo_ms", "is_late"), [(100.0, True), (2000.0, False)])
def test_a_function_is_late_when_its_slowest_requests_miss_its_goal(slo_ms: float, is_late: bool) -> None:
    shown = view(Stretch(10.0, {"f": Counts(100, 0, 100, 1, 100, SLOW)}), "f", slo_ms=slo_ms)
    assert shown.functions[0].is_late is is_late


def test_before_anything_happened_nothing_is_known() -> None:
    shown = view(Stretch(), "f")
    assert (shown.rows_per_s, shown.p99_s, shown.rows_a_batch, shown.errors) == (None, None, None, ())


def test_it_is_ready_when_a_function_and_a_worker_are() -> None:
    assert view(Stretch(), "f").is_ready
    assert not overview_of(Stretch(), [function()], set(), [WORKER], sees_all=True).is_ready
    down = replace(WORKER, state="down")
    assert not overview_of(Stretch(), [function()], {"f"}, [down], sees_all=True).is_ready


def test_a_pause_of_the_server_is_a_gap_in_the_charts_and_foreign_rows_are_not_drawn() -> None:
    slots = [
        Slot(at_s, Stretch(10.0, {"f": Counts(at_s, 0, 1), "secret": Counts(7_777_770, 0, 1)}))
        for at_s in (1000, 1010, 1100)
    ]
    drawn = "".join(charts_of(slots, Span("hour", 10), ["f"], [0.5], sees_all=False))
    assert "777" not in drawn
    assert "secret" not in drawn
    everything = "".join(charts_of(slots, Span("hour", 10), ["f"], [0.5], sees_all=True))
    assert "777" in everything


def test_how_many_rows_were_kept_answers_is_shown_and_drawn_where_any_were() -> None:
    some = {"f": Counts(rows=80, cached_rows=60)}
    shown = view(Stretch(10.0, some), "f")
    assert shown.cached == 0.75
    assert shown.functions[0].cached == 0.75
    for counts, is_drawn in ((some, True), ({"f": Counts(rows=80)}, False)):
        slots = [Slot(at_s, Stretch(10.0, counts)) for at_s in (1000, 1010)]
        drawn = "".join(charts_of(slots, Span("hour", 10), ["f"], [0.5], sees_all=False))
        assert ("kept answers" in drawn) is is_drawn
