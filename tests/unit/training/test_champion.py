"""The paired test by which a challenger takes a champion's place."""

from __future__ import annotations

import numpy as np
import pytest

from server.training.promotion.champion import interval, level_of, match


def answers(both: int, mine: int, theirs: int) -> tuple[np.ndarray, np.ndarray]:
    """(challenger, champion): rows that both answer rightly, only the one, only the other."""
    challenger = np.repeat([True, True, False], [both, mine, theirs])
    champion = np.repeat([True, False, True], [both, mine, theirs])
    return challenger, champion


def test_equals_are_no_reason_to_change() -> None:
    found = match(*answers(100, 0, 0))
    assert (found.p_value, found.is_won()) == (1.0, False)


@pytest.mark.parametrize(
    ("mine", "theirs", "won"), [(5, 0, True), (4, 0, False), (12, 3, True), (8, 4, False)]
)
def test_a_challenger_wins_by_rows_that_tell_them_apart(mine: int, theirs: int, won: bool) -> None:
    assert match(*answers(1_000, mine, theirs)).is_won() is won


def test_p_is_the_chance_of_so_many_fair_coins() -> None:
    assert match(*answers(0, 5, 0)).p_value == pytest.approx(1 / 32)
    assert match(*answers(0, 1, 2)).p_value == pytest.approx(7 / 8)


def test_equal_inputs_are_one_coin_however_often_they_occur() -> None:
    """One input with 2,000 copies, which the challenger answers rightly: no proof that it is better."""
    challenger, champion = answers(500, 2_000, 0)
    clusters = np.where(np.arange(2_500) < 500, np.arange(2_500), 500)
    assert match(challenger, champion).p_value < 1e-100, "as rows they would prove it"
    assert match(challenger, champion, clusters).p_value == 0.5


def test_clusters_of_one_row_are_mcnemars_test() -> None:
    challenger, champion = answers(20, 9, 3)
    rows = np.arange(len(champion))
    assert match(challenger, champion, rows).p_value == pytest.approx(match(challenger, champion).p_value)


def test_many_rows_are_tested_as_fast_and_as_rightly() -> None:
    few = match(*answers(0, 5_150, 5_000)).p_value
    many = match(*answers(0, 51_500, 50_000)).p_value
    assert few == pytest.approx(0.0695, abs=0.001)
    assert many == pytest.approx(1.3e-6, rel=0.1)


def test_equals_are_seldom_called_better_over_all_looks_together() -> None:
    random = np.random.default_rng(0)
    called = 0
    for _ in range(400):
        clusters = random.integers(0, 60, 240)
        for look in range(1, 9):  # eight challengers as good as the champion
            mine, theirs = (random.random(60) < 0.7)[clusters], (random.random(60) < 0.7)[clusters]
            called += match(mine, theirs, clusters).is_won(level_of(look))
            if match(mine, theirs, clusters).is_won(level_of(look)):
                break
    assert called / 400 <= 0.05 + 0.02


def test_the_levels_of_all_looks_add_up_to_that_of_one() -> None:
    assert sum(level_of(look) for look in range(1, 100_000)) == pytest.approx(0.05, rel=1e-4)
    assert all(level_of(look + 1) < level_of(look) for look in range(1, 50))


@pytest.mark.parametrize("alike", [1.0, 0.3])
def test_an_interval_of_clustered_rows_holds_the_truth_as_often_as_it_says(alike: float) -> None:
    """alike: the chance that a row is answered as the others of its cluster; 1: equal inputs."""
    random = np.random.default_rng(1)
    held, as_rows = [], []
    for _ in range(400):
        sizes = np.minimum(random.zipf(1.8, 120), 60)
        clusters = np.repeat(np.arange(120), sizes)
        own, shared = random.random(len(clusters)) < 0.8, (random.random(120) < 0.8)[clusters]
        right = np.where(random.random(len(clusters)) < alike, shared, own)
        low, high = interval(right, clusters)
        held.append(low <= 0.8 <= high)
        low, high = interval(right)
        as_rows.append(low <= 0.8 <= high)
    assert np.mean(held) >= 0.92
    if alike == 1.0:
        assert np.mean(as_rows) < 0.85, "counted as rows, it is too narrow"


def test_an_interval_of_single_rows_is_wilsons() -> None:
    right = np.repeat([True, False], [90, 10])
    assert interval(right) == pytest.approx((0.8256, 0.9448), abs=1e-3)
    assert interval(right, np.arange(100)) == pytest.approx(interval(right))
    assert interval(right, level=0.01)[0] < interval(right)[0]
    assert interval(np.zeros(0, np.bool_)) == (0.0, 1.0)
    low, high = interval(np.ones(50, np.bool_), np.zeros(50, np.int64))
    assert low < 0.3 <= 1.0 == high, "fifty copies of one input are one observation"
