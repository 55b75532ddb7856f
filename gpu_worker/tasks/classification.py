"""What all classifications share: a label, how sure of it, and on request the probability of each class."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gpu_worker.tasks.task import Collector, ColumnSpec, Task
from gpu_worker.wire.columns import TEXT

__all__ = ["classification"]


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
        collector=_collector,
        rules=("majority_vote", "mean", "log_pool"),
        metrics=("accuracy",),
        confidence="confidence",
    )


def _collector(rows: int, classes: Sequence[str], width: int, wanted: Collection[str]) -> Collector:
    from gpu_worker.tasks.collectors import Labels

    return Labels(rows, classes, width, wanted)
