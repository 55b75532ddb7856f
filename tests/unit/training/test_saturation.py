"""When validation rows can show no better model."""

from __future__ import annotations

import pytest

from gpu_worker.tasks.metrics import METRICS
from server.training.jobs.saturation import has_stalled, shows_no_better


@pytest.mark.parametrize(
    ("errors", "rows", "shown"),
    [(0, 27, True), (5, 270, True), (6, 270, False), (5, 20, True), (6, 20, False), (60, 10_000, False)],
)
def test_a_model_without_a_fault_is_told_from_one_with_six_and_not_with_five(errors, rows, shown):
    assert shows_no_better(METRICS["accuracy"], 1 - errors / rows, rows) is shown


@pytest.mark.parametrize("metric", ["macro_f1", "auc", "log_loss", "rmse", "r2"])
def test_nothing_is_said_of_metrics_that_are_no_share_of_rows(metric):
    assert not shows_no_better(METRICS[metric], 1.0, 100)


@pytest.mark.parametrize(
    ("right", "stalled"),
    [
        ([], False),
        ([80], False),
        ([80, 79, 82, 60, 81], True),
        ([80, 79, 82, 60], False),
        ([80, 79, 82, 60, 83, 83, 83, 83], False),
        ([80, 79, 82, 60, 83, 83, 83, 83, 85], True),
    ],
)
def test_four_trials_that_gain_fewer_than_three_rows_are_chance(right, stalled):
    assert has_stalled(METRICS["accuracy"], [each / 100 for each in right], 100) is stalled
    assert not has_stalled(METRICS["auc"], [each / 100 for each in right], 100)
