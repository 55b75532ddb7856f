"""What is where in a picture: boxes in its own pixels, with a label and how sure of it, the surest first."""

from __future__ import annotations

from gpu_worker.tasks.task import IMAGE_FORMS, Collecting, Collector, ColumnSpec, Task
from gpu_worker.wire.columns import BOXES, TEXT

__all__ = ["OBJECT_DETECTION"]


def _collector(collecting: Collecting) -> Collector:
    from gpu_worker.tasks.collectors import BoxLists

    return BoxLists(collecting)


OBJECT_DETECTION = Task(
    "object-detection",
    IMAGE_FORMS,
    (ColumnSpec("boxes", TEXT, content=BOXES),),
    reads="boxes",
    collector=_collector,
    rules=("weighted_boxes",),
    metrics=("map_50", "map"),
    threshold=0.0,
    worth="map",
)
