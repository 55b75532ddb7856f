"""Model folders for tests and benchmarks: untrained but real architectures, and the `hashing` model."""

from __future__ import annotations

import hashlib
import json
import zlib
from pathlib import Path
from typing import Any

CLASSES = ("laksa", "pizza", "satay", "sushi")


def write_manifest(directory: Path, name: str, version: int = 1, **fields: Any) -> Path:
    """Write model.json below `directory`/NAME/VERSION; returns that folder."""
    folder = directory / name / str(version)
    folder.mkdir(parents=True, exist_ok=True)
    manifest = {
        "format": 1,
        "name": name,
        "version": version,
        "runtime": "torch",
        "architecture_options": {},
        "classes": list(CLASSES),
        "accuracy": 0.5,
        **fields,
    }
    (folder / "model.json").write_text(json.dumps(manifest))
    return folder


def hashing_model(directory: Path, name: str = "text_hash", *, form: str = "text", **options: Any) -> Path:
    """A model of known answers and no cost: label = CLASSES[crc32(row) % 4]."""
    return write_manifest(
        directory,
        name,
        task="text-classification" if form == "text" else "image-classification",
        architecture="hashing",
        architecture_options=options,
        input={"form": form},
    )


def label_of(text: str) -> str:
    """What `a `hashing` model` answers."""
    return CLASSES[zlib.crc32(text.encode()) % len(CLASSES)]


def image_model(directory: Path, name: str, architecture: str = "squeezenet", *, seed: int = 1) -> Path:
    """An untrained image model with weights of a fixed seed: real cost, repeatable answers."""
    import torch
    from safetensors.torch import save_file

    from gpu_worker.networks.build import build_module

    torch.manual_seed(seed)
    module = build_module(architecture, len(CLASSES), {})
    folder = write_manifest(
        directory,
        name,
        task="image-classification",
        architecture=architecture,
        input={"form": "path", "height": 64, "width": 64, "mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25]},
        weights="model.safetensors",
    )
    weights = folder / "model.safetensors"
    save_file({key: value.contiguous() for key, value in module.state_dict().items()}, weights)
    weights.chmod(0o644)  # safetensors writes for its user alone; a database reads it too
    manifest = json.loads((folder / "model.json").read_text())
    manifest["sha256"] = hashlib.sha256(weights.read_bytes()).hexdigest()
    (folder / "model.json").write_text(json.dumps(manifest))
    return folder


def text_model(directory: Path, name: str, *, seed: int, accuracy: float = 0.5) -> Path:
    """An untrained text model with weights of a fixed seed: each seed has its own mind about a text."""
    import torch
    from safetensors.torch import save_file

    from gpu_worker.networks.build import build_module

    torch.manual_seed(seed)
    options = {"width": 8, "buckets": 512, "subword": 2}
    state = build_module("fasttext", len(CLASSES), options).state_dict()
    state["embedding.weight"] *= 300.0  # sure of what it says
    folder = write_manifest(
        directory,
        name,
        task="text-classification",
        architecture="fasttext",
        architecture_options=options,
        input={"form": "text"},
        weights="model.safetensors",
        accuracy=accuracy,
    )
    save_file({key: value.contiguous() for key, value in state.items()}, folder / "model.safetensors")
    manifest = json.loads((folder / "model.json").read_text())
    manifest["sha256"] = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    (folder / "model.json").write_text(json.dumps(manifest))
    return folder
