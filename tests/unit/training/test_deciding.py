"""From which probability on the second of two classes is answered: where validation rows ask for it."""

from __future__ import annotations

import numpy as np
import pytest

from gpu_worker.tasks.metrics import METRICS
from server.training.promotion.deciding import decided, decision_thresholds

F1 = METRICS["macro_f1"]


def rare(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """One row of twenty is of the second class, and seldom more probable than not."""
    random = np.random.default_rng(seed)
    labels = (np.arange(rows) % 20 == 0).astype(np.int64)
    logits = np.where(labels == 1, -1.0, -4.0) + random.normal(0, 0.8, rows)
    second = 1 / (1 + np.exp(-logits))
    return np.stack([1 - second, second], axis=1), labels


def test_rare_rows_are_found_from_a_lower_threshold_on_in_new_rows_too():
    scores, labels = rare(2_000)
    thresholds = decision_thresholds(F1, scores, labels)
    assert 0.02 < thresholds[1] < 0.4
    assert sum(thresholds) == pytest.approx(1)
    fresh, truth = rare(2_000, seed=1)
    assert F1.of(decided(fresh, thresholds), truth) > F1.of(fresh, truth) + 0.1


def test_what_is_answered_is_the_second_class_from_its_threshold_on():
    scores = np.array([[0.71, 0.29], [0.69, 0.31], [0.0, 1.0], [1.0, 0.0]])
    assert decided(scores, (0.7, 0.3)).argmax(axis=1).tolist() == [0, 1, 1, 0]
    assert decided(scores, (0.7, 0.3)).sum(axis=1) == pytest.approx(1)
    assert decided(scores, ()) is scores


@pytest.mark.parametrize("metric", ["accuracy", "auc", "log_loss"])
def test_metrics_that_count_rows_or_probabilities_ask_for_none(metric: str):
    assert decision_thresholds(METRICS[metric], *rare(400)) == ()


def test_a_single_rare_row_shows_nothing():
    assert decision_thresholds(F1, *rare(20)) == ()
    assert decision_thresholds(F1, np.zeros((0, 2)), np.zeros(0, np.int64)) == ()
    assert decision_thresholds(F1, np.full((50, 2), 0.5), np.arange(50) % 2) == (), "all are alike"


def test_several_classes_are_answered_by_the_most_probable():
    assert decision_thresholds(F1, np.eye(3)[np.arange(60) % 3], np.arange(60) % 3) == ()
