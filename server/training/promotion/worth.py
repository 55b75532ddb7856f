"""What plans go by where a deployment's members answer no classes: what each subset is worth. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from gpu_worker.tasks import Task
from gpu_worker.tasks.metrics import METRICS
from server.ensemble.fit import Fit, subsets_of
from server.ensemble.worths import fit_of_worths
from server.training.promotion.selection import Scores, subset_scores

__all__ = ["worths_fit"]


def worths_fit(task: Task, scores: Mapping[str, Scores], targets: NDArray[Any]) -> Fit | None:
    """By the task's `worth`, of members that answer by their mean, on validation rows.

    scores: of each member float32 [n, width]; targets: as the metric takes them. None of one member alone, of
    more than plans can choose among, and of a task whose answers are weighed by how often they are right.
    """
    names = tuple(sorted(scores))
    metric = METRICS.get(task.worth)
    if metric is None or len(names) < 2 or len(subsets_of(len(names))) < 2 ** len(names) - 1:
        return None
    worths = {
        tuple(names.index(name) for name in subset): worth
        for subset, worth in subset_scores(metric, scores, targets).items()
    }
    return fit_of_worths(names, worths, len(targets), rule=task.rules[0], measure=metric.name)
