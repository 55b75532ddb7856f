"""When a job has found what its validation rows can show. Pure."""

from __future__ import annotations

from gpu_worker.tasks.metrics import Metric

__all__ = ["shows_no_better"]

_ERRORS = 6  # that a perfect model would have to spare: 2 · 0.5^6 is below 0.05, 2 · 0.5^5 is not


def shows_no_better(metric: Metric, score: float, rows: int) -> bool:
    """Whether not even a model without a fault could be told from one of that `score` on so many rows.

    By the sign test (Dixon & Mood 1946) of the rows that one answers rightly and the other wrongly. Only
    accuracy is a share of rows; of other metrics nothing is said.
    """
    return metric.name == "accuracy" and (1 - score) * rows < _ERRORS - 0.5
