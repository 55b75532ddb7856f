"""A number for a row, and on request the interval in which the model expects it."""

from __future__ import annotations

from gpu_worker.tasks.task import IMAGE_FORMS, ROW_FORMS, TEXT_FORMS, Collecting, Collector, ColumnSpec, Task

__all__ = ["IMAGE_REGRESSION", "TABULAR_REGRESSION", "TEXT_REGRESSION"]


def _regression(name: str, *forms: str) -> Task:
    return Task(
        name,
        forms,
        (
            ColumnSpec("value", "FP64"),
            # No number where the model gives no interval.
            ColumnSpec("low", "FP64", on_request=True),
            ColumnSpec("high", "FP64", on_request=True),
        ),
        reads="values",
        collector=_collector,
        rules=("mean", "weighted_mean"),
        metrics=("rmse", "mae", "r2"),
        worth="r2",
    )


def _collector(collecting: Collecting) -> Collector:
    from gpu_worker.tasks.collectors import Values

    return Values(collecting)


IMAGE_REGRESSION = _regression("image-regression", *IMAGE_FORMS)
TEXT_REGRESSION = _regression("text-regression", *TEXT_FORMS)
TABULAR_REGRESSION = _regression("tabular-regression", *ROW_FORMS)
