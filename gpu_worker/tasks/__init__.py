"""The tasks, one file each. A new one is a file here, and a line in `TASKS`.

Whoever needs a task asks `task_named`; nobody else compares names of tasks. Standard library only, but for
`collectors`, which a worker imports: the server and `local:` read these objects too.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from gpu_worker.tasks.classification import classification
from gpu_worker.tasks.image_classification import IMAGE_CLASSIFICATION
from gpu_worker.tasks.image_embedding import IMAGE_EMBEDDING
from gpu_worker.tasks.tabular_classification import TABULAR_CLASSIFICATION
from gpu_worker.tasks.task import Collector, ColumnSpec, Task
from gpu_worker.tasks.text_classification import TEXT_CLASSIFICATION

__all__ = [
    "IMAGE_CLASSIFICATION",
    "IMAGE_EMBEDDING",
    "TABULAR_CLASSIFICATION",
    "TASKS",
    "TEXT_CLASSIFICATION",
    "Collector",
    "ColumnSpec",
    "Task",
    "task_named",
]

TASKS: Mapping[str, Task] = MappingProxyType(
    {
        task.name: task
        for task in (IMAGE_CLASSIFICATION, TEXT_CLASSIFICATION, TABULAR_CLASSIFICATION, IMAGE_EMBEDDING)
    }
)


def task_named(name: str) -> Task:
    """The task of that name. A model may name one that is not known here: it classifies."""
    return TASKS.get(name) or classification(name)
