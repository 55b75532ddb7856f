"""What a network saw in a picture, as a vector: the numbers that its classifier would have looked at."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gpu_worker.tasks.image_classification import IMAGE_CLASSIFICATION
from gpu_worker.tasks.task import Collector, ColumnSpec, Task

__all__ = ["IMAGE_EMBEDDING"]


def _collector(rows: int, _classes: Sequence[str], width: int, _wanted: Collection[str]) -> Collector:
    from gpu_worker.tasks.collectors import Vectors

    return Vectors("embedding", rows, width)


# One member answers alone: numbers of two networks do not mean the same, so that neither a mean of them nor a
# vote says anything, and one vector behind the other is another model with other neighbours.
IMAGE_EMBEDDING = Task(
    "image-embedding",
    IMAGE_CLASSIFICATION.forms,
    (ColumnSpec("embedding", "FP32", ("features",)),),
    reads="features",
    collector=_collector,
    models_of=(IMAGE_CLASSIFICATION.name,),
)
