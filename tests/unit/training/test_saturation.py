"""When validation rows can show no better model."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gpu_worker.tasks.metrics import METRICS
from server.training.jobs.budget import Budget
from server.training.jobs.saturation import Tried, has_stalled, is_outrun, shows_no_better, stalled_after


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
    study = tried(right)
    for share in ("accuracy", "macro_f1", "micro_f1", "auc"):
        assert has_stalled(METRICS[share], study, [], 100, 4) is stalled


@pytest.mark.parametrize(
    ("errors", "stalled"),
    [
        ([], False),
        ([10.0, 9.9, 9.8, 9.75], False),
        ([10.0, 9.9, 9.8, 9.75, 9.71], True),  # of a hundred rows 3 % are chance
        ([10.0, 9.9, 9.8, 9.75, 9.69], False),
        ([10.0, 12.0, 11.0, 14.0, 10.5], True),
    ],
)
def test_four_trials_whose_error_falls_by_less_than_its_own_uncertainty_are_chance(errors, stalled):
    for error in ("rmse", "mae", "log_loss"):
        for unit in (1e-3, 1.0, 1e3):
            study = Tried(tuple(unit * each for each in errors))
            assert has_stalled(METRICS[error], study, [], 100, 4) is stalled
    unexplained = Tried(tuple(1 - each / 20 for each in errors))
    assert has_stalled(METRICS["r2"], unexplained, [], 100, 4) is stalled
    assert not has_stalled(METRICS["rmse"], Tried((10.0, 9.9, 9.8, 9.7, 9.6)), [], 10_000, 4), (
        "more rows tell more"
    )


def test_what_cannot_be_better_has_stalled_by_any_metric():
    for name, metric in METRICS.items():
        assert has_stalled(metric, Tried((metric.best,) * 5), [], 50, 4), name


@pytest.mark.parametrize(
    ("right", "stalled"),
    [
        ([], False),
        ([60, 61, 62], False),
        ([60, 70, 75, 82], True),
        ([60, 70, 75, 83], False),
        ([83, 80, 80, 80, 80], True),
    ],
)
def test_what_another_model_of_the_job_has_found_is_known_to_all(right, stalled):
    others = [tried([70, 80]), tried([]), tried([50])]
    assert has_stalled(METRICS["accuracy"], tried(right), others, 100, 4) is stalled


@pytest.mark.parametrize(
    ("metric", "score", "took_s", "outrun"),
    [
        ("accuracy", 0.82, 5.0, True),
        ("accuracy", 0.83, 5.0, False),
        ("accuracy", 0.60, 5.0, True),
        ("accuracy", 0.60, 4.0, False),
        ("auc", 0.80, 5.0, True),
        ("auc", 0.81, 5.0, False),
        ("rmse", 0.80, 5.0, True),
        ("rmse", 0.90, 5.0, True),
        ("rmse", 0.79, 5.0, False),
    ],
)
def test_a_model_that_is_slow_and_no_better_than_a_fast_one_is_outrun(metric, score, took_s, outrun):
    fast, slow = Tried((0.8,), 1.0), Tried((score,), took_s)
    assert is_outrun(METRICS[metric], slow, [Tried(), fast], 100) is outrun
    assert not is_outrun(METRICS[metric], slow, [Tried()], 100), "there is nothing to compare it with"
    assert not is_outrun(METRICS[metric], Tried(), [fast], 100), "it is tried once"
    assert not is_outrun(METRICS[metric], fast, [slow], 100)


def tried(right: Sequence[int]) -> Tried:
    """Of 100 rows so many."""
    return Tried(tuple(each / 100 for each in right), 1.0)


def test_who_asks_for_more_than_the_default_has_it_looked_for_twice_as_long():
    assert [stalled_after(Budget(seconds=seconds)) for seconds in (30, 300, 301, 3600)] == [4, 4, 8, 8]
    study = tried([80, 79, 82, 60, 81])
    assert has_stalled(METRICS["accuracy"], study, [], 100, 4)
    assert not has_stalled(METRICS["accuracy"], study, [], 100, 8)
