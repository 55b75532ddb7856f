"""A stored model → a folder that other programs read too: ONNX, and the manifest that says how to feed it.

What was trained here in torch is written as ONNX and compared with itself; what is ONNX already, or a file of
another library, is copied as it is.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpu_worker.device import Device, find_device
from gpu_worker.errors import ModelUnusable
from gpu_worker.model_files.file_list import ModelFile
from gpu_worker.model_files.manifest import FeaturesSpec, Manifest, read_manifest
from gpu_worker.model_files.regular import MANIFEST_FILE, file_sha256
from gpu_worker.networks.loader import load_network
from gpu_worker.networks.network import reading
from gpu_worker.networks.runtimes import runtime_of
from gpu_worker.tasks import task_named
from gpu_worker.tasks.task import BOX_NUMBERS

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["Exported", "exported"]

_OPSET = 17
_FILE = "model.onnx"
_BOUND = 1e-4  # of a probability, in torch and in ONNX Runtime
_ROWS = 3


@dataclass(frozen=True, slots=True)
class Exported:
    """difference: the largest between the model's numbers and those of the ONNX file; None of a copy."""

    manifest: Manifest
    difference: float | None


def exported(directory: Path, target: Path) -> Exported:
    """Writes the model stored in `directory` into the folder `target`, which is made, or empty.

    Raises `ModelUnusable` where it cannot be written so, or answers otherwise than it did.
    """
    manifest = read_manifest(str(directory))
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ModelUnusable(f"{target} is there and not empty; name a folder that is to be made")
    if runtime_of(manifest).held != "tensors":
        target.mkdir(parents=True, exist_ok=True)
        for name in (MANIFEST_FILE, *(file.name for file in manifest.files)):
            shutil.copyfile(directory / name, target / name)
        return Exported(manifest, None)
    if task_named(manifest.task).reads not in ("scores", "boxes"):
        raise ModelUnusable(
            f"{manifest.name} does {manifest.task}; of torch's models classifiers and detectors become ONNX. "
            f"Its files lie in {directory}"
        )
    if manifest.input.form == "text":
        raise ModelUnusable(
            f"{manifest.name} reads texts by code of its own, which ONNX has no words for; its files lie in "
            f"{directory}"
        )
    target.mkdir(parents=True, exist_ok=True)
    written = _written(manifest, target)
    return Exported(written, _difference(manifest, written))


def _written(manifest: Manifest, target: Path) -> Manifest:
    import torch

    from gpu_worker.networks.torch_loader import prepared_module

    module = prepared_module(manifest)
    pixels = torch.zeros(2, 3, manifest.input.height, manifest.input.width)
    finds_boxes = task_named(manifest.task).reads == "boxes"
    both = None if finds_boxes else _with_features(module, pixels)
    names = ["boxes"] if finds_boxes else ["logits"] if both is None else ["logits", "features"]
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")  # of an exporter that is to be replaced by one with more packages
        torch.onnx.export(
            both or module,
            (pixels,),
            str(target / _FILE),
            input_names=["pixels"],
            output_names=names,
            dynamic_axes={name: {0: "n"} for name in ("pixels", *names)},
            opset_version=_OPSET,
            dynamo=False,
        )
    sha256 = file_sha256(str(target / _FILE))
    found = dataclasses.replace(
        manifest,
        directory=str(target),
        runtime="onnx",
        architecture="",
        architecture_options={},
        weights=_FILE,
        sha256=sha256,
        files=(ModelFile(_FILE, sha256),),
        outputs=dataclasses.replace(
            manifest.outputs, **({"boxes": ("boxes",)} if finds_boxes else {"scores": "logits"})
        ),
        features=FeaturesSpec() if both is None else FeaturesSpec("features", _width(both, pixels)),
    )
    (target / MANIFEST_FILE).write_text(json.dumps(found.to_json(), indent=2) + "\n", encoding="utf-8")
    return found


def _width(both: nn.Module, pixels: Tensor) -> int:
    """How many numbers its features are: a manifest that names them says it."""
    import torch

    with torch.inference_mode():
        return int(both(pixels)[1].shape[1])


def _with_features(module: nn.Module, pixels: Tensor) -> nn.Module | None:
    """One that gives logits and features in one pass; None where the last layer is not the classifier."""
    import torch
    from torch import nn

    from gpu_worker.networks.torch_network import without_classifier

    body = without_classifier(module)
    linear = [part for part in module.modules() if isinstance(part, nn.Linear)]
    if body is None:
        return None
    before: nn.Module = body

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = before, linear[-1]

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            features = self.body(x)
            return self.head(features), features

    both = Both().eval()
    with torch.inference_mode():
        is_same = torch.allclose(both(pixels)[0], module(pixels), atol=1e-5)
    return both if is_same else None


def _difference(manifest: Manifest, written: Manifest) -> float:
    device = find_device("cpu", threads=1)
    size = (manifest.input.height, manifest.input.width)
    pixels = np.random.default_rng(1).integers(0, 256, (_ROWS, *size, 3), np.uint8)
    ours, theirs = (_numbers(each, device, pixels) for each in (manifest, written))
    difference = float(np.abs(ours - theirs).max())
    if not difference <= _BOUND:
        raise ModelUnusable(
            f"{written.directory}: the ONNX file answers otherwise than {manifest.name}, by {difference:.2g}"
        )
    return difference


def _numbers(manifest: Manifest, device: Device, pixels: NDArray[np.uint8]) -> NDArray[Any]:
    """What a model answers. Of boxes their scores, in order: of two that are all but equally sure either may
    come first.
    """
    reads = task_named(manifest.task).reads
    found: NDArray[Any] = reading(load_network(manifest, device), reads)(pixels, lambda: False)
    return np.sort(found.reshape(len(found), -1, BOX_NUMBERS)[:, :, 4]) if reads == "boxes" else found
