"""Intervals and comparisons by metrics that have no exact form."""

from __future__ import annotations

import numpy as np
import pytest

from gpu_worker.tasks.metrics import METRICS
from server.training.promotion.champion import level_of, match
from server.training.promotion.judging import swapped_match
from server.training.promotion.resampling import gains, resampled_interval

RMSE, AUC = METRICS["rmse"], METRICS["auc"]


def numbers(seed: int, rows: int, error: float) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    targets = random.normal(size=rows)
    return (targets + random.normal(0, error, rows))[:, None], targets


def test_the_interval_of_an_error_holds_the_true_one():
    held = sum(
        low <= 1.0 <= high
        for low, high in (resampled_interval(RMSE, *numbers(seed, 120, 1.0)) for seed in range(20))
    )
    assert held >= 17


def test_copies_of_a_row_make_no_interval_narrower():
    told, targets = numbers(1, 40, 1.0)
    low, high = resampled_interval(RMSE, told, targets)
    copied = np.repeat(np.arange(40), 25)
    narrow = resampled_interval(RMSE, told[copied], targets[copied])
    wide = resampled_interval(RMSE, told[copied], targets[copied], clusters=copied)
    assert narrow[1] - narrow[0] < 0.4 * (high - low)
    assert wide[1] - wide[0] == pytest.approx(high - low, rel=0.15)


def test_a_clearly_smaller_error_wins_and_noise_does_not():
    targets = np.random.default_rng(0).normal(size=150)
    random = np.random.default_rng(1)
    champion = (targets + random.normal(0, 1.0, 150))[:, None]
    better = (targets + random.normal(0, 0.4, 150))[:, None]
    alike = (targets + random.normal(0, 1.0, 150))[:, None]
    assert swapped_match(RMSE, better, champion, targets).p_value < 0.001
    assert not swapped_match(RMSE, alike, champion, targets).is_won()
    assert swapped_match(RMSE, champion, better, targets).p_value > 0.99


def test_an_error_that_is_smaller_in_every_row_wins_at_any_look_and_by_one_row_at_none():
    champion, targets = numbers(4, 400, 1.0)
    better = targets[:, None] + 0.5 * (champion - targets[:, None])
    assert swapped_match(RMSE, better, champion, targets).is_won(level_of(1_000))
    one = champion.copy()
    one[0] = targets[0]
    assert swapped_match(RMSE, one, champion, targets).p_value > 0.4


def test_what_says_the_same_is_no_better():
    told, targets = numbers(3, 30, 1.0)
    assert swapped_match(RMSE, told, told, targets).p_value == 1.0
    two = np.stack([1 - targets, targets], axis=1)
    assert swapped_match(AUC, two, two, (targets > 0).astype(int)).p_value == 1.0


def test_of_no_rows_nobody_is_better():
    assert swapped_match(RMSE, np.zeros((0, 1)), np.zeros((0, 1)), np.zeros(0)).p_value == 1.0


def test_swapped_accuracies_agree_with_the_exact_test():
    random = np.random.default_rng(5)
    targets = random.integers(2, size=80)
    one, other = random.random((80, 2)), random.random((80, 2))
    one[np.arange(80), targets] += 0.5
    exact = match(one.argmax(axis=1) == targets, other.argmax(axis=1) == targets).p_value
    assert swapped_match(METRICS["accuracy"], one, other, targets).p_value == pytest.approx(exact, abs=0.01)


def test_a_metric_of_all_rows_together_is_compared_by_swaps_too():
    random = np.random.default_rng(7)
    targets = (random.random(200) < 0.1).astype(np.int64)
    good = np.clip(targets * 0.4 + random.random(200) * 0.6, 0, 1)
    poor = np.clip(targets * 0.05 + random.random(200) * 0.95, 0, 1)
    good_two, poor_two = (np.stack([1 - each, each], axis=1) for each in (good, poor))
    assert swapped_match(AUC, good_two, poor_two, targets).p_value < 0.01
    assert swapped_match(AUC, poor_two, good_two, targets).p_value > 0.9


def test_swaps_are_by_cluster():
    targets = np.zeros(60)
    clusters = np.repeat(np.arange(3), 20)
    ours, theirs = np.zeros((60, 1)), np.ones((60, 1))
    assert swapped_match(RMSE, ours, theirs, targets).p_value < 0.001
    assert swapped_match(RMSE, ours, theirs, targets, clusters).p_value == pytest.approx(0.125, abs=0.02)


def test_a_gain_counts_beyond_its_interval_alone():
    targets = np.random.default_rng(0).normal(size=200)
    noise = np.random.default_rng(1).normal(0, 1.0, 200)
    base = (targets + noise)[:, None]
    assert gains(RMSE, (targets + 0.8 * noise)[:, None], base, targets)
    other = np.random.default_rng(2).normal(0, 0.98, 200)
    assert not gains(RMSE, (targets + other)[:, None], base, targets)
