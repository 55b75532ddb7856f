"""Input buffers, reused: a batch's pixels never pay for fresh pages on the hot path."""

from __future__ import annotations

import threading

import numpy as np

from gpu_worker.pipeline.decode import Pixels

__all__ = ["Buffers"]


class Buffers:
    """Lends uint8 arrays [rows, H, W, 3]; thread-safe. `pinned` memory copies to CUDA asynchronously.

    Keeps at most `max_bytes` of unused ones; more are simply let go.
    """

    def __init__(self, *, pinned: bool = False, max_bytes: int = 256 << 20) -> None:
        self._pinned = pinned
        self._max_bytes = max_bytes
        self._unused: dict[tuple[int, int], list[Pixels]] = {}
        self._unused_bytes = 0
        self._lock = threading.Lock()

    def take(self, rows: int, height: int, width: int) -> Pixels:
        """A buffer of at least `rows` rows; its contents are whatever the last user left."""
        with self._lock:
            shelf = self._unused.get((height, width), [])
            for at, buffer in enumerate(shelf):
                if len(buffer) >= rows:
                    self._unused_bytes -= buffer.nbytes
                    return shelf.pop(at)
        if self._pinned:
            import torch

            pinned: Pixels = torch.empty((rows, height, width, 3), dtype=torch.uint8, pin_memory=True).numpy()
            return pinned
        return np.empty((rows, height, width, 3), np.uint8)

    def give(self, buffer: Pixels) -> None:
        """Returns a buffer that nobody reads or writes any more."""
        with self._lock:
            if self._unused_bytes + buffer.nbytes <= self._max_bytes:
                self._unused.setdefault((buffer.shape[1], buffer.shape[2]), []).append(buffer)
                self._unused_bytes += buffer.nbytes
