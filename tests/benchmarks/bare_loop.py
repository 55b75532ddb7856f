"""The ceiling: a bare offline loop over files with the same model on the same cores, nothing in between.

Decoding runs ahead on a pool of threads, in the same way as the worker decodes; the forward pass takes
batches of the size, and of the number of threads, that a short calibration finds best.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch

from gpu_worker.device import find_device
from gpu_worker.model_files.manifest import read_manifest
from gpu_worker.networks.loader import load_network
from gpu_worker.pipeline.decode import decode_image

BATCH_SIZES = (16, 32, 64, 128)
_SLICE = 8
_AHEAD = 3


@dataclass(frozen=True)
class Setup:
    batch: int
    decode_threads: int
    forward_threads: int


class BareLoop:
    def __init__(self, model_directory: str) -> None:
        manifest = read_manifest(model_directory)
        self._network = load_network(manifest, find_device("cpu"))
        self._network.warm_up(1)  # as the worker does: from then on it runs as one call
        self._size = (manifest.input.height, manifest.input.width)

    def calibrate(self, paths: Sequence[str], cores: int) -> Setup:
        """The fastest set-up for these files."""
        setups = [
            Setup(batch, decode, forward)
            for batch, decode, forward in itertools.product(
                BATCH_SIZES, range(1, cores + 1), range(1, cores + 1)
            )
        ]
        self.run(paths[:256], setups[0])
        return min(setups, key=lambda setup: min(self._seconds(paths, setup) for _ in range(2)))

    def run(self, paths: Sequence[str], setup: Setup) -> list[int]:
        """The class index of every file."""
        before = torch.get_num_threads()
        torch.set_num_threads(setup.forward_threads)
        classes: list[int] = []
        try:
            with ThreadPoolExecutor(setup.decode_threads) as pool:
                ahead: deque[tuple[np.ndarray, list[Future[None]]]] = deque()
                batches = iter(range(0, len(paths), setup.batch))
                for first in itertools.islice(batches, _AHEAD):
                    ahead.append(self._decode(pool, paths[first : first + setup.batch]))
                while ahead:
                    pixels, pending = ahead.popleft()
                    for future in pending:
                        future.result()
                    for first in itertools.islice(batches, 1):
                        ahead.append(self._decode(pool, paths[first : first + setup.batch]))
                    classes += self._network.scores(pixels, lambda: False).argmax(axis=1).tolist()
        finally:
            torch.set_num_threads(before)
        return classes

    def _seconds(self, paths: Sequence[str], setup: Setup) -> float:
        began = time.perf_counter()
        self.run(paths, setup)
        return time.perf_counter() - began

    def _decode(
        self, pool: ThreadPoolExecutor, paths: Sequence[str]
    ) -> tuple[np.ndarray, list[Future[None]]]:
        height, width = self._size
        pixels = np.empty((len(paths), height, width, 3), np.uint8)

        def decode(low: int) -> None:
            for at in range(low, min(low + _SLICE, len(paths))):
                with open(paths[at], "rb") as file:
                    pixels[at] = decode_image(file.read(), height, width, max_pixels=1 << 26)

        return pixels, [pool.submit(decode, low) for low in range(0, len(paths), _SLICE)]
