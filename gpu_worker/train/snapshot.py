"""A dataset's snapshot as a worker trains on it, by split: the Parquet file that the server froze → images in
memory, or texts mapped from disk.

Knows the columns input, target and split; knows no SQL and no sampling.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch

from gpu_worker.errors import RowFault
from gpu_worker.pipeline.decode import Pixels, decode_image
from gpu_worker.train.array_store import ArrayStore, ArrayWriter
from gpu_worker.train.images import ImageExamples
from gpu_worker.train.joined_examples import JoinedExamples
from gpu_worker.train.loop import Examples
from gpu_worker.train.texts import TextExamples, ragged

__all__ = ["NO_CLASS", "SPLITS", "Pictures", "SnapshotFile", "read_snapshot", "read_texts"]

SPLITS = ("train", "validation", "test")
# The label of a row whose class no training row shows: no answer is the right one.
NO_CLASS = -1
_SKIPPED_SHARE = 0.01
_TEXTS = 4_096  # encoded at a time


@dataclass(frozen=True, slots=True, eq=False)
class SnapshotFile:
    """Examples by split, in the snapshot's order; `skipped`: rows that could no longer be read, by path.

    Labels are indices into the classes, or `NO_CLASS`.
    """

    parts: Mapping[str, Examples]
    skipped: tuple[str, ...]

    def examples(self, *splits: str) -> Examples:
        """The examples of train, validation or test; of several, those of one after those of the other.

        Raises `ValueError`.
        """
        for split in splits:
            if split not in self.parts:
                raise ValueError(f"there is no split {split!r}; there are {', '.join(sorted(self.parts))}")
        found = [self.parts[split] for split in splits]
        return found[0] if len(found) == 1 else JoinedExamples(found)

    @property
    def nbytes(self) -> int:
        """What it takes of this process's memory; what is mapped takes nothing."""
        return sum(part.pixels.nbytes for part in self.parts.values() if isinstance(part, ImageExamples))


@dataclass(slots=True)
class Pictures:
    """The pictures of a snapshot, as serving will see them. read: path → the file's bytes; raises `RowFault`.

    ahead: hears of paths that are read next. skipped: files that vanished since the snapshot, or are damaged
    now, and why.
    """

    path: str
    height: int
    width: int
    read: Callable[[bytes], bytes]
    max_pixels: int
    ahead: Callable[[Sequence[str]], None] = lambda rows: None
    skipped: list[str] = field(default_factory=list)

    def decoded(self, file: pq.ParquetFile) -> Iterator[tuple[str, Any, bytes, Pixels]]:
        """(split, target, the file's bytes, its pixels) of each row that can be read, in their order.

        Raises `ValueError` where more than 1 % of them cannot, naming the first.
        """
        most = max(1, file.metadata.num_rows * _SKIPPED_SHARE)
        for batch in file.iter_batches(columns=["input", "target", "split"]):
            self.ahead(batch.column(0).to_pylist())
            for row in batch.to_pylist():
                try:
                    data = self.read(row["input"].encode())
                    image = decode_image(data, self.height, self.width, max_pixels=self.max_pixels)
                except RowFault as fault:
                    self.skipped.append(f"{row['input']}: {fault.message}")
                    if len(self.skipped) > most:
                        raise ValueError(
                            f"{len(self.skipped)} images of the snapshot can no longer be read, the first "
                            f"{self.skipped[0]}; refresh the dataset"
                        ) from fault
                    continue
                yield row["split"], row["target"], data, image


def read_snapshot(
    path: str,
    classes: Sequence[str],
    *,
    height: int,
    width: int,
    read: Callable[[bytes], bytes],
    max_pixels: int,
    ahead: Callable[[Sequence[str]], None] = lambda rows: None,
) -> SnapshotFile:
    """Decodes every image of the snapshot once; takes 12 KiB of memory per image at 64×64.

    Raises as `Pictures.decoded`.
    """
    decoded = Pictures(path, height, width, read, max_pixels, ahead)
    index = {label: at for at, label in enumerate(classes)}
    pixels: dict[str, list[torch.Tensor]] = {split: [] for split in SPLITS}
    labels: dict[str, list[int]] = {split: [] for split in pixels}
    with pq.ParquetFile(path) as file:
        for split, target, _, image in decoded.decoded(file):
            pixels[split].append(torch.from_numpy(image.copy()))
            labels[split].append(index.get(target, NO_CLASS))
    empty = torch.empty((0, height, width, 3), dtype=torch.uint8)
    parts = {
        split: ImageExamples(
            torch.stack(images) if images else empty,
            torch.tensor(labels[split], dtype=torch.int64),
            tuple(classes),
        )
        for split, images in pixels.items()
    }
    return SnapshotFile(parts, tuple(decoded.skipped))


def read_texts(
    path: str,
    classes: Sequence[str],
    tokeniser: str,
    encode: Callable[[Sequence[str]], torch.Tensor],
    on_step: Callable[[], None] = lambda: None,
) -> SnapshotFile:
    """The texts of a snapshot as tokens: read and encoded once for each tokeniser, then mapped from disk.

    encode: n texts → int32 [n, tokens]. on_step: called for every some thousand rows. Raises `OSError`.
    """
    index = {label: at for at, label in enumerate(classes)}

    def write(arrays: ArrayWriter) -> None:
        ended = dict.fromkeys(SPLITS, 0)
        for split in SPLITS:  # of each, were it empty
            _append(arrays, split, encode([]), [], 0)
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(_TEXTS, columns=["input", "target", "split"]):
                on_step()
                texts, targets, splits = (column.to_pylist() for column in batch.columns)
                for split in set(splits):
                    rows = [row for row, side in enumerate(splits) if side == split]
                    tokens = encode([texts[row] for row in rows])
                    labels = [index.get(targets[row], NO_CLASS) for row in rows]
                    ended[split] = _append(arrays, split, tokens, labels, ended[split])

    mapped, _ = ArrayStore(path).open(json.dumps(["texts", tokeniser, list(classes)]), write)
    width = encode([]).shape[1]
    parts = {
        split: TextExamples(
            mapped[f"{split}.tokens"],
            mapped[f"{split}.ends"],
            torch.from_numpy(mapped[f"{split}.labels"].copy()),  # torch has no read-only tensors
            tuple(classes),
            width,
        )
        for split in SPLITS
    }
    return SnapshotFile(parts, ())


def _append(arrays: ArrayWriter, split: str, tokens: torch.Tensor, labels: Sequence[int], ended: int) -> int:
    """Write texts of a split; where its tokens end then."""
    flat, lengths = ragged(tokens)
    ends = ended + np.cumsum(lengths)
    arrays.append(f"{split}.tokens", flat)
    arrays.append(f"{split}.ends", ends)
    arrays.append(f"{split}.labels", np.array(labels, np.int64))
    return ended if not len(ends) else int(ends[-1])
