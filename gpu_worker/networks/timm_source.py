"""timm checkpoints as people have them → the manifest that serves them: config.json and model.safetensors.

What `timm.models.save_for_hf` writes, and the hub holds: `architecture`, `num_classes`, `pretrained_cfg`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpu_worker.errors import ModelUnusable
from gpu_worker.networks.picture_rules import timm_input
from gpu_worker.networks.recognised import Recognised, as_wished, json_of
from gpu_worker.networks.timm_options import check_options

__all__ = ["recognise_timm"]


def recognise_timm(path: Path, wishes: Mapping[str, Any]) -> Recognised | None:
    """A folder whose config.json names an `architecture`. Raises `ModelUnusable`, with what is missing."""
    if not (path / "config.json").is_file():
        return None
    config = json_of(path / "config.json")
    architecture = config.get("architecture")
    if not isinstance(architecture, str) or "model_type" in config:
        return None
    weights = path / "model.safetensors"
    if not weights.is_file():
        raise ModelUnusable(
            f"{path} has no model.safetensors; pytorch_model.bin may hold code: it is not read"
        )
    said = config.get("pretrained_cfg") or config
    guesses: list[str] = []
    manifest: dict[str, Any] = {
        "runtime": "timm",
        "architecture": architecture,
        "input": as_wished(timm_input(said), wishes),
        "architecture_options": _options(config, path),
    }
    outputs = int(config.get("num_classes", said.get("num_classes", 0)) or 0)
    if outputs and wishes.get("task") != "image-embedding":
        named = wishes.get("classes") or config.get("label_names") or said.get("label_names")
        if not named:
            guesses.append(f"nobody has named its classes: they are called 0 to {outputs - 1}")
        manifest |= {"task": "image-classification", "classes": list(map(str, named or range(outputs)))}
    else:
        from gpu_worker.networks.timm_network import embedding_width

        width = embedding_width(architecture, manifest["architecture_options"])
        manifest |= {"task": "image-embedding", "features": {"width": width}}
    return Recognised(manifest, {weights.name: (weights, "weights")}, guesses)


def _options(config: Mapping[str, Any], path: Path) -> dict[str, Any]:
    options = dict(config.get("model_args") or {})
    options.pop("num_classes", None)  # as many as its classifier gets here
    if config.get("global_pool"):
        options.setdefault("global_pool", config["global_pool"])
    check_options(options, f"'model_args' of {path}/config.json")
    return options
