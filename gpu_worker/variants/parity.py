"""A parity model of a stored model of pictures, taught by its answers (ParM, Kosaian et al., SOSP 2019, §4).

    k training pictures ─→ encoder ─→ one picture ─→ parity model ─┐
             └─→ the model itself ─→ Σ log probabilities ──────────┴→ mean squared error

It has the model's architecture, begins with its weights, and answers like any classifier: what a late picture
is follows from its softmax, since logarithms of that differ from the sum by a constant alone. Knows Parquet,
pictures and torch's modules; no server.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpu_worker.device import find_device
from gpu_worker.errors import ModelUnusable
from gpu_worker.model_files.manifest import InputSpec, Manifest
from gpu_worker.model_files.parity_spec import LEAST_PROBABILITY, SUM, ParitySpec
from gpu_worker.networks.loader import load_network, warm_up
from gpu_worker.networks.network import Floats, reading
from gpu_worker.pipeline.decode import Pixels
from gpu_worker.pipeline.encoding import encoded
from gpu_worker.tasks import task_named
from gpu_worker.variants.calibration import Calibration

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["logs_of", "parity_input", "rebuilt_places", "taught"]

_BATCH = 64
_EPOCHS = 40
_LEAST_STEPS, _MOST_STEPS = 400, 8_000
_MOST_RATE = 2e-3
_MOST_BYTES = 1 << 30  # of pictures in memory
_SEED = 1


def logs_of(scores: Floats) -> Floats:
    """The logarithms of probabilities [n, classes], each row's mean 0: a constant says nothing of a class."""
    logs = np.log(np.maximum(scores, np.float32(LEAST_PROBABILITY)))
    found: Floats = (logs - logs.mean(axis=1, keepdims=True)).astype(np.float32)
    return found


def parity_input(spec: InputSpec, parity: ParitySpec) -> InputSpec:
    """How its pictures are normalised: of a mean of k the sum of what the model sees of each."""
    if parity.encoder != SUM:
        return spec
    red, green, blue = (each / parity.k for each in spec.std)
    return dataclasses.replace(spec, std=(red, green, blue))


def taught(
    original: Manifest,
    parity: ParitySpec,
    rows: Calibration,
    on_step: Callable[[], object],
    most_steps: int = _MOST_STEPS,
) -> tuple[dict[str, Tensor], int]:
    """The weights of a parity model, and by how many pictures it was taught. rows: training rows.

    Raises `ModelUnusable` where none can be read, or torch has no module of it, and what `on_step` raises.
    """
    import torch

    from gpu_worker.networks.build import build_module

    pixels = _pixels(rows, original, on_step)
    network = load_network(original, find_device("cpu", threads=1))
    warm_up(network, original)
    answer = reading(network, task_named(original.task).reads)
    torch.manual_seed(_SEED)
    module = build_module(original.architecture, len(original.classes), dict(original.architecture_options))
    _begin_with(module, original)
    random = np.random.default_rng(_SEED)
    steps = min(most_steps, max(_LEAST_STEPS, _EPOCHS * -(-len(pixels) // _BATCH)))
    optimizer = torch.optim.AdamW(module.parameters(), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _MOST_RATE, total_steps=steps)
    scale, shift = _normalising(parity_input(original.input, parity))
    module.train()
    for groups in _groups(len(pixels), parity.k, steps, random):
        on_step()
        varied = [_varied(pixels[group], random) for group in groups]
        wanted = np.sum(
            [logs_of(np.asarray(answer(part, lambda: False), np.float32)) for part in varied], axis=0
        )
        together = np.stack([encoded(each, parity.encoder) for each in zip(*varied, strict=True)])
        seen = torch.from_numpy(together).float().mul_(scale).add_(shift).permute(0, 3, 1, 2)
        logits = module(seen)
        told = logits - logits.mean(dim=1, keepdim=True)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(told, torch.from_numpy(wanted))
        torch.autograd.backward(loss)
        optimizer.step()
        schedule.step()
    return module.state_dict(), len(pixels)


def rebuilt_places(
    own: Floats, parity: Callable[[Pixels], Floats], pixels: Pixels, spec: ParitySpec
) -> NDArray[np.int64]:
    """Of each picture the place of the class that is rebuilt for it, as if it were the late one of its group.

    own: what the model says of them, [n, classes] · parity: probabilities of encoded pictures
    """
    count, random = len(pixels), np.random.default_rng(_SEED)
    others = [random.permutation(count) for _ in range(spec.k - 1)]
    together = np.stack(
        [
            encoded([pixels[row], *(pixels[other[row]] for other in others)], spec.encoder)
            for row in range(count)
        ]
    )
    logs = logs_of(own)
    said = np.log(np.maximum(parity(together), np.float32(1e-38)))
    found: NDArray[np.int64] = (said - sum(logs[other] for other in others)).argmax(axis=1)
    return found


def _pixels(rows: Calibration, manifest: Manifest, on_step: Callable[[], object]) -> Pixels:
    most = max(1, _MOST_BYTES // (3 * manifest.input.height * manifest.input.width))
    found: list[Pixels] = []
    for batch in rows:
        on_step()
        found.append(batch)
        if sum(map(len, found)) >= most:
            break
    if not found:
        raise ModelUnusable(
            f"a parity model is taught by the dataset's training rows, and none of them can be read "
            f"({rows.skipped} tried); refresh the dataset"
        )
    return np.concatenate(found)


def _begin_with(module: nn.Module, manifest: Manifest) -> None:
    """The model's own weights, as far as they are stored as the module has them."""
    from safetensors.torch import load_file

    stored = load_file(Path(manifest.path_of_weights()))
    fitting = {
        name: stored[name].to(tensor.dtype)
        for name, tensor in module.state_dict().items()
        if name in stored and stored[name].shape == tensor.shape
    }
    module.load_state_dict(fitting, strict=False)


def _normalising(spec: InputSpec) -> tuple[Tensor, Tensor]:
    """By which uint8 pixels [n, H, W, 3] become what the network sees."""
    import torch

    std = torch.tensor(spec.std)
    return spec.preprocess.scale / std, -torch.tensor(spec.mean) / std


def _groups(count: int, k: int, steps: int, random: np.random.Generator) -> Iterator[list[NDArray[Any]]]:
    """For each step k lists of rows; every row is first in its turn, the others are drawn."""
    done = 0
    while done < steps:
        order = random.permutation(count)
        for start in range(0, count, _BATCH):
            first = order[start : start + _BATCH]
            if len(first) < 2 and count > 1:  # a batch norm learns nothing of one row
                continue
            yield [first, *(random.integers(0, count, len(first)) for _ in range(k - 1))]
            done += 1
            if done == steps:
                return


def _varied(pixels: Pixels, random: np.random.Generator) -> Pixels:
    """Moved by up to a sixteenth of a side, half of the time turned over: all of them alike."""
    if random.random() < 0.5:
        pixels = pixels[:, :, ::-1]
    reach = max(1, pixels.shape[1] // 16)
    down, across = random.integers(-reach, reach + 1, 2)
    found: Pixels = np.ascontiguousarray(np.roll(pixels, (down, across), (1, 2)))
    return found
