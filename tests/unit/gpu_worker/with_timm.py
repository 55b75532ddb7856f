"""What needs timm: run by `test_timm.py` in a process of its own, with timm and torchvision on PYTHONPATH.

timm imports torchvision for its datasets and transforms. PyPI's is built for a torch with CUDA, and does not
load beside one without: the operators whose absence stops it are declared here, and none of them is called.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from gpu_worker.errors import ModelUnusable
from gpu_worker.importing import checked, recognised, staged
from gpu_worker.model_files.manifest import Manifest
from gpu_worker.networks.loader import load_network, warm_up
from gpu_worker.pipeline.decode import decode_picture
from tests.unit.gpu_worker.recognising import CPU

RULES = {
    "input_size": (3, 32, 32),
    "interpolation": "bicubic",
    "crop_pct": 0.8,
    "mean": (0.4, 0.5, 0.6),
    "std": (0.2, 0.3, 0.25),
}
_MOST_OPERATORS = 20


def _import_torchvision() -> None:
    for _ in range(_MOST_OPERATORS):
        try:
            importlib.import_module("torchvision")
            return
        except RuntimeError as exc:
            missing = re.search(r"operator (torchvision::\w+) does not exist", str(exc))
            if missing is None:
                raise
            torch.library.define(missing[1], "() -> ()")
            for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
                del sys.modules[name]
    raise RuntimeError("torchvision lacks one operator after the other")


_import_torchvision()
timm = importlib.import_module("timm")


def _saved(folder: Path, classes: int) -> tuple[Any, Path]:
    """A model with weights of a fixed seed, and the folder that timm itself writes of it."""
    torch.manual_seed(0)
    module = timm.create_model("resnet10t", num_classes=classes, pretrained_cfg_overlay=RULES).eval()
    timm.models.save_for_hf(module, str(folder), safe_serialization=True)
    return module, folder


def _imported(path: Path, folder: Path, **wishes: Any) -> Manifest:
    folder.mkdir()
    found = recognised(path, wishes)
    manifest = staged(found, "model", folder)
    checked(manifest, found)
    return manifest


def test_a_file_is_classified_and_embedded_as_by_timm(tmp_path: Path) -> None:
    module, source = _saved(tmp_path / "source", 3)
    photo = tmp_path / "photo.png"
    coarse = np.random.default_rng(0).integers(0, 256, (6, 8, 3), np.uint8)
    Image.fromarray(coarse).resize((50, 40), Image.Resampling.BICUBIC).save(photo)
    transform = timm.data.create_transform(**timm.data.resolve_data_config(model=module), is_training=False)
    shown = transform(Image.open(photo))[None]
    with torch.inference_mode():
        hidden = module.forward_head(module.forward_features(shown), pre_logits=True).numpy()
        scores = torch.softmax(module(shown), dim=1).numpy()
    for task, reads, expected in (
        ("image-classification", "scores", scores),
        ("image-embedding", "features", hidden),
    ):
        manifest = _imported(source, tmp_path / task, task=task, classes=["a", "b", "c"])
        assert manifest.task == task
        network = load_network(manifest, CPU)
        warm_up(network, manifest)
        pixels = decode_picture(photo.read_bytes(), manifest.input.frame, max_pixels=1 << 20)[None]
        answers = getattr(network, reads)(pixels, lambda: False)
        assert answers == pytest.approx(expected, abs=1e-4)
        assert network.resident_bytes > 4 * 1e6


@pytest.mark.parametrize(
    ("architecture", "task"),
    [("vit_tiny_patch16_224", "image-classification"), ("mobilenetv3_small_050", "image-embedding")],
)
def test_what_timm_saves_is_served_whatever_its_options_and_its_head_are(
    tmp_path: Path, architecture: str, task: str
) -> None:
    """timm saves an img_size of two numbers; the other's head widens 288 features to 1024."""
    torch.manual_seed(0)
    module = timm.create_model(architecture, num_classes=3).eval()
    timm.models.save_for_hf(module, str(tmp_path / "source"), safe_serialization=True)
    manifest = _imported(tmp_path / "source", tmp_path / "m", task=task)
    network = load_network(manifest, CPU)
    warm_up(network, manifest)
    pixels = np.zeros((1, 224, 224, 3), np.uint8)
    with torch.inference_mode():
        shown = (
            torch.zeros(1, 3, 224, 224) - torch.tensor(manifest.input.mean)[:, None, None]
        ) / torch.tensor(manifest.input.std)[:, None, None]
        hidden = module.forward_head(module.forward_features(shown), pre_logits=True)
        expected = hidden if task == "image-embedding" else torch.softmax(module(shown), dim=1)
    reads = "features" if task == "image-embedding" else "scores"
    assert getattr(network, reads)(pixels, lambda: False) == pytest.approx(expected.numpy(), abs=1e-4)


def test_weights_of_another_architecture_are_refused(tmp_path: Path) -> None:
    _, source = _saved(tmp_path / "source", 3)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"architecture": "resnet14t"}))
    with pytest.raises(ModelUnusable, match="do not fit 'resnet14t'"):
        _imported(source, tmp_path / "m")
    (source / "config.json").write_text(json.dumps(config | {"architecture": "no_such_net"}))
    with pytest.raises(ModelUnusable, match="knows no architecture 'no_such_net'"):
        _imported(source, tmp_path / "o")
