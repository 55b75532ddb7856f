"""`ml_udf.evaluate`, `confusion_matrix` and `importance`: the rows of their results.

Importance answers again with the values of one column dealt out anew: how much worse the answers become is
how much the function needs it (Breiman 2001, "Random forests", §10; Fisher, Rudin & Dominici 2019).
"""

from __future__ import annotations

from statistics import fmean, stdev
from typing import Any

from ml_udf.errors import BadOption
from ml_udf.evaluation.answered import Answered, target_of
from ml_udf.evaluation.metrics import GREATER_IS_BETTER, METRICS, confusion, metric_value, metrics_of
from ml_udf.evaluation.sources import Source

__all__ = ["confusion_rows", "evaluation_rows", "importance_rows"]

_MOST_REPEATS = 100
_Row = dict[str, Any]


def evaluation_rows(source: Source) -> list[_Row]:
    """A row for each metric: its name, its value, the baseline's, on how many rows. Raises as `Source`."""
    has_scores = target_of(source.info) == "label" and source.info.has_scores
    answered = source.answered(with_probabilities=has_scores)
    return [
        {"metric": name, "value": value, "baseline": baseline, "rows": answered.rows}
        for name, value, baseline in metrics_of(answered)
    ]


def confusion_rows(source: Source) -> list[_Row]:
    """How many rows of each label were called each. Raises as `Source`."""
    if target_of(source.info) != "label":
        raise BadOption(
            f"{source.info.name} does not name one class a row, so that none can be taken for another",
            hint="ml_udf.evaluate has its metrics",
        )
    return [
        {"actual": actual, "predicted": predicted, "rows": rows}
        for actual, predicted, rows in confusion(source.answered())
    ]


def importance_rows(source: Source, *, repeats: int, seed: int) -> list[_Row]:
    """A row for each column of a function of tables: how much worse its first metric becomes.

    The most important column first. repeats: how often a column's values are dealt out, by `seed`; spread:
    the standard deviation over them, None of one alone. Raises as `Source`.
    """
    info = source.info
    if not info.columns:
        raise BadOption(
            f"{info.name} does not take the columns of a table", hint="importance is of a table's columns"
        )
    if not 1 <= repeats <= _MOST_REPEATS:
        raise BadOption(f"repeats = {repeats} is out of bounds", hint=f"use 1 to {_MOST_REPEATS}")
    metric = METRICS[target_of(info)][0]
    whole = _merit(metric, source.answered())
    found = []
    for name in info.column_names:
        losses = [
            whole - _merit(metric, source.answered(dealt=name, seed=f"{seed}/{name}/{number}"))
            for number in range(repeats)
        ]
        spread = stdev(losses) if repeats > 1 else None
        found.append({"feature": name, "importance": fmean(losses), "spread": spread, "metric": metric})
    return sorted(found, key=lambda row: (-row["importance"], row["feature"]))


def _merit(metric: str, answered: Answered) -> float:
    """The metric's value, or its negative: the larger, the better. Raises `BadOption` for no rows."""
    if not answered.rows:
        raise BadOption("there is no row that has a target and an answer", hint="look at the query by itself")
    value = metric_value(metric, answered)
    return value if metric in GREATER_IS_BETTER else -value
