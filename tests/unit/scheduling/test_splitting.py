"""How a pipeline's goal is split: by hand, by the rest, in equal parts, and as Nexus does."""

from __future__ import annotations

import itertools
import math

import pytest

from server.scheduling.splitting import SPLITS, StageLoad, goals_s


def stage(first_s: float, row_s: float, rows: float, most: int = 64, before_s: float = 0.0) -> StageLoad:
    return StageLoad(lambda b: first_s + row_s * b, rows, most, before_s)


def test_without_a_split_a_stage_has_all_that_those_behind_it_leave() -> None:
    stages = [stage(0.01, 0.01, 1), stage(0.0, 0.002, 5, before_s=0.005), stage(0.001, 0.0, 5)]
    assert goals_s("none", stages, 0.1) == pytest.approx((0.1 - 0.001 - 0.015, 0.1 - 0.001, 0.1))


def test_rows_of_many_batches_take_as_many() -> None:
    assert stage(0.01, 0.001, 130).alone_s == pytest.approx(2 * (0.01 + 0.064) + 0.012)
    assert stage(0.01, 0.001, 0.2).alone_s == pytest.approx(0.011)


def test_an_even_split_has_equal_parts() -> None:
    assert goals_s("even", [stage(1, 1, 1)] * 4, 2.0) == (0.5, 1.0, 1.5, 2.0)


def test_nexus_gives_time_where_it_saves_most() -> None:
    """The second stage's batches gain by being large, the first one's do not."""
    stages = [stage(0.0, 0.01, 1), stage(0.02, 0.0, 3)]
    first, whole = goals_s("nexus", stages, 0.2)
    assert whole == 0.2
    assert 0.02 <= first <= 0.16  # each has what its own least needs: 2 · l̂(1) and 2 · l̂(64)


@pytest.mark.parametrize("slo_s", [0.12, 0.2, 0.5])
def test_nexus_finds_the_least_that_trying_all_parts_finds(slo_s: float) -> None:
    stages = [stage(0.01, 0.004, 1), stage(0.005, 0.002, 3), stage(0.002, 0.003, 2)]
    grid = [slo_s * part / 100 for part in range(101)]
    least = min(
        stages[0].device_s(grid[a]) + stages[1].device_s(grid[b]) + stages[2].device_s(grid[100 - a - b])
        for a, b in itertools.product(range(101), repeat=2)
        if a + b <= 100
    )
    first, second, _ = goals_s("nexus", stages, slo_s)
    parts = (first, second - first, slo_s - second)
    found = math.fsum(each.device_s(part + 1e-9) for each, part in zip(stages, parts, strict=True))
    assert found == pytest.approx(least)


def test_a_goal_too_short_for_nexus_is_split_by_what_stages_take() -> None:
    assert goals_s("nexus", [stage(0.03, 0.0, 1), stage(0.01, 0.0, 1)], 0.02) == pytest.approx((0.015, 0.02))
    assert goals_s("nexus", [stage(0.0, 0.0, 1)] * 2, 0.0) == (0.0, 0.0)


@pytest.mark.parametrize("split", SPLITS)
def test_goals_ascend_and_end_with_the_whole(split: str) -> None:
    goals = goals_s(split, [stage(0.01, 0.001, 1), stage(0.002, 0.004, 7.5), stage(0.02, 0.0, 7.5)], 0.4)
    assert list(goals) == sorted(goals)
    assert goals[-1] == 0.4


def test_a_split_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="no split 'halves'; there are none, even, nexus"):
        goals_s("halves", [stage(1, 1, 1)], 1.0)
