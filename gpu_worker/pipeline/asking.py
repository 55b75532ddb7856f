"""Whom the rows of a batch are asked of next, by how sure the models are that have answered them.

The table comes with the batch (`wire.AskStep`) and is followed to the letter: what it is for, and how its
numbers were found, is the sender's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpu_worker.errors import BadRequest
from gpu_worker.networks.network import Floats
from gpu_worker.wire.protocol import AskStep

__all__ = ["ENOUGH", "AskPlan", "log_floored"]

ENOUGH = -1
_FLOOR = 1e-4  # of a probability, before its logarithm is taken

Places = NDArray[np.intp]


def log_floored(probabilities: Floats) -> Floats:
    """The logarithms, of the same shape; what is below 1e-4 counts as 1e-4."""
    found: Floats = np.log(np.maximum(probabilities, np.float32(_FLOOR)))
    return found


@dataclass(frozen=True, slots=True)
class _Step:
    """weights: of models, by place · edges: [bins − 1] · following: [bins], whom to ask."""

    weights: Mapping[int, np.float32]
    edges: NDArray[np.float64]
    following: Places


class AskPlan:
    """Of so many models. Raises `BadRequest` for steps that are no table.

    first: the place of the model that every row is asked of.
    """

    def __init__(self, steps: Sequence[AskStep], models: int) -> None:
        self._steps: dict[int, _Step] = {}
        for step in steps:
            _check(step, models)
            weights = {place: np.float32(weight) for place, weight in enumerate(step.weights) if weight}
            self._steps[step.answered] = _Step(weights, np.array(step.edges), np.array(step.next, np.intp))
        begin = self._steps.get(0)
        if begin is None or len(begin.following) != 1 or begin.following[0] == ENOUGH:
            raise BadRequest("the steps of a batch must say which model every row is asked of first")
        self.first = int(begin.following[0])

    def following(self, answered: int, logs: Mapping[int, Floats]) -> Places:
        """Of rows that these models have answered (a bit mask), the place of the next one, or `ENOUGH`.

        logs: by place, [rows, classes], the `log_floored` probabilities of those that have answered.
        """
        step = self._steps.get(answered)
        if step is None:
            return np.full(len(next(iter(logs.values()))), ENOUGH)
        pooled = sum(weight * logs[place] for place, weight in step.weights.items())
        assert isinstance(pooled, np.ndarray), "a step weighs somebody"
        pooled -= pooled.max(axis=1, keepdims=True)
        sure = 1 / np.exp(pooled).sum(axis=1)
        found: Places = step.following[np.searchsorted(step.edges, sure, side="right")]
        return found


def _check(step: AskStep, models: int) -> None:
    """Raises `BadRequest` for a step that cannot be taken: one that asks a model twice, say."""
    weighed = {place for place, weight in enumerate(step.weights) if weight}
    answered = {place for place in range(models) if step.answered >> place & 1}
    fits = (
        0 <= step.answered < 1 << models
        and (weighed <= answered and bool(weighed) if answered else not step.edges)
        and len(step.next) == len(step.edges) + 1
        and list(step.edges) == sorted(step.edges)
        and all(place == ENOUGH or (0 <= place < models and place not in answered) for place in step.next)
    )
    if not fits:
        raise BadRequest(f"the step after the models {sorted(answered)} of {models} cannot be taken: {step}")
