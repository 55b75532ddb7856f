"""Writing a model version: its folder appears whole, or not at all. Knows files, not training."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import tempfile
from collections.abc import Mapping

from safetensors.torch import save_file
from torch import Tensor

from gpu_worker.model_files.file_list import ModelFile
from gpu_worker.model_files.manifest import Manifest
from gpu_worker.model_files.regular import MANIFEST_FILE, file_sha256, flush

__all__ = ["WEIGHTS_FILE", "save_model", "write_tensors"]

WEIGHTS_FILE = "model.safetensors"


def save_model(manifest: Manifest, weights: Mapping[str, Tensor], *, replace: bool = False) -> Manifest:
    """Writes model.json and the weights into `manifest.directory`; answers with the hash filled in.

    A version is not changed once it is there: raises `FileExistsError`, unless `replace` says otherwise.
    """
    directory = os.path.abspath(manifest.directory)
    if os.path.exists(directory) and not replace:
        raise FileExistsError(f"{directory} exists; give the model another version, or replace it")
    parent, name = os.path.split(directory)
    os.makedirs(parent, exist_ok=True)
    coming = tempfile.mkdtemp(prefix=f".{name}-", dir=parent)
    try:
        path = os.path.join(coming, WEIGHTS_FILE)
        write_tensors(path, weights)
        sha256 = file_sha256(path)
        manifest = dataclasses.replace(
            manifest,
            directory=directory,
            weights=WEIGHTS_FILE,
            sha256=sha256,
            files=(ModelFile(WEIGHTS_FILE, sha256),),
        )
        _write_text(os.path.join(coming, MANIFEST_FILE), json.dumps(manifest.to_json(), indent=2) + "\n")
        _move_into_place(coming, directory)
    except BaseException:
        shutil.rmtree(coming, ignore_errors=True)
        raise
    return manifest


def write_tensors(path: str, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """A safetensors file, written beside its place, flushed to the disk, then moved there."""
    descriptor, coming = tempfile.mkstemp(prefix=".tensors-", dir=os.path.dirname(path) or ".")
    os.close(descriptor)
    try:
        save_file(
            {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, coming, metadata
        )
        flush(coming)
        os.replace(coming, path)
    except BaseException:
        os.unlink(coming)
        raise


def _write_text(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    flush(path)


def _move_into_place(coming: str, directory: str) -> None:
    if not os.path.exists(directory):
        os.rename(coming, directory)
    else:
        # A folder cannot be renamed over a full one. For an instant there is neither; never half of one.
        going = tempfile.mkdtemp(prefix=f".{os.path.basename(directory)}-", dir=os.path.dirname(directory))
        os.rename(directory, os.path.join(going, "old"))
        os.rename(coming, directory)
        shutil.rmtree(going)
    flush(os.path.dirname(directory))
