"""The tasks, one file for each kind. A new one is an object there, and a name in `TASKS`.

Whoever needs a task asks `task_named`; nobody else compares names of tasks. Standard library only, but for
`collectors` and `boxes`, which a worker imports: the server and `local:` read these objects too.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from gpu_worker.tasks.classification import (
    FILE_CLASSIFICATION,
    IMAGE_CLASSIFICATION,
    TABULAR_CLASSIFICATION,
    TEXT_CLASSIFICATION,
    classification,
)
from gpu_worker.tasks.detection import OBJECT_DETECTION
from gpu_worker.tasks.embedding import IMAGE_EMBEDDING, TEXT_EMBEDDING
from gpu_worker.tasks.generation import TEXT_GENERATION
from gpu_worker.tasks.multilabel import IMAGE_MULTILABEL, TABULAR_MULTILABEL, TEXT_MULTILABEL
from gpu_worker.tasks.regression import IMAGE_REGRESSION, TABULAR_REGRESSION, TEXT_REGRESSION
from gpu_worker.tasks.task import Collecting, Collector, ColumnSpec, Reads, Task

__all__ = [
    "FILE_CLASSIFICATION",
    "IMAGE_CLASSIFICATION",
    "IMAGE_EMBEDDING",
    "IMAGE_MULTILABEL",
    "IMAGE_REGRESSION",
    "OBJECT_DETECTION",
    "TABULAR_CLASSIFICATION",
    "TABULAR_MULTILABEL",
    "TABULAR_REGRESSION",
    "TASKS",
    "TEXT_CLASSIFICATION",
    "TEXT_EMBEDDING",
    "TEXT_GENERATION",
    "TEXT_MULTILABEL",
    "TEXT_REGRESSION",
    "Collecting",
    "Collector",
    "ColumnSpec",
    "Reads",
    "Task",
    "task_named",
]

TASKS: Mapping[str, Task] = MappingProxyType(
    {
        task.name: task
        for task in (
            IMAGE_CLASSIFICATION,
            TEXT_CLASSIFICATION,
            TABULAR_CLASSIFICATION,
            FILE_CLASSIFICATION,
            IMAGE_MULTILABEL,
            TEXT_MULTILABEL,
            TABULAR_MULTILABEL,
            IMAGE_REGRESSION,
            TEXT_REGRESSION,
            TABULAR_REGRESSION,
            IMAGE_EMBEDDING,
            TEXT_EMBEDDING,
            OBJECT_DETECTION,
            TEXT_GENERATION,
        )
    }
)


def task_named(name: str) -> Task:
    """The task of that name. A model may name one that is not known here: it classifies."""
    return TASKS.get(name) or classification(name)
