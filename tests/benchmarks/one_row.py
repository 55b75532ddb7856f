"""What a hand-written PL/Python function does with torch: one path in, one label out."""

from __future__ import annotations

from gpu_worker.device import find_device
from gpu_worker.model_files.manifest import read_manifest
from gpu_worker.networks.loader import load_network
from gpu_worker.pipeline.decode import decode_image


class OneRow:
    def __init__(self, model_directory: str) -> None:
        self._manifest = read_manifest(model_directory)
        self._network = load_network(self._manifest, find_device("cpu"))

    def label(self, path: str) -> str:
        with open(path, "rb") as file:
            pixels = decode_image(
                file.read(), self._manifest.input.height, self._manifest.input.width, max_pixels=1 << 26
            )
        scores = self._network.scores(pixels[None], lambda: False)
        return self._manifest.classes[int(scores[0].argmax())]
