"""What happened between two looks at the counters."""

from __future__ import annotations

import json

import pytest

from server.observability.readings import (
    OTHERS,
    Counts,
    Reading,
    Stretch,
    between,
    counts_of,
    quantile_s,
    reading_of,
)
from server.observability.stats import LATENCY_S, FunctionStats


def stats(requests: int, rows: int, latency_s: float = 0.02) -> FunctionStats:
    found = FunctionStats()
    for _ in range(requests):
        found.answered(rows, 0, latency_s, 0.0)
    found.batch_done(rows * requests, 0.0, 0.001, 0.0)
    return found


def test_versions_of_a_function_count_together() -> None:
    one, two = stats(2, 10), stats(1, 5)
    two.failed("overloaded", 0.0)
    reading = reading_of(1.0, [(("f", 1), one), (("f", 2), two)], {}, {("f", 1): (3, 0), ("f", 2): (4, 0)})
    assert reading.functions["f"].rows == 25
    assert reading.functions["f"].errors == {"overloaded": 1}
    assert reading.waiting == {"f": 7}


def test_a_stretch_has_what_came_between_and_nothing_of_who_was_silent() -> None:
    before = Reading(10.0, {"f": Counts(rows=5, requests=1), "g": Counts(rows=2)}, {"unknown_function": 1})
    after = Reading(14.0, {"f": Counts(rows=25, requests=3), "g": Counts(rows=2)}, {"unknown_function": 3})
    stretch = between(before, after)
    assert stretch.functions == {"f": Counts(rows=20, requests=2)}
    assert stretch.unresolved == {"unknown_function": 2}
    assert stretch.per_s(stretch.of(["f", "g", "nobody"]).rows) == 5.0


def test_counters_that_went_with_their_version_count_as_nothing() -> None:
    before, after = Reading(0.0, {"f": Counts(rows=50)}), Reading(1.0, {"f": Counts(rows=3, requests=1)})
    assert between(before, after).functions["f"].rows == 0


def test_kept_answers_are_counted_over_stretches_and_kept_with_them() -> None:
    before = Reading(0.0, {"f": Counts(rows=10, cached_rows=4)})
    first = between(before, Reading(1.0, {"f": Counts(rows=30, cached_rows=14)}))
    both = first + between(Reading(1.0, {}), Reading(2.0, {"f": Counts(rows=20, cached_rows=20)}))
    assert Stretch.from_json(both.to_json()).functions["f"] == Counts(rows=40, cached_rows=30)
    assert both.functions["f"].cached == 0.75
    assert Counts().cached is None


def test_two_stretches_together_are_one_over_both() -> None:
    one = Stretch(10.0, {"f": Counts(rows=5, errors={"a": 1})}, {"x": 1}, {"f": 3}, 100)
    two = Stretch(10.0, {"f": Counts(rows=7, errors={"a": 2}), "g": Counts(rows=1)}, {}, {"f": 9, "g": 1}, 50)
    both = one + two
    assert both.seconds == 20.0
    assert both.functions == {"f": Counts(rows=12, errors={"a": 3}), "g": Counts(rows=1)}
    assert both.waiting == {"f": 9, "g": 1}
    assert both.used_bytes == 50


def test_a_quantile_lies_between_the_bounds_of_its_requests() -> None:
    counts = counts_of(stats(100, 1, latency_s=0.02))  # between 10 and 25 ms
    assert quantile_s(counts.latency, 0.5) == pytest.approx(0.0175)
    assert 0.024 < (counts.quantile_s(0.99) or 0) <= 0.025
    assert quantile_s((), 0.5) is None
    assert quantile_s((0,) * (len(LATENCY_S) + 1), 0.5) is None


def test_of_requests_above_the_last_bound_no_more_is_said_than_that() -> None:
    assert counts_of(stats(1, 1, latency_s=99.0)).quantile_s(0.99) == LATENCY_S[-1]


def test_what_is_kept_is_read_back() -> None:
    counts = counts_of(stats(3, 4))
    stretch = Stretch(10.0, {"f": counts}, {"unknown_function": 2}, {"f": 3}, 1 << 30)
    assert Stretch.from_json(json.loads(json.dumps(stretch.to_json()))) == stretch


def test_what_is_kept_is_bounded_whatever_was_asked() -> None:
    many = {
        f"{'f' * 96}{number:04}": Counts(
            number,
            number,
            number,
            number,
            number,
            (10**6,) * 15,
            {f"code_{code}": 10**6 for code in range(30)},
        )
        for number in range(500)
    }
    stretch = Stretch(10.0, many, {}, dict.fromkeys(many, 10**9))
    kept = stretch.to_json()
    assert len(json.dumps(kept)) < 13_500
    back = Stretch.from_json(kept)
    assert back.functions[OTHERS].rows == sum(range(480))
    assert back.of(back.functions).rows == stretch.of(many).rows
