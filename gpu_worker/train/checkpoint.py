"""A run's state between two epochs, as one safetensors file: weights, optimiser, best weights so far.

Never pickle: a checkpoint may come from a parameter store that others write to.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from gpu_worker.model_files.saving import write_tensors

__all__ = [
    "TrainingState",
    "read_checkpoint",
    "read_optimiser",
    "write_checkpoint",
    "write_optimiser",
]


@dataclass(slots=True)
class TrainingState:
    """`epoch` epochs are done. `best` are the weights of `best_epoch`, the best on the validation images."""

    epoch: int
    best_epoch: int
    best_accuracy: float
    best: Mapping[str, Tensor]


def write_checkpoint(
    path: str, state: TrainingState, module: nn.Module, optimiser: torch.optim.Optimizer, run: str
) -> None:
    """Replaces the file atomically. `run` identifies spec and data; see `read_checkpoint`."""
    tensors = {
        **{f"weights.{name}": tensor for name, tensor in module.state_dict().items()},
        **{f"best.{name}": tensor for name, tensor in state.best.items()},
        **_slots(optimiser),
    }
    facts = {"epoch": state.epoch, "best_epoch": state.best_epoch, "best_accuracy": state.best_accuracy}
    write_tensors(path, tensors, {"run": run, "state": json.dumps(facts)})


def read_checkpoint(
    path: str, module: nn.Module, optimiser: torch.optim.Optimizer, run: str
) -> TrainingState | None:
    """Puts the stored state into `module` and `optimiser`; None when there is no file.

    Raises `ValueError` when the file is damaged or belongs to another run.
    """
    if not os.path.exists(path):
        return None
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except SafetensorError as exc:
        raise ValueError(f"the checkpoint {path} is damaged: {exc}") from exc
    if metadata.get("run") != run:
        raise ValueError(
            f"the checkpoint {path} is of another run (other spec or data); remove it or name another"
        )
    facts: dict[str, Any] = json.loads(metadata["state"])
    module.load_state_dict(_below("weights.", tensors))
    _put_slots(tensors, optimiser)
    return TrainingState(
        facts["epoch"], facts["best_epoch"], facts["best_accuracy"], _below("best.", tensors)
    )


def write_optimiser(path: str, optimiser: torch.optim.Optimizer) -> None:
    """Replaces the file atomically."""
    write_tensors(path, _slots(optimiser))


def read_optimiser(path: str, optimiser: torch.optim.Optimizer) -> None:
    """Puts a stored state into `optimiser`. Raises `OSError`; `ValueError` for a damaged file."""
    try:
        _put_slots(load_file(path), optimiser)
    except SafetensorError as exc:
        raise ValueError(f"the optimiser's state {path} is damaged: {exc}") from exc


def _slots(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    slots = optimiser.state_dict()["state"]
    return {f"slot.{index}.{name}": value for index, slot in slots.items() for name, value in slot.items()}


def _put_slots(tensors: Mapping[str, Tensor], optimiser: torch.optim.Optimizer) -> None:
    slots: dict[int, dict[str, Tensor]] = {}
    for name, value in _below("slot.", tensors).items():
        index, _, key = name.partition(".")
        slots.setdefault(int(index), {})[key] = value
    optimiser.load_state_dict({**optimiser.state_dict(), "state": slots})


def _below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}
