"""From which score on a class is answered, as manifests and functions say it. Pure, standard library only."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from gpu_worker.tasks.task import Task

__all__ = ["thresholds_from", "thresholds_of"]

_ADDED = 1e-6  # that a sum of thresholds may be off


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
    """By class: a function's own threshold, else the mean of its models'.

    models: of each, by class; the task's own where one says nothing. Where a row has one class there are none
    but a function's own. They add up to 1 then, so those that it does not name share what is left, and the
    class is answered whose score is the largest part of its threshold: of two classes, the second from its
    threshold on (Elkan 2001, "The foundations of cost-sensitive learning", §2). Raises ValueError for own
    ones that leave nothing, or too much.
    """
    if task.picks_one:
        return _of_one_class(classes, own) if own else ()
    default = task.threshold
    if default is None:
        return ()
    return tuple(
        own[label] if label in own else sum(each.get(label, default) for each in models) / len(models)
        for label in classes
    )


def _of_one_class(classes: Sequence[str], own: Mapping[str, float]) -> tuple[float, ...]:
    left, others = 1.0 - sum(own.values()), len(classes) - len(own)
    if min(own.values()) <= 0 or (left <= 0 if others else abs(left) > _ADDED):
        raise ValueError(
            "'thresholds' of a task that answers one class of several are above 0 and add up to 1, "
            "those of classes that are not named too"
        )
    return tuple(own[label] if label in own else left / others for label in classes)
