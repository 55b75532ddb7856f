"""timm checkpoints answer as their library does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpu_worker.errors import ModelUnusable
from gpu_worker.networks.picture_rules import picture_input, timm_input
from gpu_worker.networks.recognised import Recognised
from gpu_worker.networks.runtimes import RUNTIMES
from gpu_worker.networks.timm_network import read_timm
from tests.packages_apart import installed_apart

RULES = {
    "input_size": [3, 32, 32],
    "interpolation": "bicubic",
    "crop_pct": 0.8,
    "mean": [0.4, 0.5, 0.6],
    "std": [0.2, 0.3, 0.25],
}


def _recognised(folder: Path, **wishes: Any) -> Recognised:
    recognise = RUNTIMES["timm"].recognise
    assert recognise is not None
    found = recognise(folder, wishes)
    assert found is not None
    return found


def test_timm_models_answer_as_their_library_does() -> None:
    """In a process of its own: what makes torchvision load here is nothing for other tests."""
    site = installed_apart("timm", ("timm==1.0.31", "torchvision==0.28.0"))
    tests = Path(__file__).with_name("with_timm.py")
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(tests)],
        env={**os.environ, "PYTHONPATH": str(site)},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert found.returncode == 0, found.stdout[-3000:]
    assert "4 passed" in found.stdout


@pytest.mark.security
@pytest.mark.parametrize("option", ["checkpoint_path", "pretrained", "pretrained_cfg", "cache_dir"])
def test_an_option_that_names_other_weights_is_refused(tmp_path: Path, option: str) -> None:
    with pytest.raises(ModelUnusable, match=f"the option '{option}' cannot be given"):
        read_timm("resnet10t", str(tmp_path / "model.safetensors"), 3, {option: "/elsewhere.pth"})
    config = {"architecture": "resnet10t", "num_classes": 3, "model_args": {option: "/elsewhere.pth"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ModelUnusable, match=f"the option '{option}' cannot be given"):
        _recognised(tmp_path)


def test_a_checkpoint_without_safetensors_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "resnet10t", "num_classes": 3}))
    with pytest.raises(ModelUnusable, match=r"pytorch_model\.bin may hold code"):
        _recognised(tmp_path)


def test_timm_crops_the_middle_of_the_resized_picture() -> None:
    found = timm_input(RULES)
    assert (found["height"], found["width"], found["mean"]) == (32, 32, RULES["mean"])
    assert found["preprocess"] == {"resize": "short_side", "size": 40, "interpolation": "bicubic"}
    assert timm_input({"crop_mode": "squash", "crop_pct": 1.0})["preprocess"]["resize"] == "stretch"
    with pytest.raises(ModelUnusable, match="1 channels"):
        timm_input({"input_size": [1, 28, 28]})


@pytest.mark.parametrize(
    ("config", "size", "preprocess"),
    [
        ({"size": 224}, (224, 224), {"resize": "short_side", "size": 224}),
        ({"size": {"height": 32, "width": 48}, "resample": 3}, (32, 48), {"interpolation": "bicubic"}),
        (
            {
                "size": {"shortest_edge": 256},
                "crop_size": {"height": 224, "width": 224},
                "do_center_crop": True,
            },
            (224, 224),
            {"resize": "short_side", "size": 256},
        ),
        (
            {"size": {"shortest_edge": 224}, "crop_pct": 0.875},  # ConvNeXT's
            (224, 224),
            {"resize": "short_side", "size": 256},
        ),
        ({"size": {"shortest_edge": 384}, "crop_pct": 0.875}, (384, 384), {}),
    ],
)
def test_the_rules_of_transformers_become_ours(
    config: dict[str, Any], size: tuple[int, int], preprocess: dict[str, Any]
) -> None:
    found = picture_input(config, [])
    assert (found["height"], found["width"]) == size
    assert preprocess.items() <= found["preprocess"].items()


def test_what_nobody_said_of_pictures_is_told() -> None:
    guesses: list[str] = []
    assert picture_input({"size": {"shortest_edge": 200}, "do_normalize": False}, guesses)["std"] == [1.0] * 3
    assert "keep their shape at the source" in guesses[0]
    with pytest.raises(ModelUnusable, match="says no size"):
        picture_input({"size": {"longest_edge": 512}}, [])
