"""Networks of the food log's dishes, and their parity models (ParM, SOSP 2019), made as the server does.

What is told of them is from photos that none of them ever saw.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image
from torch import Tensor, nn

from examples.foodlog.dishes import DISHES
from examples.foodlog.draw import Album, draw_album
from examples.foodlog.labels import choose_labels
from gpu_worker.model_files.manifest import InputSpec, Manifest
from gpu_worker.model_files.saving import save_model
from gpu_worker.networks.build import build_module
from gpu_worker.variants.judging import MakingRows, made_and_judged
from gpu_worker.wire.protocol import MakeVariant

__all__ = [
    "Photos",
    "both_right",
    "photos",
    "rebuilt",
    "right",
    "trained",
]

_SIDE = 64
_BATCH = 64
_MOST_RATE = 2e-3


@dataclass(frozen=True, slots=True)
class Photos:
    """pixels: [n, 3, 64, 64], about −2 to 2. labels: [n]. paths: of the files. The last `held_out` of them
    nobody learns from.
    """

    pixels: Tensor
    labels: Tensor
    held_out: int
    paths: list[str]

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
    paths = [folder / "images" / label.image_path for label in labels]
    pixels = np.stack([_pixels(path) for path in paths])
    told = torch.tensor([names.index(label.food_name) for label in labels])
    return Photos(
        (torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.25,
        told,
        images // 5,
        [str(path) for path in paths],
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


def right(network: nn.Module, seen: Photos) -> float:
    """The share of unseen photos whose dish it names."""
    return _share(_logits(network, seen.pixels[seen.unseen]), seen.labels[seen.unseen])


def rebuilt(network: nn.Module, architecture: str, seen: Photos, recipe: str, folder: Path) -> float:
    """The share of unseen photos whose dish is rebuilt by a parity model, made and judged as variants are.

    recipe: parity-2, parity-2-sum, …
    """
    told = made_and_judged(
        MakeVariant(
            0,
            str(_stored(network, architecture, folder)),
            str(folder / recipe),
            f"food~{recipe}",
            recipe,
            1,
            str(_snapshot(seen, folder)),
            "validation",
            0,
            len(seen.labels),
        ),
        MakingRows(lambda path: Path(path.decode()).read_bytes(), 1 << 24, lambda: None),
    )
    return sum(told.right) / len(told.right)


def both_right(networks: Sequence[nn.Module], seen: Photos) -> float:
    """The share of unseen photos that networks name together, by the mean of their logarithms."""
    pixels, labels = seen.pixels[seen.unseen], seen.labels[seen.unseen]
    return _share(torch.stack([_logits(each, pixels).log_softmax(1) for each in networks]).sum(0), labels)


def _stored(network: nn.Module, architecture: str, folder: Path) -> Path:
    where = folder / architecture
    if not where.exists():
        shape = InputSpec("path", _SIDE, _SIDE, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
        names = tuple(sorted(DISHES))
        task = "image-classification"
        manifest = Manifest(str(where), "food", 1, task, "torch", architecture, names, shape)
        save_model(manifest, network.state_dict())
    return where


def _snapshot(seen: Photos, folder: Path) -> Path:
    place = folder / "rows.parquet"
    if not place.exists():
        names = sorted(DISHES)
        splits = ["train"] * seen.lessons.stop + ["validation"] * seen.held_out
        targets = [names[label] for label in seen.labels.tolist()]
        pq.write_table(pa.table({"input": seen.paths, "target": targets, "split": splits}), place)
    return place


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
