"""Least recently used: who leaves for whom."""

from __future__ import annotations

import pytest

from server.placement.policies.lru import Capacity, Stay, evictions


def stays(**last_used_s: float) -> dict[str, Stay]:
    return {key: Stay(size_bytes=10, last_used_s=at) for key, at in last_used_s.items()}


def test_nobody_leaves_while_there_is_room() -> None:
    assert evictions(0.0, {"new": 10}, stays(a=1.0), Capacity(capacity_bytes=20)) == ()
    assert evictions(0.0, {"new": 10}, stays(a=1.0), Capacity()) == ()


def test_the_least_recently_used_leave_and_no_more_of_them_than_needed() -> None:
    assert evictions(0.0, {"new": 10}, stays(a=3.0, b=1.0, c=2.0), Capacity(capacity_bytes=30)) == ("b",)
    assert evictions(0.0, {"new": 20}, stays(a=3.0, b=1.0, c=2.0), Capacity(capacity_bytes=30)) == ("b", "c")
    assert evictions(0.0, {"new": 1}, stays(a=3.0, b=1.0), Capacity(max_models=2)) == ("b",)


def test_a_member_that_is_there_already_is_not_evicted_for_its_group() -> None:
    assert evictions(0.0, {"a": 10, "new": 10}, stays(a=1.0, b=2.0), Capacity(capacity_bytes=20)) == ("b",)


def test_a_model_that_rows_wait_for_outlives_one_used_later_that_nobody_waits_for() -> None:
    resident = {"waited": Stay(10, 1.0, wanted=True), "idle": Stay(10, 2.0)}
    assert evictions(0.0, {"new": 10}, resident, Capacity(capacity_bytes=20)) == ("idle",)


def test_a_model_that_rows_wait_for_stays_until_it_has_served_for_a_while() -> None:
    resident = {"waited": Stay(10, 1.0, wanted=True, protected_until_s=5.0)}
    assert evictions(4.0, {"new": 10}, resident, Capacity(capacity_bytes=10)) == 5.0
    assert evictions(5.0, {"new": 10}, resident, Capacity(capacity_bytes=10)) == ("waited",)


def test_of_two_that_are_waited_for_the_one_that_has_served_leaves() -> None:
    resident = {
        "young": Stay(10, 1.0, wanted=True, protected_until_s=9.0),
        "old": Stay(10, 2.0, wanted=True, protected_until_s=3.0),
    }
    assert evictions(4.0, {"new": 10}, resident, Capacity(capacity_bytes=20)) == ("old",)


@pytest.mark.parametrize("capacity", [Capacity(capacity_bytes=15), Capacity(max_models=1)])
def test_a_group_that_can_never_fit_is_refused_for_ever(capacity: Capacity) -> None:
    assert evictions(0.0, {"x": 10, "y": 10}, {}, capacity) is None
