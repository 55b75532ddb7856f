"""When a job has found what its validation rows can show: nothing better, or nothing more. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gpu_worker.tasks.metrics import Metric
from server.training.jobs.budget import Budget

__all__ = ["Tried", "has_stalled", "is_outrun", "shows_no_better", "stalled_after"]

_ERRORS = 6  # that a perfect model would have to spare: 2 · 0.5^6 is below 0.05, 2 · 0.5^5 is not
_ROWS_GAINED = 3  # by which a trial must be better than what was known: fewer are chance
_ERROR_GAINED = 0.3  # times 1 / √rows of an error: less is chance
_TRIALS, _TRIALS_IF_ASKED = 4, 8  # in a row that are not; where more than the default budget was asked for
_TIMES_AS_FAST = 4.0  # below that, how fast two models are learnt is chance as well


@dataclass(frozen=True, slots=True)
class Tried:
    """What a study has tried. scores: of the trials that ended, in the order of their beginning. least_s:
    what the quickest of them took.
    """

    scores: tuple[float, ...] = ()
    least_s: float = 0.0


def shows_no_better(metric: Metric, score: float, rows: int) -> bool:
    """Whether not even a model without a fault could be told from one of that `score` on so many rows.

    By the sign test (Dixon & Mood 1946) of the rows that one answers rightly and the other wrongly. Only
    accuracy is a share of rows; of other metrics nothing is said.
    """
    return metric.name == "accuracy" and (1 - score) * rows < _ERRORS - 0.5


def stalled_after(budget: Budget) -> int:
    """Trials in a row that gain nothing but by chance, after which a study ends.

    Who asks for more time than a job has by default wants the score and not the time: there the next four
    trials still find something (docs/benchmarks.md, bench-tuning).
    """
    return _TRIALS if budget.is_short else _TRIALS_IF_ASKED


def has_stalled(metric: Metric, study: Tried, others: Sequence[Tried], rows: int, trials: int) -> bool:
    """Whether the last `trials` of a study were no better than what was known before them, by it or by the
    other studies of the job, but for chance.

    Who always goes on for one more row that happens to be right, or for a last digit of an error, chooses by
    these rows and not by what is behind them.
    """
    merits = [metric.merit(score) for score in study.scores]
    known, since = max((metric.merit(score) for other in others for score in other.scores), default=None), 0
    for merit in merits:
        if known is None or merit - known > _gained_by_chance(metric, metric.value(known), rows):
            known, since = merit, 0
        else:
            since += 1
    return since >= trials


def is_outrun(metric: Metric, study: Tried, others: Sequence[Tried], rows: int) -> bool:
    """Whether a model that is learnt several times as fast answers as well, but for chance: to tune that one
    costs little, and to tune the slow one as well finds little more.
    """
    if not study.scores:
        return False
    best = max(map(metric.merit, study.scores))
    return any(
        best - max(map(metric.merit, other.scores)) <= _chance(metric, rows)
        for other in others
        if other.scores and study.least_s > _TIMES_AS_FAST * other.least_s
    )


def _gained_by_chance(metric: Metric, value: float, rows: int) -> float:
    """The gain over that value that may be chance.

    Of shares (accuracy, F1, AUC) what fewer than three rows bring; rare classes' rows bring more, so that is
    the least. Of errors, and of what r2 leaves unexplained, about a standard error of the difference: of two
    models whose rows' squared errors are normal ones and correlate by 0.9 it is 0.3 / √rows of the error.
    """
    if metric.best == 1.0 and metric.name != "r2":
        return (_ROWS_GAINED - 0.5) / rows
    return _ERROR_GAINED * abs(metric.best - value) / math.sqrt(rows)


def _chance(metric: Metric, rows: int) -> float:
    """The gain that may be one; 0 where it is not known."""
    return (_ROWS_GAINED - 0.5) / rows if metric.name == "accuracy" else 0.0
