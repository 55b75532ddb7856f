"""A torch module of the zoo that learns from images or texts, by `loop`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from safetensors.torch import load_file

from gpu_worker.errors import BadRequest
from gpu_worker.model_files.regular import optimiser_file
from gpu_worker.model_files.saving import write_tensors
from gpu_worker.tasks.metrics import Predictions, Targets
from gpu_worker.train.checkpoint import read_optimiser, write_optimiser
from gpu_worker.train.learner import EpochResult, Evaluation, Objective, row_time
from gpu_worker.train.loop import Examples, answers_of, begin, probabilities_of, train_epoch
from gpu_worker.train.spec import TrainSpec

if TYPE_CHECKING:
    from torch import nn

__all__ = ["NetworkLearner", "evaluated", "warm"]


class NetworkLearner:
    """See `Learner`. start: a checkpoint whose tensors of the same name and shape it begins with, or "".

    With a `start_epoch` above 0 the checkpoint is its own, with its optimiser's state beside it. Raises
    `ModelUnusable`, `OSError`, `ValueError`.
    """

    suffix = ".safetensors"

    def __init__(
        self,
        spec: TrainSpec,
        objective: Objective,
        examples: Examples,
        validation: Examples,
        *,
        skipped: int,
        start: str,
        start_epoch: int,
        device: str,
        allow_import: bool,
    ) -> None:
        self._examples = examples
        weights = objective.row_weights(examples.labels.numpy())
        self._weights = None if weights is None else torch.from_numpy(weights.astype(np.float32))
        self._validation = validation
        self._begin(
            spec,
            objective,
            len(examples.classes),
            skipped=skipped,
            start=start,
            start_epoch=start_epoch,
            device=device,
            allow_import=allow_import,
        )

    def _begin(
        self,
        spec: TrainSpec,
        objective: Objective,
        classes: int,
        *,
        skipped: int,
        start: str,
        start_epoch: int,
        device: str,
        allow_import: bool = False,
    ) -> None:
        self.skipped = skipped
        self.epoch = start_epoch
        self._spec = spec
        self._metric = objective.metric
        self._module, self._optimiser = begin(spec, classes, device=device, allow_import=allow_import)
        if start:
            warm(self._module, start)
        if start_epoch:
            read_optimiser(optimiser_file(start), self._optimiser)
        self._best_merit = -math.inf
        self._best: dict[str, torch.Tensor] = {}

    def learn(self, should_stop: Callable[[], bool]) -> EpochResult:
        """See `Learner.learn`."""
        loss = self._teach(should_stop)
        score = self._metric.score(self._answers(), self._targets())
        self.epoch += 1
        if score.merit > self._best_merit:
            self._best_merit = score.merit
            self._best = {name: tensor.detach().clone() for name, tensor in self._module.state_dict().items()}
        return EpochResult(loss, score)

    def _teach(self, should_stop: Callable[[], bool]) -> float:
        """One pass over the training rows; their mean loss."""
        return train_epoch(
            self._spec,
            self.epoch,
            self._module,
            self._optimiser,
            self._examples,
            should_stop,
            weights=self._weights,
        )

    def _answers(self) -> Predictions:
        """To the validation rows, as the metric takes them."""
        found: Predictions = probabilities_of(self._module, self._validation, self._spec).numpy()
        return found

    def _targets(self) -> Targets:
        """What was to be answered."""
        found: Targets = self._validation.labels.numpy()
        return found

    def write(self, path: str, *, best: bool) -> None:
        """See `Learner.write`."""
        write_tensors(path, self._best if best else self._module.state_dict())

    def write_state(self, path: str) -> None:
        """See `Learner.write_state`."""
        write_optimiser(optimiser_file(path), self._optimiser)


def evaluated(
    spec: TrainSpec, examples: Examples, start: str, *, device: str, allow_import: bool
) -> Evaluation:
    """What the checkpoint `start` answers. Raises `BadRequest` for one of another architecture."""
    module, _ = begin(spec, len(examples.classes), device=device, allow_import=allow_import)
    if warm(module, start):
        raise BadRequest(f"the checkpoint {start} is not of {spec.architecture} with these knobs")
    rows = probabilities_of(module, examples, spec).numpy()
    row_s = row_time(lambda part: answers_of(module, examples, spec, part), len(examples))
    return Evaluation(rows, examples.labels.numpy(), row_s)


def warm(module: nn.Module, checkpoint: str) -> list[str]:
    """Puts the checkpoint's tensors into those of the same name and shape; the names of all others."""
    stored = load_file(checkpoint)
    cold = []
    with torch.no_grad():
        for name, tensor in module.state_dict().items():
            if name in stored and stored[name].shape == tensor.shape:
                tensor.copy_(stored[name])
            else:
                cold.append(name)
    return cold
