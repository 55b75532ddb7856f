"""From which score on a class is answered, as manifests and functions say it. Pure, standard library only."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from gpu_worker.tasks.task import Task

__all__ = ["thresholds_from", "thresholds_of"]


def thresholds_from(said: object, classes: Collection[str]) -> dict[str, float]:
    """By class, from JSON: an object of classes and numbers from 0 to 1, one number for all, null for none.

    Raises ValueError.
    """
    if said is None:
        return {}
    if not isinstance(said, Mapping):
        said = dict.fromkeys(classes, said)
    found = {}
    for label, value in said.items():
        if label not in classes:
            raise ValueError(f"'thresholds' names {str(label)[:100]!r}, which is no class of it")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise ValueError(f"'thresholds' of {label!r} must be a number from 0 to 1, not {value!r}")
        found[label] = float(value)
    return found


def thresholds_of(
    task: Task, classes: Sequence[str], models: Sequence[Mapping[str, float]], own: Mapping[str, float]
) -> tuple[float, ...]:
    """By class: a function's own threshold, else the mean of its models'; none where a row has one class.

    models: of each, by class; the task's own where one says nothing.
    """
    default = task.threshold
    if default is None:
        return ()
    return tuple(
        own[label] if label in own else sum(each.get(label, default) for each in models) / len(models)
        for label in classes
    )
