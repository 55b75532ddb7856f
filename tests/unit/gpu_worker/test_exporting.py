"""What was trained here leaves as ONNX that answers alike, and comes back by import."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from gpu_worker.device import find_device
from gpu_worker.errors import ModelUnusable
from gpu_worker.exporting import exported
from gpu_worker.importing import recognised, staged
from gpu_worker.model_files.manifest import read_manifest
from gpu_worker.networks.loader import load_network, warm_up
from tests.models import CLASSES, image_model, text_model

CPU = find_device("cpu", threads=1)


def test_a_network_leaves_as_onnx_with_its_features(tmp_path: Path) -> None:
    told = exported(image_model(tmp_path / "made", "net"), tmp_path / "out")
    assert told.difference is not None
    assert told.difference < 1e-4
    manifest = read_manifest(str(tmp_path / "out"))
    assert (manifest.runtime, manifest.classes) == ("onnx", tuple(CLASSES))
    network = load_network(manifest, CPU)
    warm_up(network, manifest)
    original_manifest = read_manifest(str(tmp_path / "made" / "net" / "1"))
    original = load_network(original_manifest, CPU)
    warm_up(original, original_manifest)
    pixels = np.random.default_rng(2).integers(0, 256, (5, 64, 64, 3), np.uint8)
    for read in ("scores", "features"):
        ours, theirs = (getattr(each, read)(pixels, lambda: False) for each in (original, network))
        np.testing.assert_allclose(ours, theirs, atol=1e-3 * max(1.0, float(np.abs(ours).max())))


def test_what_left_can_be_imported_again(tmp_path: Path) -> None:
    exported(image_model(tmp_path / "made", "net"), tmp_path / "out")
    found = recognised(tmp_path / "out" / "model.onnx", {"outputs": {"scores": "logits"}})
    (tmp_path / "again").mkdir()
    manifest = staged(found, "again", tmp_path / "again")
    assert (manifest.input.height, manifest.outputs.activation) == (64, "softmax")


def test_what_is_onnx_already_is_copied(tmp_path: Path) -> None:
    exported(image_model(tmp_path / "made", "net"), tmp_path / "out")
    told = exported(tmp_path / "out", tmp_path / "copy")
    assert told.difference is None
    for name in ("model.json", "model.onnx"):
        assert (tmp_path / "copy" / name).read_bytes() == (tmp_path / "out" / name).read_bytes()


def test_what_cannot_be_written_says_why(tmp_path: Path) -> None:
    with pytest.raises(ModelUnusable, match="ONNX has no words for"):
        exported(text_model(tmp_path / "made", "texts", seed=1), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text(json.dumps({}))
    with pytest.raises(ModelUnusable, match="not empty"):
        exported(image_model(tmp_path / "made", "net"), tmp_path / "full")
