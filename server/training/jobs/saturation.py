"""When a job has found what its validation rows can show: nothing better, or nothing more. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_worker.tasks.metrics import Metric

__all__ = ["has_stalled", "shows_no_better"]

_ERRORS = 6  # that a perfect model would have to spare: 2 · 0.5^6 is below 0.05, 2 · 0.5^5 is not
_ROWS_GAINED = 3  # by which a trial must be better than what was known: fewer are chance
_TRIALS = 4  # in a row that are not


def shows_no_better(metric: Metric, score: float, rows: int) -> bool:
    """Whether not even a model without a fault could be told from one of that `score` on so many rows.

    By the sign test (Dixon & Mood 1946) of the rows that one answers rightly and the other wrongly. Only
    accuracy is a share of rows; of other metrics nothing is said.
    """
    return metric.name == "accuracy" and (1 - score) * rows < _ERRORS - 0.5


def has_stalled(metric: Metric, scores: Sequence[float], rows: int) -> bool:
    """Whether the last trials that ended were no better than what was known before them, but for chance.

    scores: of trials in the order of their beginning. Of accuracy alone, as above: who always goes on for one
    more row that happens to be right, chooses by these rows and not by what is behind them.
    """
    if metric.name != "accuracy" or not scores:
        return False
    known, since = scores[0], 0
    for score in scores[1:]:
        if (score - known) * rows > _ROWS_GAINED - 0.5:
            known, since = score, 0
        else:
            since += 1
    return since >= _TRIALS
