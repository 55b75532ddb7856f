"""What one training run is: everything that decides its outcome, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from gpu_worker.model_files.manifest import InputSpec
from gpu_worker.train.augment import Augment

__all__ = ["Schedule", "TrainSpec"]

Schedule = Literal["one_cycle", "cosine", "constant", "cool_down"]

_INPUT = InputSpec("path", 64, 64, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))


@dataclass(frozen=True, slots=True)
class TrainSpec:
    """The same spec, data, device and number of threads give the same weights, bit for bit on a CPU.

    learning_rate: the highest of the run. warm_up: the share of steps in which `one_cycle` rises to it;
    it and `cosine` then fall to 0 along a cosine (Smith & Topin 2018; Loshchilov & Hutter 2017), as
    `cool_down` does after `cool_from` constant epochs (Hägele et al. 2024).
    weight_decay is AdamW's, decoupled; biases and batch norms are spared. augment is for images; forget, the
    share of tokens that is left out anew in every epoch, for texts.
    """

    architecture: str
    epochs: int = 12
    architecture_options: Mapping[str, Any] = field(default_factory=dict)
    input: InputSpec = _INPUT
    batch_rows: int = 32
    learning_rate: float = 4e-3
    weight_decay: float = 0.02
    schedule: Schedule = "one_cycle"
    warm_up: float = 0.25
    cool_from: int = 0
    label_smoothing: float = 0.05
    augment: Augment = field(default_factory=Augment)
    forget: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_rows < 2:
            raise ValueError("a run needs at least 1 epoch, and batches of at least 2 rows")
        if not (self.learning_rate > 0 and self.weight_decay >= 0 and 0 <= self.label_smoothing < 1):
            raise ValueError("learning_rate must be above 0, weight_decay and label_smoothing not below")
        if not 0 <= self.forget < 1:
            raise ValueError("forget is a share of the tokens, from 0 to below 1")
        if not 0 <= self.cool_from < self.epochs:
            raise ValueError("cool_from is a number of epochs, from 0 to below all of them")
        if not 0 < self.warm_up < 1:
            raise ValueError("warm_up is a share of the steps, between 0 and 1")

    def learning_rate_at(self, progress: float) -> float:
        """The learning rate after `progress` (0 to 1) of all steps."""
        if self.schedule == "constant":
            return self.learning_rate
        if self.schedule == "cool_down":
            fallen = max(0.0, progress * self.epochs - self.cool_from) / (self.epochs - self.cool_from)
            return self.learning_rate * 0.5 * (1 + math.cos(math.pi * fallen))
        rise = self.warm_up if self.schedule == "one_cycle" else 0.0
        if progress < rise:
            return self.learning_rate * (0.04 + 0.96 * progress / rise)
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * (progress - rise) / (1 - rise)))
