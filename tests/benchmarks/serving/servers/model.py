"""The model as every other server runs it: our own runtime's network and decoding, one core per process.

A script of this folder is started with SERVING_MODEL (the model's folder), SERVING_PORT and SERVING_SLO_MS.
The budget is the same for all: two processes that run the model, one thread each, batches of at most 32, and
at most 2 ms of waiting for more rows where a server wants to be told.
"""

from __future__ import annotations

import os

MAX_BATCH = 32
MAX_WAIT_MS = 2
WORKERS = 2


def model_folder() -> str:
    return os.environ["SERVING_MODEL"]


def port() -> int:
    return int(os.environ["SERVING_PORT"])


def slo_ms() -> int:
    return int(os.environ["SERVING_SLO_MS"])


class Model:
    """Encoded images → labels, a batch at a time."""

    def __init__(self) -> None:
        import numpy as np
        import torch

        from gpu_worker.device import find_device
        from gpu_worker.model_files.manifest import read_manifest
        from gpu_worker.networks.loader import load_network
        from gpu_worker.pipeline.decode import decode_image

        torch.set_num_threads(1)
        manifest = read_manifest(model_folder())
        self._decode = decode_image
        self._empty = np.empty
        self._classes = manifest.classes
        self._network = load_network(manifest, find_device("cpu", threads=1))
        self._network.warm_up(MAX_BATCH)

    def __call__(self, rows: list[bytes]) -> list[str]:
        """The labels of `rows`, in their order."""
        size = self._network.pixels
        if size is None:
            scores = self._network.scores(rows, lambda: False)
        else:
            pixels = self._empty((len(rows), *size, 3), "uint8")
            for at, row in enumerate(rows):
                pixels[at] = self._decode(row, *size, max_pixels=1 << 26)
            scores = self._network.scores(pixels, lambda: False)
        return [self._classes[best] for best in scores.argmax(axis=1).tolist()]
