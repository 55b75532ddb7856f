"""The metrics say what scikit-learn's say."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn import metrics as reference

from gpu_worker.tasks import TASKS
from gpu_worker.tasks.metrics import METRICS, Score, confusion_matrix, metric_named

RANDOM = np.random.default_rng(3)


def probabilities(rows: int, classes: int) -> np.ndarray:
    raw: np.ndarray = RANDOM.random((rows, classes)) ** 3
    told: np.ndarray = raw / raw.sum(axis=1, keepdims=True)
    return told


@pytest.fixture(params=[2, 5], ids=["two classes", "five classes"])
def answered(request):
    told = probabilities(200, request.param)
    right = RANDOM.random(200) < 0.6
    targets = np.where(right, told.argmax(axis=1), RANDOM.integers(request.param, size=200))
    return told, targets


def test_accuracy_f1_and_the_confusion_matrix(answered):
    told, targets = answered
    named = told.argmax(axis=1)
    assert metric_named("accuracy").of(told, targets) == reference.accuracy_score(targets, named)
    expected = reference.f1_score(targets, named, average="macro")
    assert metric_named("macro_f1").of(told, targets) == pytest.approx(expected)
    np.testing.assert_array_equal(
        confusion_matrix(told, targets, told.shape[1]), reference.confusion_matrix(targets, named)
    )


def test_auc_and_log_loss(answered):
    told, targets = answered
    if told.shape[1] == 2:
        area = reference.roc_auc_score(targets, told[:, 1])
    else:
        area = reference.roc_auc_score(targets, told, multi_class="ovr")
    assert metric_named("auc").of(told, targets) == pytest.approx(area, abs=1e-6)
    expected = reference.log_loss(targets, told.astype(np.float64), labels=range(told.shape[1]))
    assert metric_named("log_loss").of(told, targets) == pytest.approx(expected, rel=1e-6)


def test_auc_gives_ties_half_a_chance():
    told = np.array([[0.5, 0.5], [0.5, 0.5], [0.2, 0.8], [0.9, 0.1]])
    targets = np.array([0, 1, 1, 0])
    assert metric_named("auc").of(told, targets) == reference.roc_auc_score(targets, told[:, 1])


def test_auc_of_rows_of_one_class_says_nothing():
    assert metric_named("auc").of(probabilities(5, 2), np.zeros(5, np.int64)) == 0.5


def test_micro_f1_of_labels():
    targets = RANDOM.random((100, 4)) < 0.3
    told = np.clip(targets * 0.5 + RANDOM.random((100, 4)) * 0.6, 0, 1)
    expected = reference.f1_score(targets, told >= 0.5, average="micro")
    assert metric_named("micro_f1").of(told, targets) == pytest.approx(expected)
    assert metric_named("micro_f1").of(np.zeros((2, 4)), np.zeros((2, 4), np.bool_)) == 0.0


def test_errors_of_numbers():
    targets = RANDOM.normal(50, 20, 300)
    told = (targets + RANDOM.normal(0, 5, 300))[:, None]
    assert metric_named("rmse").of(told, targets) == pytest.approx(
        reference.root_mean_squared_error(targets, told[:, 0])
    )
    assert metric_named("mae").of(told, targets) == pytest.approx(
        reference.mean_absolute_error(targets, told[:, 0])
    )
    assert metric_named("r2").of(told, targets) == pytest.approx(reference.r2_score(targets, told[:, 0]))


def test_a_value_with_an_interval_is_judged_by_its_value():
    targets = RANDOM.normal(size=20)
    told = np.stack([targets, targets - 9, targets + 9], axis=1)
    assert metric_named("rmse").of(told, targets) == 0.0


@pytest.mark.parametrize("constant", [7.0, 0.0])
def test_r2_of_targets_that_are_all_one_number(constant):
    targets = np.full(5, constant)
    for told in (targets, targets + 1):
        assert metric_named("r2").of(told[:, None], targets) == reference.r2_score(targets, told)


def test_a_row_of_no_class_is_never_answered_rightly():
    told, targets = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([-1, 1])
    assert metric_named("accuracy").of(told, targets) == 0.5
    assert metric_named("macro_f1").of(told, targets) == reference.f1_score(
        targets, [0, 1], average="macro", zero_division=0
    )
    assert math.isfinite(metric_named("log_loss").of(told, targets))
    assert confusion_matrix(told, targets, 2).tolist() == [[0, 0], [0, 1]]


def test_the_loss_of_each_row_makes_the_metric(answered):
    told, targets = answered
    for name in ("accuracy", "log_loss"):
        metric = METRICS[name]
        assert metric.row_losses is not None
        mean = metric.row_losses(told, targets).mean()
        assert metric.of(told, targets) == pytest.approx(1 - mean if name == "accuracy" else mean)


def test_scores_are_compared_by_merit_whichever_way_a_metric_points():
    assert Score("accuracy", 0.9).merit > Score("accuracy", 0.8).merit
    assert Score("rmse", 2.0).merit > Score("rmse", 3.0).merit
    assert METRICS["rmse"].value(Score("rmse", 2.0).merit) == 2.0


def test_how_far_a_score_is_behind_knows_no_unit():
    assert METRICS["accuracy"].behind(0.85, 0.9) == pytest.approx(0.05)
    cents, euros = METRICS["rmse"].behind(1100.0, 1000.0), METRICS["rmse"].behind(11.0, 10.0)
    assert cents == pytest.approx(euros) == pytest.approx(0.1)


def test_a_score_knows_the_loss_of_the_same_rows(answered):
    told, targets = answered
    found = METRICS["accuracy"].score(told, targets)
    assert found == Score(
        "accuracy", METRICS["accuracy"].of(told, targets), METRICS["log_loss"].of(told, targets)
    )


def test_no_rows_have_no_score():
    with pytest.raises(ValueError, match="no rows"):
        METRICS["accuracy"].score(np.zeros((0, 2)), np.zeros(0, np.int64))


def test_a_metric_that_is_not_there_is_told_those_that_are():
    with pytest.raises(ValueError, match="accuracy, macro_f1, auc"):
        metric_named("f2")


def test_every_metric_of_a_task_is_there():
    named = {name for task in TASKS.values() for name in task.metrics}
    assert named - METRICS.keys() - {"confusion", "map_50", "map"} == set()
