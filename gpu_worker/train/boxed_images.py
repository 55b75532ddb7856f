"""Pictures with the boxes that were drawn in them, kept in memory as uint8. Knows files, not training."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow.parquet as pq
import torch
from torch import Tensor
from torch.nn import functional

from gpu_worker.pipeline.decode import upright_size
from gpu_worker.tasks.average_precision import NO_BOX, Boxed
from gpu_worker.train.snapshot import SPLITS, Pictures

__all__ = ["BoxedImages", "BoxedSnapshot", "read_boxed"]


@dataclass(frozen=True, slots=True, eq=False)
class BoxedImages:
    """pixels: uint8 [n, H, W, 3] · boxes: float32 [n, m, 4], x0, y0, x1, y1 in those pixels · labels: int64
    [n, m], indices into `classes`; NO_BOX = there is none.
    """

    pixels: Tensor
    boxes: Tensor
    labels: Tensor
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.pixels)

    def targets(self) -> Boxed:
        """As metrics of boxes take them."""
        return np.concatenate(
            [self.boxes.numpy(), self.labels[:, :, None].numpy().astype(np.float32)], axis=2, dtype=np.float32
        )


@dataclass(frozen=True, slots=True, eq=False)
class BoxedSnapshot:
    """By split, in the snapshot's order; `skipped`: rows that could no longer be read, by path."""

    parts: Mapping[str, BoxedImages]
    skipped: tuple[str, ...]

    def examples(self, *splits: str) -> BoxedImages:
        """Those of train, validation or test, or of several of them together. Raises `ValueError`."""
        for split in splits:
            if split not in self.parts:
                raise ValueError(f"there is no split {split!r}; there are {', '.join(sorted(self.parts))}")
        parts = [self.parts[split] for split in splits]
        most = max(part.labels.shape[1] for part in parts)
        missing = [most - part.labels.shape[1] for part in parts]
        return BoxedImages(
            torch.cat([part.pixels for part in parts]),
            torch.cat(
                [
                    functional.pad(part.boxes, (0, 0, 0, more))
                    for part, more in zip(parts, missing, strict=True)
                ]
            ),
            torch.cat(
                [
                    functional.pad(part.labels, (0, more), value=NO_BOX)
                    for part, more in zip(parts, missing, strict=True)
                ]
            ),
            parts[0].classes,
        )

    @property
    def nbytes(self) -> int:
        """What it takes of this process's memory."""
        return sum(
            part.pixels.nbytes + part.boxes.nbytes + part.labels.nbytes for part in self.parts.values()
        )


def read_boxed(
    path: str,
    classes: Sequence[str],
    *,
    height: int,
    width: int,
    read: Callable[[bytes], bytes],
    max_pixels: int,
    ahead: Callable[[Sequence[str]], None] = lambda rows: None,
) -> BoxedSnapshot:
    """Decodes every picture of a snapshot once, its boxes with it. Raises as `Pictures.decoded`."""
    index = {label: at for at, label in enumerate(classes)}
    pictures = Pictures(path, height, width, read, max_pixels, ahead)
    pixels: dict[str, list[Tensor]] = {split: [] for split in SPLITS}
    boxes: dict[str, list[list[list[float]]]] = {split: [] for split in SPLITS}
    with pq.ParquetFile(path) as file:
        for split, target, data, image in pictures.decoded(file):
            rows, columns = upright_size(data)
            to_input = np.tile([width / columns, height / rows], 2)
            pixels[split].append(torch.from_numpy(image.copy()))
            boxes[split].append(
                [
                    [*(np.array(told["box"]) * to_input).tolist(), float(index.get(told["label"], NO_BOX))]
                    for told in json.loads(target)
                ]
            )
    empty = torch.empty((0, height, width, 3), dtype=torch.uint8)
    parts = {}
    for split in SPLITS:
        most = max(map(len, boxes[split]), default=0)
        table = np.full((len(boxes[split]), most, 5), NO_BOX, np.float32)
        for row, found in enumerate(boxes[split]):
            table[row, : len(found)] = np.array(found, np.float32).reshape(-1, 5)
        parts[split] = BoxedImages(
            torch.stack(pixels[split]) if pixels[split] else empty,
            torch.from_numpy(table[:, :, :4].copy()),
            torch.from_numpy(table[:, :, 4].astype(np.int64)),
            tuple(classes),
        )
    return BoxedSnapshot(parts, tuple(pictures.skipped))
