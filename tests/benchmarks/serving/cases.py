"""What is served: three models, and the photos that are sent to them. Knows no server."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from tests.models import CLASSES, hashing_model

PHOTOS = 64
_PHOTO_SIZE = (256, 192)


@dataclass(frozen=True)
class Case:
    """A model, and the latency goal that its callers have."""

    name: str
    slo_ms: float
    architecture: str
    pixels: int = 0  # per side; 0 = the model takes the bytes as they are
    first_rate: float = 100.0  # rows/s to begin the search with where nothing better is known

    @property
    def slo_s(self) -> float:
        return self.slo_ms / 1000

    def model(self, folder: Path) -> Path:
        """Write the model below `folder`; returns its version's folder."""
        if not self.pixels:
            return hashing_model(folder, self.name, form="image")
        return _image_model(folder, self.name, self.architecture, self.pixels)


CASES = (
    Case("no-op", 50, "hashing", first_rate=1000),
    Case("light", 100, "squeezenet", 64, first_rate=500),
    Case("heavy", 250, "vgg", 224),
)


def photos() -> Sequence[bytes]:
    """Distinct JPEGs of 256×192, some 20 KB each: smooth colours under grain, as a camera's are."""
    made = []
    for seed in range(PHOTOS):
        random = np.random.default_rng(seed)
        coarse = Image.fromarray(random.integers(0, 255, (6, 8, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize(_PHOTO_SIZE, Image.Resampling.BICUBIC), np.int16)
        grain = random.normal(0, 12, smooth.shape).astype(np.int16)
        picture = Image.fromarray(np.clip(smooth + grain, 0, 255).astype(np.uint8))
        encoded = io.BytesIO()
        picture.save(encoded, "JPEG", quality=85)
        made.append(encoded.getvalue())
    return made


def _image_model(folder: Path, name: str, architecture: str, pixels: int) -> Path:
    import torch
    from safetensors.torch import save_file

    from gpu_worker.networks.build import build_module

    torch.manual_seed(1)
    state = build_module(architecture, len(CLASSES), {}).state_dict()
    version = folder / name / "1"
    version.mkdir(parents=True)
    weights = version / "model.safetensors"
    save_file({key: value.contiguous() for key, value in state.items()}, weights)
    manifest = {
        "format": 1,
        "name": name,
        "version": 1,
        "task": "image-classification",
        "runtime": "torch",
        "architecture": architecture,
        "architecture_options": {},
        "weights": weights.name,
        "classes": list(CLASSES),
        "input": {"form": "image", "height": pixels, "width": pixels, "mean": [0.5] * 3, "std": [0.25] * 3},
        "accuracy": 0.5,
        "sha256": hashlib.sha256(weights.read_bytes()).hexdigest(),
    }
    (version / "model.json").write_text(json.dumps(manifest))
    return version
