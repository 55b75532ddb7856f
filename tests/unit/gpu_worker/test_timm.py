"""timm checkpoints answer as their library does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpu_worker.errors import ModelUnusable
from gpu_worker.model_files.manifest import read_manifest
from gpu_worker.networks.loader import load_network, warm_up
from gpu_worker.networks.picture_rules import picture_input, timm_input
from gpu_worker.networks.recognised import Recognised
from gpu_worker.networks.runtimes import RUNTIMES
from gpu_worker.networks.timm_network import read_timm
from tests.unit.gpu_worker.recognising import CPU, stored

RULES = {
    "input_size": [3, 32, 32],
    "interpolation": "bicubic",
    "crop_pct": 0.8,
    "mean": [0.4, 0.5, 0.6],
    "std": [0.2, 0.3, 0.25],
}


@pytest.fixture(scope="module")
def timm() -> Any:
    # RuntimeError: a torchvision that was built for another torch.
    reason = "pip install 'ml_udf[timm]', with a torchvision that fits the torch that is installed"
    try:
        return pytest.importorskip("timm", reason=reason, exc_type=ImportError)
    except RuntimeError:
        pytest.skip(reason)


def _recognised(folder: Path, **wishes: Any) -> Recognised:
    recognise = RUNTIMES["timm"].recognise
    assert recognise is not None
    found = recognise(folder, wishes)
    assert found is not None
    return found


def _folder(folder: Path, tensors: dict[str, Any], **config: Any) -> Path:
    from safetensors.torch import save_file

    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    own = {"architecture": "resnet10t", "num_classes": 3, "num_features": 512, "pretrained_cfg": RULES}
    (folder / "config.json").write_text(json.dumps(own | config))
    return folder


def test_pictures_are_classified_and_embedded_as_by_timm(timm: Any, tmp_path: Path) -> None:
    import torch

    torch.manual_seed(0)
    module = timm.create_model("resnet10t", num_classes=3).eval()
    folder = _folder(tmp_path / "source", module.state_dict())
    pixels = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), np.uint8)
    shown = ((pixels / 255 - np.array(RULES["mean"])) / np.array(RULES["std"])).transpose(0, 3, 1, 2)
    with torch.inference_mode():
        hidden = module.forward_head(
            module.forward_features(torch.from_numpy(shown.astype(np.float32))), pre_logits=True
        )
        expected = torch.softmax(module.get_classifier()(hidden), dim=1).numpy()
    for task in ("image-classification", "image-embedding"):
        found = _recognised(folder, classes=["a", "b", "c"], task=task)
        assert found.manifest["task"] == task
        manifest = read_manifest(str(stored(found, tmp_path, task)))
        network = load_network(manifest, CPU)
        warm_up(network, manifest)
        features = network.features(pixels, lambda: False)  # type: ignore[attr-defined]  # it gives them
        assert features == pytest.approx(hidden.numpy(), abs=1e-4)
        if task == "image-classification":
            assert network.scores(pixels, lambda: False) == pytest.approx(expected, abs=1e-4)
            assert network.resident_bytes > 4 * 1e6


def test_weights_of_another_architecture_are_refused(timm: Any, tmp_path: Path) -> None:
    import torch

    folder = _folder(tmp_path / "source", {"stem.weight": torch.zeros(1)})
    with pytest.raises(ModelUnusable, match="do not fit 'resnet10t'"):
        load_network(read_manifest(str(stored(_recognised(folder), tmp_path, "m"))), CPU)
    other = _folder(tmp_path / "other", {"w": torch.zeros(1)}, architecture="no_such_net")
    with pytest.raises(ModelUnusable, match="knows no architecture 'no_such_net'"):
        load_network(read_manifest(str(stored(_recognised(other), tmp_path, "o"))), CPU)


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
