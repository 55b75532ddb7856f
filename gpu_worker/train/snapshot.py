"""A dataset's snapshot in memory: the Parquet file that the server froze → images or texts by split.

Knows the columns input, target and split; knows no SQL and no sampling.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow.parquet as pq
import torch

from gpu_worker.decode import decode_image
from gpu_worker.errors import RowFault
from gpu_worker.train.images import Images
from gpu_worker.train.loop import Lessons
from gpu_worker.train.texts import Texts

__all__ = ["Snapshot", "read_snapshot", "read_texts"]

_SKIPPED_SHARE = 0.01


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Examples by split, in the snapshot's order; `skipped`: rows that could no longer be read, by path."""

    parts: Mapping[str, Lessons]
    skipped: tuple[str, ...]

    def lessons(self, split: str) -> Lessons:
        """The examples of train, validation or test. Raises `ValueError`."""
        if split not in self.parts:
            raise ValueError(f"there is no split {split!r}; there are {', '.join(sorted(self.parts))}")
        return self.parts[split]


def read_snapshot(
    path: str,
    classes: Sequence[str],
    *,
    height: int,
    width: int,
    read: Callable[[bytes], bytes],
    max_pixels: int,
) -> Snapshot:
    """Decodes every image of the snapshot once; takes 12 KiB of memory per image at 64×64.

    read: path → the file's bytes; raises `RowFault`. Files that vanished since the snapshot are skipped;
    raises `ValueError` where more than 1 % of them did, naming the first.
    """
    index = {label: at for at, label in enumerate(classes)}
    pixels: dict[str, list[torch.Tensor]] = {"train": [], "validation": [], "test": []}
    labels: dict[str, list[int]] = {split: [] for split in pixels}
    skipped: list[str] = []
    with pq.ParquetFile(path) as file:
        rows = file.metadata.num_rows
        for batch in file.iter_batches(columns=["input", "target", "split"]):
            for row in batch.to_pylist():
                try:
                    image = decode_image(read(row["input"].encode()), height, width, max_pixels=max_pixels)
                except RowFault as fault:
                    skipped.append(f"{row['input']}: {fault.message}")
                    if len(skipped) > max(1, rows * _SKIPPED_SHARE):
                        raise ValueError(
                            f"{len(skipped)} images of the snapshot can no longer be read, the first "
                            f"{skipped[0]}; refresh the dataset"
                        ) from fault
                    continue
                pixels[row["split"]].append(torch.from_numpy(image.copy()))
                labels[row["split"]].append(index[row["target"]])
    empty = torch.empty((0, height, width, 3), dtype=torch.uint8)
    parts = {
        split: Images(
            torch.stack(images) if images else empty,
            torch.tensor(labels[split], dtype=torch.int64),
            tuple(classes),
        )
        for split, images in pixels.items()
    }
    return Snapshot(parts, tuple(skipped))


def read_texts(
    path: str, classes: Sequence[str], encode: Callable[[Sequence[str]], torch.Tensor]
) -> Snapshot:
    """Reads every text of the snapshot once; encode: n texts → int32 [n, tokens]."""
    index = {label: at for at, label in enumerate(classes)}
    texts: dict[str, list[str]] = {"train": [], "validation": [], "test": []}
    labels: dict[str, list[int]] = {split: [] for split in texts}
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(columns=["input", "target", "split"]):
            for row in batch.to_pylist():
                texts[row["split"]].append(row["input"])
                labels[row["split"]].append(index[row["target"]])
    parts = {
        split: Texts(encode(found), torch.tensor(labels[split], dtype=torch.int64), tuple(classes))
        for split, found in texts.items()
    }
    return Snapshot(parts, ())
