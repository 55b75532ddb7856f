"""Which of a model's classes a row has, where it may have several or none: those that are probable enough."""

from __future__ import annotations

from gpu_worker.tasks.task import IMAGE_FORMS, ROW_FORMS, TEXT_FORMS, Collecting, Collector, ColumnSpec, Task
from gpu_worker.wire.columns import LABELS, TEXT

__all__ = ["IMAGE_MULTILABEL", "TABULAR_MULTILABEL", "TEXT_MULTILABEL"]


def _multilabel(name: str, *forms: str) -> Task:
    return Task(
        name,
        forms,
        (
            ColumnSpec("labels", TEXT, content=LABELS),
            ColumnSpec("scores", "FP32", ("classes",), on_request=True),
        ),
        reads="scores",
        activation="sigmoid",
        collector=_collector,
        rules=("mean",),
        metrics=("micro_f1",),
        threshold=0.5,
        worth="micro_f1",
    )


def _collector(collecting: Collecting) -> Collector:
    from gpu_worker.tasks.collectors import LabelSets

    return LabelSets(collecting)


IMAGE_MULTILABEL = _multilabel("image-multilabel", *IMAGE_FORMS)
TEXT_MULTILABEL = _multilabel("text-multilabel", *TEXT_FORMS)
TABULAR_MULTILABEL = _multilabel("tabular-multilabel", *ROW_FORMS)
