"""Which of a model's classes a row has: a label, how sure of it, on request the probability of each class."""

from __future__ import annotations

from gpu_worker.tasks.task import (
    FILE_FORMS,
    IMAGE_FORMS,
    ROW_FORMS,
    TEXT_FORMS,
    Collecting,
    Collector,
    ColumnSpec,
    Task,
)
from gpu_worker.wire.columns import TEXT

__all__ = [
    "FILE_CLASSIFICATION",
    "IMAGE_CLASSIFICATION",
    "TABULAR_CLASSIFICATION",
    "TEXT_CLASSIFICATION",
    "classification",
]


def classification(name: str, *forms: str) -> Task:
    """The classification of that name, whose rows come in these forms."""
    return Task(
        name,
        forms,
        (
            ColumnSpec("label", TEXT),
            ColumnSpec("confidence", "FP32"),
            # As many as there are classes: for who asks for them.
            ColumnSpec("scores", "FP32", ("classes",), on_request=True),
        ),
        reads="scores",
        activation="softmax",
        collector=_collector,
        rules=("majority_vote", "mean", "log_pool"),
        metrics=("accuracy", "macro_f1", "auc", "log_loss"),
        confidence="confidence",
    )


def _collector(collecting: Collecting) -> Collector:
    from gpu_worker.tasks.collectors import Labels

    return Labels(collecting)


IMAGE_CLASSIFICATION = classification("image-classification", *IMAGE_FORMS)
TEXT_CLASSIFICATION = classification("text-classification", *TEXT_FORMS)
TABULAR_CLASSIFICATION = classification("tabular-classification", *ROW_FORMS)
FILE_CLASSIFICATION = classification("file-classification", *FILE_FORMS)
