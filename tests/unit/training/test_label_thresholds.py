"""Thresholds of labels: chosen where rows show that they gain, and told by metrics that know one half."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import f1_score

from gpu_worker.tasks.metrics import METRICS
from server.training.promotion.label_thresholds import (
    chosen_thresholds,
    moved_to_half,
    thresholds_by_label,
)

F1 = METRICS["micro_f1"]


def test_a_rare_label_is_answered_below_one_half_where_that_gains() -> None:
    random = np.random.default_rng(0)
    targets = random.random((400, 2)) < [0.1, 0.5]
    scores = np.where(targets, [0.35, 0.9], [0.1, 0.1]).astype(np.float32)
    scores += random.normal(0, 0.02, scores.shape).astype(np.float32)
    found = chosen_thresholds(scores, targets)
    assert found[0] == pytest.approx(0.25, abs=0.1)
    assert found[1] == 0.5, "of equally good ones that next to one half"
    assert F1.of(scores, targets) < 0.95
    moved = moved_to_half(scores, found)
    assert F1.of(moved, targets) == pytest.approx(f1_score(targets, scores >= found, average="micro"))
    assert F1.of(moved, targets) > 0.99
    assert thresholds_by_label(found, ["rare", "often"]) == {"rare": found[0]}


def test_few_rows_and_no_gain_leave_one_half() -> None:
    scores = np.full((30, 1), 0.3, np.float32)
    few = np.zeros((30, 1), bool)
    few[:9] = True
    assert chosen_thresholds(scores, few).tolist() == [0.5]
    right = np.zeros((30, 1), bool)
    right[:15] = True
    assert chosen_thresholds(np.where(right, 0.9, 0.1).astype(np.float32), right).tolist() == [0.5]
    assert thresholds_by_label(None, ["a"]) == {}
    assert thresholds_by_label(np.array([0.5]), ["a"]) == {}


@pytest.mark.parametrize("threshold", [0.05, 0.3, 0.5, 0.95])
def test_moving_keeps_the_order_and_who_is_answered(threshold: float) -> None:
    scores = np.sort(np.random.default_rng(1).random((1000, 1)).astype(np.float32), axis=0)
    scores[500] = np.float32(threshold)
    scores = np.sort(scores, axis=0)
    moved = moved_to_half(scores, np.array([threshold]))
    assert ((moved >= 0.5) == (scores >= np.float32(threshold))).all()
    assert (np.diff(moved[:, 0]) >= 0).all()
    assert moved.min() >= 0
    assert moved.max() <= 1
