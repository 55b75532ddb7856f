"""A text that a model writes about a text; JSON where the model keeps to a schema."""

from __future__ import annotations

from gpu_worker.tasks.task import TEXT_FORMS, Collecting, Collector, ColumnSpec, Task
from gpu_worker.wire.columns import TEXT

__all__ = ["TEXT_GENERATION"]


def _collector(collecting: Collecting) -> Collector:
    from gpu_worker.tasks.collectors import Texts

    return Texts(collecting)


TEXT_GENERATION = Task(
    "text-generation", TEXT_FORMS, (ColumnSpec("text", TEXT),), reads="texts", collector=_collector
)
