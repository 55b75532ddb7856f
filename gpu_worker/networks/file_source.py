"""Folders with an ONNX graph of files' bytes, as their owners have them → what a manifest says of them.

model.onnx        the graph
config.min.json   how a file becomes its numbers, and the classes (Magika's models, from version 2 on)
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpu_worker.errors import ModelUnusable
from gpu_worker.networks.recognised import json_of

__all__ = ["GRAPH_FILE", "file_rules"]

GRAPH_FILE = "model.onnx"
_CONFIG_FILE = "config.min.json"


def file_rules(path: Path) -> Mapping[str, Any] | None:
    """Fields of a manifest that such a folder says; None of another folder. Raises `ModelUnusable`."""
    if not (path / GRAPH_FILE).is_file() or not (path / _CONFIG_FILE).is_file():
        return None
    said = json_of(path / _CONFIG_FILE)
    if "target_labels_space" not in said:
        return None
    if said.get("mid_size") or said.get("use_inputs_at_offsets"):
        raise ModelUnusable(
            f"{path} reads the middle of files, or bytes at given places; the beginning and the end can be "
            "served"
        )
    try:
        preprocess = {
            "first_bytes": int(said["beg_size"]),
            "last_bytes": int(said["end_size"]),
            "padding": int(said["padding_token"]),
            "strip_bytes": int(said["block_size"]),
            "least_bytes": int(said.get("min_file_size_for_dl", 0)),
        }
        classes = [str(label) for label in said["target_labels_space"]]
    except (KeyError, TypeError, ValueError) as exc:
        raise ModelUnusable(f"{path / _CONFIG_FILE} does not say how files are read: {exc!r}") from exc
    return {"task": "file-classification", "classes": classes, "input": {"preprocess": preprocess}}
