"""What a network saw in a row, as a vector: the numbers that its last layer would have looked at."""

from __future__ import annotations

from gpu_worker.tasks.classification import IMAGE_CLASSIFICATION, TEXT_CLASSIFICATION
from gpu_worker.tasks.multilabel import IMAGE_MULTILABEL, TEXT_MULTILABEL
from gpu_worker.tasks.regression import IMAGE_REGRESSION, TEXT_REGRESSION
from gpu_worker.tasks.task import Collecting, Collector, ColumnSpec, Task

__all__ = ["IMAGE_EMBEDDING", "TEXT_EMBEDDING"]


def _embedding(name: str, *models_of: Task) -> Task:
    # One member answers alone: numbers of two networks do not mean the same, so that neither a mean of them
    # nor a vote says anything, and one vector behind the other is another model with other neighbours.
    return Task(
        name,
        models_of[0].forms,
        (ColumnSpec("embedding", "FP32", ("features",)),),
        reads="features",
        collector=_collector,
        models_of=tuple(task.name for task in models_of),
    )


def _collector(collecting: Collecting) -> Collector:
    from gpu_worker.tasks.collectors import Vectors

    return Vectors("embedding", collecting)


IMAGE_EMBEDDING = _embedding("image-embedding", IMAGE_CLASSIFICATION, IMAGE_MULTILABEL, IMAGE_REGRESSION)
TEXT_EMBEDDING = _embedding("text-embedding", TEXT_CLASSIFICATION, TEXT_MULTILABEL, TEXT_REGRESSION)
