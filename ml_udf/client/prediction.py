"""The answers to a column of values, one per row, and what they cost. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from ml_udf.client.column import InputColumn, Value
from ml_udf.client.exchange import AnswerDetail, Exchange, Outcomes
from ml_udf.errors import MlUdfError

__all__ = ["CallStats", "Prediction", "all_failed", "short", "spread"]


@dataclass(slots=True)
class CallStats:
    """What one call cost: of `rows`, `distinct` values were sent in `batches` requests.

    cached  of the values that were sent, those that the server had an answer for that it had given before
    """

    rows: int = 0
    nulls: int = 0
    distinct: int = 0
    batches: int = 0
    retries: int = 0
    failed_rows: int = 0
    elapsed_s: float = 0.0
    cached: int = 0

    def __add__(self, other: CallStats) -> CallStats:
        """What both cost together."""
        names = [item.name for item in fields(self)]
        return CallStats(**{name: getattr(self, name) + getattr(other, name) for name in names})

    def add_asking(self, call: CallStats) -> None:
        """Take in what asking cost; rows and NULLs are counted where they come in."""
        self.distinct += call.distinct
        self.batches += call.batches
        self.retries += call.retries
        self.failed_rows += call.failed_rows
        self.cached += call.cached
        self.elapsed_s += call.elapsed_s


@dataclass(slots=True)
class Prediction:
    """The answers to a column, one per row, in its order.

    A NULL row has no value and no error; an answered one a value (and a confidence, where the server gives
    one); a faulty one an error and no value. details: of answered rows, where they were asked for.
    """

    values: list[Any]
    confidences: list[float | None]
    errors: list[MlUdfError | None]
    details: list[AnswerDetail | None]
    model_version: str
    stats: CallStats

    def first_error(self) -> tuple[int, MlUdfError] | None:
        """The lowest faulty row, with its error."""
        if not self.stats.failed_rows:
            return None
        return next(((row, error) for row, error in enumerate(self.errors) if error), None)


def spread(column: InputColumn, answers: Outcomes, exchange: Exchange, *, batches: int) -> Prediction:
    """The answers of the distinct values as those of all rows.

    batches  in how many requests of `exchange` they came; the time that the call took is its caller's to fill
             in
    """
    errors: list[MlUdfError | None] = column.spread(answers.errors)
    for row, refused in column.errors.items():
        errors[row] = refused
    stats = CallStats(
        rows=len(column.place),
        nulls=column.place.count(-1) - len(column.errors),
        distinct=len(column.distinct),
        batches=batches,
        retries=exchange.retries,
        failed_rows=len(errors) - errors.count(None),
        cached=exchange.cached,
    )
    return Prediction(
        column.spread(answers.values),
        column.spread(answers.confidences),
        errors,
        column.spread(answers.details),
        exchange.info.version,
        stats,
    )


def all_failed(values: Sequence[Value], error: MlUdfError, elapsed_s: float) -> Prediction:
    """`error` for every row that is not NULL."""
    rows = len(values)
    errors = [None if value is None else error for value in values]
    failed = sum(found is not None for found in errors)
    stats = CallStats(rows=rows, nulls=rows - failed, failed_rows=failed, elapsed_s=elapsed_s)
    return Prediction([None] * rows, [None] * rows, errors, [None] * rows, "", stats)


def short(value: Value) -> str:
    """A value as an error message shows it."""
    text = repr(value)
    return text if len(text) <= 80 else text[:60] + "…" + text[-19:]
