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
    late = level_of(1_000)
    assert swapped_match(RMSE, better, champion, targets, level=late).is_won(late)
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


def classes_said(seed: int, rows: int, right: float, classes: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of which that share is right, and the classes."""
    random = np.random.default_rng(seed)
    targets = random.integers(classes, size=rows)
    said = np.where(random.random(rows) < right, targets, random.integers(classes, size=rows))
    return np.eye(classes)[said] * 0.5 + random.random((rows, classes)) * 0.4, targets


@pytest.mark.parametrize("name", ["macro_f1", "auc", "micro_f1", "rmse"])
def test_what_is_far_better_wins_at_every_look(name: str):
    metric = METRICS[name]
    if name == "rmse":
        champion, targets = numbers(1, 1_000, 1.0)
        better = targets[:, None] + 0.3 * (champion - targets[:, None])
    else:
        better, targets = classes_said(3, 1_000, 0.9)
        random = np.random.default_rng(4)
        champion = better.copy()
        worse = random.random(1_000) < 0.25
        champion[worse] = random.random((int(worse.sum()), 4))
        if name == "micro_f1":
            targets = np.eye(4, dtype=bool)[targets]
    for look in (1, 22, 365, 10_000):
        level = level_of(look)
        assert swapped_match(metric, better, champion, targets, level=level).is_won(level), look
        assert not swapped_match(metric, champion, better, targets, level=level).is_won(level)


@pytest.mark.parametrize("name", ["macro_f1", "auc", "micro_f1"])
def test_the_chance_told_is_never_below_that_of_all_swaps(name: str, monkeypatch: pytest.MonkeyPatch):
    metric = METRICS[name]
    told = []
    for seed in range(6):
        better, targets = classes_said(seed, 40, 0.9, 3)
        champion = better.copy()
        champion[:10] = classes_said(seed + 100, 10, 0.3, 3)[0]
        if name == "micro_f1":
            targets = np.eye(3, dtype=bool)[targets]

        def gain(swapped: np.ndarray, b: np.ndarray = better, c: np.ndarray = champion) -> float:
            each = swapped[:, None]
            return metric.of(np.where(each, c, b), targets) - metric.of(np.where(each, b, c), targets)  # noqa: B023  # called in this round

        nothing = np.zeros(40, bool)
        swaps = [np.concatenate([(number >> np.arange(10)) & 1 == 1, nothing[10:]]) for number in range(1024)]
        seen = gain(nothing)
        exact = np.mean([gain(swap) >= seen - 1e-12 for swap in swaps])
        drawn = swapped_match(metric, better, champion, targets).p_value
        bound = swapped_match(metric, better, champion, targets, level=1e-12).p_value
        assert drawn == pytest.approx(exact, abs=0.02)
        assert bound >= exact
        told.append(bound)
    assert min(told) < 0.5, "a bound that says nothing bounds nothing"


def test_an_area_is_the_sum_of_its_rows_parts_whatever_is_swapped():
    better, targets = classes_said(1, 60, 0.8, 3)
    champion, _ = classes_said(2, 60, 0.5, 3)
    champion[::7] = better[::7]
    assert AUC.row_gains is not None
    parts = AUC.row_gains(better, champion, targets)
    random = np.random.default_rng(0)
    for _ in range(20):
        each = random.integers(2, size=60).astype(bool)[:, None]
        ours, theirs = np.where(each, champion, better), np.where(each, better, champion)
        seen = AUC.of(ours, targets) - AUC.of(theirs, targets)
        assert seen == pytest.approx(float(np.where(each[:, 0], -parts, parts).sum()), abs=1e-12)


def test_an_interval_at_a_late_look_is_wider_than_what_few_draws_reach():
    told, targets = classes_said(5, 200, 0.8)
    first, late = (
        resampled_interval(METRICS["macro_f1"], told, targets, level=level) for level in (0.05, 1e-9)
    )
    assert late[0] < first[0] < first[1] < late[1]
    assert late[1] - late[0] > 2.5 * (first[1] - first[0])
