"""A model version's folder appears whole, or not at all."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from gpu_worker.model_files.manifest import InputSpec, Manifest, read_manifest
from gpu_worker.model_files.regular import file_sha256
from gpu_worker.model_files.saving import save_model

WEIGHTS = {"a": torch.arange(6.0).reshape(2, 3), "turned": torch.arange(6.0).reshape(2, 3).T}


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    return Manifest(
        str(tmp_path / "models" / "m" / "1"),
        "m",
        1,
        "image-classification",
        "torch",
        "vgg",
        ("x", "y"),
        InputSpec(),
    )


def test_what_is_saved_is_read_back_the_same(manifest: Manifest) -> None:
    saved = save_model(manifest, WEIGHTS)
    assert read_manifest(manifest.directory) == saved
    assert saved.sha256 == file_sha256(saved.path_of_weights())
    for name, tensor in load_file(saved.path_of_weights()).items():
        assert torch.equal(tensor, WEIGHTS[name])
    assert json.loads(Path(manifest.directory, "model.json").read_text())["format"] == 1


def test_a_version_is_not_overwritten_unless_asked(manifest: Manifest) -> None:
    save_model(manifest, WEIGHTS)
    with pytest.raises(FileExistsError, match="another version"):
        save_model(replace(manifest, accuracy=0.9), WEIGHTS)
    assert read_manifest(manifest.directory).accuracy == 0.0
    save_model(replace(manifest, accuracy=0.9), WEIGHTS, replace=True)
    assert read_manifest(manifest.directory).accuracy == 0.9
    assert os.listdir(Path(manifest.directory).parent) == ["1"], "nothing is left over"


def test_a_save_that_fails_leaves_no_trace(manifest: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("gpu_worker.model_files.saving._write_text", full)
    with pytest.raises(OSError, match="No space"):
        save_model(manifest, WEIGHTS)
    assert os.listdir(Path(manifest.directory).parent) == []
