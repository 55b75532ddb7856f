"""Networks of the food log's dishes, and parity models of them (ParM, SOSP 2019): k photos added, one answer.

    parity(x₁ + … + xₖ) ≈ F(x₁) + … + F(xₖ)      learned by distillation from F's logits
    answer of a late xⱼ  =  parity(x₁ + … + xₖ) − the others' logits

F and its parity models share an architecture, as in the paper. What is told of them is from photos that none
of them ever saw.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from examples.foodlog.dishes import DISHES
from examples.foodlog.draw import Album, draw_album
from examples.foodlog.labels import choose_labels
from gpu_worker.networks.build import build_module

__all__ = [
    "Photos",
    "both_right",
    "parity_accuracy",
    "photos",
    "right",
    "trained",
    "trained_parity",
]

_SIDE = 64
_BATCH = 64
_MOST_RATE = 2e-3


@dataclass(frozen=True, slots=True)
class Photos:
    """pixels: [n, 3, 64, 64], about −2 to 2. labels: [n]. The last `held_out` of them nobody learns from."""

    pixels: Tensor
    labels: Tensor
    held_out: int

    @property
    def lessons(self) -> slice:
        return slice(0, len(self.labels) - self.held_out)

    @property
    def unseen(self) -> slice:
        return slice(len(self.labels) - self.held_out, len(self.labels))


def photos(folder: Path, images: int, seed: int) -> Photos:
    """Drawn as `make demo` draws them, in their order."""
    album = Album(images=images, rows=1, seed=seed)
    draw_album(folder, album)
    names = sorted(DISHES)
    labels = choose_labels(images, list(DISHES), seed)
    pixels = np.stack([_pixels(folder / "images" / label.image_path) for label in labels])
    told = torch.tensor([names.index(label.food_name) for label in labels])
    return Photos(
        (torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.25, told, images // 5
    )


def trained(architecture: str, seen: Photos, epochs: int, seed: int) -> nn.Module:
    """A network that names the dish of a photo."""
    torch.manual_seed(seed)
    network = build_module(architecture, int(seen.labels.max()) + 1, {})
    pixels, labels = seen.pixels[seen.lessons], seen.labels[seen.lessons]

    def loss(rows: Tensor) -> Tensor:
        return nn.functional.cross_entropy(network(_augmented(pixels[rows])), labels[rows])

    _learn(network, loss, len(labels), epochs)
    return network


def trained_parity(
    architecture: str, of: nn.Module, seen: Photos, k: int, epochs: int, seed: int
) -> nn.Module:
    """A network that answers the sum of `of`'s logits for the sum of k photos, drawn anew for each step."""
    torch.manual_seed(seed)
    network = build_module(architecture, int(seen.labels.max()) + 1, {})
    pixels = seen.pixels[seen.lessons]

    def loss(rows: Tensor) -> Tensor:
        groups = [_augmented(pixels[rows])]
        groups += [_augmented(pixels[torch.randint(len(pixels), (len(rows),))]) for _ in range(k - 1)]
        with torch.no_grad():
            wanted = torch.stack([of(each) for each in groups]).sum(0)
        return nn.functional.mse_loss(network(torch.stack(groups).sum(0)), wanted)

    _learn(network, loss, len(pixels), epochs)
    return network


def right(network: nn.Module, seen: Photos) -> float:
    """The share of unseen photos whose dish it names."""
    return _share(_logits(network, seen.pixels[seen.unseen]), seen.labels[seen.unseen])


def parity_accuracy(network: nn.Module, parity: nn.Module, seen: Photos, k: int, seed: int) -> float:
    """The share of unseen photos whose dish is reconstructed, each once as the late one of a group."""
    generator = torch.Generator().manual_seed(seed)
    pixels, labels = seen.pixels[seen.unseen], seen.labels[seen.unseen]
    logits = _logits(network, pixels)
    others = torch.stack([torch.randperm(len(labels), generator=generator) for _ in range(k - 1)])
    together = pixels + sum(pixels[each] for each in others)
    rebuilt = _logits(parity, together) - sum(logits[each] for each in others)
    return _share(rebuilt, labels)


def both_right(networks: Sequence[nn.Module], seen: Photos) -> float:
    """The share of unseen photos that networks name together, by the mean of their logarithms."""
    pixels, labels = seen.pixels[seen.unseen], seen.labels[seen.unseen]
    return _share(torch.stack([_logits(each, pixels).log_softmax(1) for each in networks]).sum(0), labels)


def _learn(network: nn.Module, loss_of: Callable[[Tensor], Tensor], examples: int, epochs: int) -> None:
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=0.01)
    steps = epochs * -(-examples // _BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _MOST_RATE, total_steps=steps)
    network.train()
    for _ in range(epochs):
        for rows in torch.randperm(examples).split(_BATCH):
            optimizer.zero_grad()
            loss_of(rows).backward()
            optimizer.step()
            schedule.step()
    network.eval()


def _augmented(pixels: Tensor) -> Tensor:
    """Turned over, half of them, and moved by up to four pixels: all of a step alike."""
    if torch.rand(()) < 0.5:
        pixels = pixels.flip(3)
    down, along = (int(torch.randint(-4, 5, ())) for _ in range(2))
    return pixels.roll((down, along), (2, 3))


@torch.no_grad()
def _logits(network: nn.Module, pixels: Tensor) -> Tensor:
    return torch.cat([network(part) for part in pixels.split(256)])


def _share(logits: Tensor, labels: Tensor) -> float:
    return float((logits.argmax(1) == labels).float().mean())


def _pixels(path: Path) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB").resize((_SIDE, _SIDE)))
