"""The training loop: a spec and examples in, weights out; reports after every epoch, stops when asked.

Examples are images or texts (`Examples`); the loop does not know which, and holds those of one batch.

Randomness of epoch e comes from hash(seed, e) alone. So a run that was stopped and goes on from its
checkpoint ends with the very weights of one that was not, and no generator's state needs to be kept.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from gpu_worker.networks.build import build_module
from gpu_worker.train.checkpoint import TrainingState, read_checkpoint, write_checkpoint
from gpu_worker.train.spec import TrainSpec

__all__ = [
    "Epoch",
    "Examples",
    "Trained",
    "TrainingStopped",
    "accuracy_of",
    "answers_of",
    "begin",
    "probabilities_of",
    "steps_of_epoch",
    "train",
    "train_epoch",
]

_EVALUATION_ROWS = 128


class Examples(Protocol):
    """Labelled examples of one split."""

    @property
    def labels(self) -> Tensor:
        """int64 [n], indices into `classes`; −1 = none of them."""
        ...

    @property
    def classes(self) -> tuple[str, ...]:
        """What the labels are."""
        ...

    def __len__(self) -> int:
        """How many there are."""
        ...

    def varied(
        self, rows: Tensor, spec: TrainSpec, generator: torch.Generator, device: torch.device
    ) -> Tensor:
        """Some rows as the module takes them in training, each varied anew."""
        ...

    def plain(self, start: int, end: int, spec: TrainSpec, device: torch.device) -> Tensor:
        """Rows from `start` to before `end` as the module takes them in serving."""
        ...

    def content(self) -> Iterable[bytes]:
        """All that the rows are, in parts, for a hash."""
        ...


class TrainingStopped(Exception):
    """`should_stop` said so. What the last whole epoch left is in the checkpoint, if there is one."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """What one epoch brought. `validation_accuracy` is the train split's where there is no validation."""

    epoch: int  # 1 for the first
    epochs: int
    train_loss: float
    validation_accuracy: float
    best_accuracy: float
    learning_rate: float
    took_s: float


@dataclass(frozen=True, slots=True)
class Trained:
    """The weights of the epoch that was best on the validation images, in `module`."""

    module: nn.Module
    epoch: int
    validation_accuracy: float


def train(
    spec: TrainSpec,
    examples: Examples,
    validation: Examples,
    *,
    device: str = "cpu",
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
    should_stop: Callable[[], bool] = lambda: False,
    checkpoint: str | None = None,
    allow_import: bool = False,
) -> Trained:
    """Trains a new module, or goes on from the file `checkpoint`, which it rewrites after every epoch.

    `on_epoch` is called in this thread; `should_stop` before every step. Raises `TrainingStopped`;
    `ModelUnusable` for an unknown architecture or options; `ValueError` for a checkpoint of another run.
    """
    with torch.random.fork_rng():
        module, optimiser = begin(spec, len(examples.classes), device=device, allow_import=allow_import)
        run = _run_id(spec, examples)
        state = read_checkpoint(checkpoint, module, optimiser, run) if checkpoint else None
        state = state or TrainingState(0, 0, -1.0, {})
        while state.epoch < spec.epochs:
            began_s = time.monotonic()
            loss = train_epoch(spec, state.epoch, module, optimiser, examples, should_stop)
            accuracy = accuracy_of(module, validation if len(validation) else examples, spec)
            state.epoch += 1
            if accuracy >= state.best_accuracy:
                best = {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}
                state = TrainingState(state.epoch, state.epoch, accuracy, best)
            if checkpoint:
                write_checkpoint(checkpoint, state, module, optimiser, run)
            rate = optimiser.param_groups[0]["lr"]
            took_s = time.monotonic() - began_s
            on_epoch(Epoch(state.epoch, spec.epochs, loss, accuracy, state.best_accuracy, rate, took_s))
    module.load_state_dict(state.best)
    return Trained(module.eval(), state.best_epoch, state.best_accuracy)


def begin(
    spec: TrainSpec, classes: int, *, device: str = "cpu", allow_import: bool = False
) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A new module with the weights that the spec's seed gives, and its optimiser. Raises `ModelUnusable`.

    Sets torch's global generator.
    """
    torch.manual_seed(_seed(spec.seed, 0))
    module = build_module(
        spec.architecture, classes, dict(spec.architecture_options), allow_import=allow_import
    )
    module.to(device)
    # torch's stubs lack this overload, which its documentation names first.
    module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return module, torch.optim.AdamW(_groups(module, spec), lr=spec.learning_rate)


@torch.inference_mode()
def accuracy_of(module: nn.Module, examples: Examples, spec: TrainSpec) -> float:
    """The share of examples whose highest score is their label; leaves the module in eval mode."""
    if not len(examples):
        return 0.0
    right, start = 0, 0
    for part in _answered(module, examples, spec):
        right += int((part.argmax(dim=1) == examples.labels[start : start + len(part)]).sum())
        start += len(part)
    return right / len(examples)


@torch.inference_mode()
def probabilities_of(module: nn.Module, examples: Examples, spec: TrainSpec) -> Tensor:
    """float32 [n, classes], on the CPU, of at least one example; leaves the module in eval mode."""
    return torch.cat(list(_answered(module, examples, spec)))


@torch.inference_mode()
def answers_of(module: nn.Module, examples: Examples, spec: TrainSpec, rows: slice) -> Tensor:
    """As `probabilities_of`, of the rows from `rows.start` to before `rows.stop`, in one pass."""
    module.eval()
    device = next(module.parameters()).device
    answered: Tensor = module(examples.plain(rows.start, rows.stop, spec, device)).softmax(dim=1).cpu()
    return answered


def _answered(module: nn.Module, examples: Examples, spec: TrainSpec) -> Iterator[Tensor]:
    """Probabilities, some rows at a time: float32 [n, classes], on the CPU."""
    for start in range(0, len(examples), _EVALUATION_ROWS):
        yield answers_of(module, examples, spec, slice(start, start + _EVALUATION_ROWS))


def train_epoch(
    spec: TrainSpec,
    epoch: int,
    module: nn.Module,
    optimiser: torch.optim.Optimizer,
    examples: Examples,
    should_stop: Callable[[], bool],
    *,
    weights: Tensor | None = None,
) -> float:
    """One pass over all examples: epoch number `epoch` (0 for the first) of `spec.epochs`; the mean loss.

    weights: float32 [n], what each example's loss counts; None = all the same.

    Raises `TrainingStopped`. Sets torch's global generator.
    """
    device = next(module.parameters()).device

    def loss_of(rows: Tensor, generator: torch.Generator) -> Tensor:
        inputs = examples.varied(rows, spec, generator, device)
        labels = examples.labels[rows].to(device)
        weighs = None if weights is None else weights[rows].to(device)
        return _loss(module(inputs), labels, weighs, spec.label_smoothing)

    return steps_of_epoch(spec, epoch, module, optimiser, len(examples), loss_of, should_stop)


def steps_of_epoch(
    spec: TrainSpec,
    epoch: int,
    module: nn.Module,
    optimiser: torch.optim.Optimizer,
    count: int,
    loss_of: Callable[[Tensor, torch.Generator], Tensor],
    should_stop: Callable[[], bool],
) -> float:
    """One pass over `count` examples, whatever they are and whatever they cost; the mean loss of a row.

    loss_of: rows, and what their variation is drawn by → their mean loss. Raises as `train_epoch`.
    """
    seed = _seed(spec.seed, epoch + 1)
    torch.manual_seed(seed)  # dropout
    generator = torch.Generator().manual_seed(seed)  # order and augmentation
    order = torch.randperm(count, generator=generator)
    starts = _starts(count, spec.batch_rows)
    module.train()
    total = torch.zeros((), device=next(module.parameters()).device)
    taught = 0
    for step, start in enumerate(starts):
        rows = order[start : start + spec.batch_rows]
        if should_stop():
            raise TrainingStopped(f"training stopped in epoch {epoch + 1} of {spec.epochs}")
        rate = spec.learning_rate_at((epoch + step / len(starts)) / spec.epochs)
        for group in optimiser.param_groups:
            group["lr"] = rate
        loss = loss_of(rows, generator)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        optimiser.step()
        total += loss.detach() * len(rows)
        taught += len(rows)
    return float(total) / max(1, taught)


def _loss(logits: Tensor, labels: Tensor, weights: Tensor | None, label_smoothing: float) -> Tensor:
    if weights is None:
        return functional.cross_entropy(logits, labels, label_smoothing=label_smoothing)
    # Divided by the rows, not by their weights: a batch without rare rows would count as much as any other.
    losses = functional.cross_entropy(logits, labels, label_smoothing=label_smoothing, reduction="none")
    return (losses * weights).mean()


def _starts(count: int, rows: int) -> range:
    """Where batches begin; a last one of a single row is left out, for batch norms need two."""
    return range(0, count - 1, rows)


def _groups(module: nn.Module, spec: TrainSpec) -> list[dict[str, Any]]:
    weights = [parameter for parameter in module.parameters() if parameter.dim() > 1]
    others = [parameter for parameter in module.parameters() if parameter.dim() <= 1]
    return [
        {"params": weights, "weight_decay": spec.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]


def _seed(seed: int, turn: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}/{turn}".encode()).digest()[:7], "big")


def _run_id(spec: TrainSpec, examples: Examples) -> str:
    """A hash of all that decides the outcome."""
    text = json.dumps([asdict(spec), examples.classes], sort_keys=True, default=str)
    digest = hashlib.sha256(text.encode())
    digest.update(examples.labels.numpy().tobytes())
    for part in examples.content():
        digest.update(part)
    return digest.hexdigest()
