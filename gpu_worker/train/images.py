"""Examples' pixels, decoded once and kept in memory as uint8. Knows files and labels, not training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_worker.device import usable_cores
from gpu_worker.errors import RowFault
from gpu_worker.model_files.manifest import InputSpec
from gpu_worker.pipeline.decode import decode_image
from gpu_worker.train.examples import Example, Split
from gpu_worker.train.spec import TrainSpec

__all__ = ["ImageExamples", "decode_examples", "normalised_pixels"]


@dataclass(frozen=True, slots=True, eq=False)
class ImageExamples:
    """pixels: uint8 [n, H, W, 3]; labels: int64 [n], indices into `classes`."""

    pixels: Tensor
    labels: Tensor
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)

    def varied(
        self, rows: Tensor, spec: TrainSpec, generator: torch.Generator, device: torch.device
    ) -> Tensor:
        """See `loop.Examples.varied`: float32 [n, 3, H, W]."""
        return normalised_pixels(spec.augment.apply(self.pixels[rows], generator).to(device), spec.input)

    def plain(self, start: int, end: int, spec: TrainSpec, device: torch.device) -> Tensor:
        """See `loop.Examples.plain`: float32 [n, 3, H, W]."""
        return normalised_pixels(self.pixels[start:end].to(device).float(), spec.input)

    def content(self) -> Iterator[bytes]:
        """See `loop.Examples.content`."""
        for image in self.pixels.numpy():
            yield image.tobytes()


def decode_examples(
    examples: Sequence[Example],
    height: int,
    width: int,
    *,
    max_pixels: int = 64_000_000,
    threads: int = 0,
) -> dict[Split, ImageExamples]:
    """The images of every split, as serving will see them; `classes` are those of the train split, sorted.

    Takes 12 KiB of memory per image at 64×64. Raises `ValueError`: an image cannot be decoded, there is
    nothing to train on, or a label occurs only outside the train split. `OSError`: a file cannot be read.
    """
    parts: dict[Split, list[Example]] = {"train": [], "validation": [], "test": []}
    for example in examples:
        parts[example.split].append(example)
    classes = tuple(sorted({example.label for example in parts["train"]}))
    if len(classes) < 2:
        raise ValueError(f"the train split holds {len(classes)} different labels; at least 2 are needed")
    index = {label: at for at, label in enumerate(classes)}
    unseen = sorted({example.label for example in examples} - set(classes))
    if unseen:
        raise ValueError(f"no image of the train split is labelled {', '.join(unseen)}")

    def one(example: Example) -> Tensor:
        with open(example.path, "rb") as file:
            data = file.read()
        try:
            return torch.from_numpy(decode_image(data, height, width, max_pixels=max_pixels).copy())
        except RowFault as fault:
            raise ValueError(f"{example.path}: {fault.message}") from fault

    with ThreadPoolExecutor(threads or usable_cores(), "decode") as pool:
        return {
            split: ImageExamples(
                torch.stack(pixels) if (pixels := list(pool.map(one, part))) else _none(height, width),
                torch.tensor([index[example.label] for example in part], dtype=torch.int64),
                classes,
            )
            for split, part in parts.items()
        }


def normalised_pixels(pixels: Tensor, spec: InputSpec) -> Tensor:
    """float32 [n, H, W, 3] in 0…255 → normalised [n, 3, H, W], channels_last."""
    mean = torch.tensor(spec.mean, device=pixels.device) * 255
    std = torch.tensor(spec.std, device=pixels.device) * 255
    return ((pixels - mean) / std).permute(0, 3, 1, 2)


def _none(height: int, width: int) -> Tensor:
    return torch.empty((0, height, width, 3), dtype=torch.uint8)
