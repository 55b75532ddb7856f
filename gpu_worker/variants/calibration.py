"""The rows by which a quantised graph learns its ranges: pictures of a snapshot's training rows, as served.

They are read as serving reads them, by the model's own preprocessing. Knows Parquet and pictures, no graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow.parquet as pq

from gpu_worker.errors import ModelUnusable, RowFault
from gpu_worker.model_files.manifest import Manifest
from gpu_worker.pipeline.decode import Pixels, decode_picture

__all__ = ["Calibration"]

_AT_A_TIME = 16  # pictures in memory


class Calibration:
    """At most `rows` pictures, evenly over the training rows. read: path → bytes; raises `RowFault`.

    Iterating gives uint8 [n, H, W, 3], n ≤ 16. read_rows, skipped: how many were given and could not be read,
    known once all were.
    """

    def __init__(
        self, snapshot: str, manifest: Manifest, read: Callable[[bytes], bytes], rows: int, max_pixels: int
    ) -> None:
        try:
            table = pq.read_table(snapshot, columns=["input"], filters=[("split", "=", "train")])
        except OSError as exc:
            raise ModelUnusable(f"the snapshot {snapshot} cannot be read: {exc}") from exc
        inputs = table["input"]
        places = np.unique(np.linspace(0, max(0, len(inputs) - 1), min(len(inputs), rows)).astype(int))
        self._paths: list[str] = inputs.take(places).to_pylist() if len(inputs) else []
        self._frame = manifest.input.frame
        self._read = read
        self._max_pixels = max_pixels
        self.read_rows = self.skipped = 0

    def __iter__(self) -> Iterator[Pixels]:
        self.read_rows = self.skipped = 0
        waiting: list[Pixels] = []
        for path in self._paths:
            try:
                data = self._read(path.encode())
                waiting.append(decode_picture(data, self._frame, max_pixels=self._max_pixels))
            except RowFault:
                self.skipped += 1
                continue
            self.read_rows += 1
            if len(waiting) == _AT_A_TIME:
                yield np.stack(waiting)
                waiting = []
        if waiting:
            yield np.stack(waiting)
