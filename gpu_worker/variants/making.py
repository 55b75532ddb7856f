"""One variant of a stored model, written into a folder of its own as a model version that any worker loads.

    torch ─ exporting ─→ onnx ─ quantising ─→ int8
      ├─ the same weights, run otherwise ─→ bf16, traced
      └─ taught by its answers ─→ parity-2 … parity-4, by another encoder parity-2-sum …

Which of them are worth having is measured by whoever asks; here they are only made.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpu_worker.device import find_device
from gpu_worker.errors import ModelUnusable
from gpu_worker.exporting import exported
from gpu_worker.model_files.file_list import ModelFile
from gpu_worker.model_files.manifest import Manifest, read_manifest
from gpu_worker.model_files.parity_spec import ENCODERS, MOST_K, TILES, ParitySpec
from gpu_worker.model_files.regular import MANIFEST_FILE, file_sha256
from gpu_worker.model_files.run_spec import BFLOAT16, INT8, RunSpec
from gpu_worker.model_files.saving import WEIGHTS_FILE, write_tensors
from gpu_worker.networks.runtimes import runtime_of
from gpu_worker.tasks import task_named
from gpu_worker.variants.calibration import Calibration
from gpu_worker.variants.parity import parity_input, taught
from gpu_worker.variants.quantising import quantised
from gpu_worker.zoo import ARCHITECTURES

__all__ = ["Made", "make_variant"]

_ONNX = "onnx"
_GRAPH = "model.onnx"


@dataclass(frozen=True, slots=True)
class Made:
    """manifest: of what was made · difference: the largest of any number beside the original's, where an
    export compared them · calibrated, skipped: rows by which int8 has its ranges, or by which a parity model
    was taught, and those that could not be read
    """

    manifest: Manifest
    difference: float | None = None
    calibrated: int = 0
    skipped: int = 0


def make_variant(
    directory: Path,
    target: Path,
    name: str,
    recipe: str,
    *,
    threads: int = 1,
    calibration: Callable[[Manifest], Calibration] | None = None,
    on_step: Callable[[], object] = lambda: None,
) -> Made:
    """Writes the variant of the model stored in `directory` into the folder `target`, as the model `name`.

    recipe: onnx, int8, bf16, traced, same, which differs by its threads alone, or that of a parity model.
    calibration: the rows of int8, and by which a parity model is taught. on_step: may raise, to give it up.
    Raises `ModelUnusable` where it cannot be made of this model, and says why.
    """
    manifest = read_manifest(str(directory))
    target.mkdir(parents=True, exist_ok=True)
    if recipe == "onnx":
        return _onnx(manifest, directory, target, name, threads)
    if recipe == "int8":
        return _int8(manifest, directory, target, name, threads, calibration)
    if (parity := _parity_named(recipe)) is not None:
        return _parity(manifest, target, name, parity, calibration, on_step)
    if recipe == "same":
        if manifest.runtime != _ONNX:
            raise ModelUnusable(
                f"{manifest.name}: a pass of {manifest.runtime} runs on one core, as passes run side by side"
            )
        return Made(_copied(manifest, target, name, RunSpec(threads=threads)))
    if recipe == "bf16":
        if runtime_of(manifest).held != "tensors" or manifest.input.form == "text":
            raise ModelUnusable(f"{manifest.name}: bf16 is made of torch's models of pictures")
        return Made(_copied(manifest, target, name, RunSpec(BFLOAT16)))
    if recipe == "traced":
        if manifest.runtime != "timm":
            raise ModelUnusable(
                f"{manifest.name}: models of torch's own architectures are traced as they are, and those of "
                f"{manifest.runtime} cannot be"
            )
        return Made(_copied(manifest, target, name, RunSpec(traced=True)))
    raise ModelUnusable(
        f"there is no variant {recipe!r}; there are onnx, int8, bf16, traced, same and parity-2 to "
        f"parity-{MOST_K}"
    )


def _parity_named(recipe: str) -> ParitySpec | None:
    """parity-3, parity-3-sum: k and the encoder; the one that was found to be better has no name."""
    for k in range(2, MOST_K + 1):
        for encoder in ENCODERS:
            if recipe == f"parity-{k}" + ("" if encoder == TILES else f"-{encoder}"):
                return ParitySpec(k, encoder)
    return None


def _parity(
    manifest: Manifest,
    target: Path,
    name: str,
    parity: ParitySpec,
    calibration: Callable[[Manifest], Calibration] | None,
    on_step: Callable[[], object],
) -> Made:
    is_ours = manifest.runtime == "torch" and manifest.architecture in ARCHITECTURES
    if not is_ours or not task_named(manifest.task).picks_one or not manifest.input.height:
        raise ModelUnusable(
            f"{manifest.name}: a parity model has its model's architecture, and is made of torch's "
            f"classifiers of pictures: {', '.join(ARCHITECTURES)}"
        )
    if calibration is None:
        raise ModelUnusable(
            f"{manifest.name}: a parity model is taught by rows of a dataset's snapshot; name the dataset"
        )
    rows = calibration(manifest)
    weights, count = taught(manifest, parity, rows, on_step)
    write_tensors(str(target / WEIGHTS_FILE), weights)
    sha256 = file_sha256(str(target / WEIGHTS_FILE))
    found = dataclasses.replace(
        manifest,
        directory=str(target),
        name=name,
        input=parity_input(manifest.input, parity),
        weights=WEIGHTS_FILE,
        sha256=sha256,
        files=(ModelFile(WEIGHTS_FILE, sha256),),
        parity=parity,
    )
    return Made(_said(found, target), None, count, rows.skipped)


def _onnx(manifest: Manifest, directory: Path, target: Path, name: str, threads: int) -> Made:
    if manifest.runtime == _ONNX:
        raise ModelUnusable(f"{manifest.name} is ONNX as it is")
    with tempfile.TemporaryDirectory(dir=target, prefix=".exporting-") as folder:
        told = exported(directory, Path(folder))
        if told.difference is None:
            raise ModelUnusable(f"{manifest.name}: models of {manifest.runtime} are not written as ONNX")
        os.replace(Path(folder) / _GRAPH, target / _GRAPH)
    return Made(_written(told.manifest, target, name, RunSpec(threads=threads)), told.difference)


def _int8(
    manifest: Manifest,
    directory: Path,
    target: Path,
    name: str,
    threads: int,
    calibration: Callable[[Manifest], Calibration] | None,
) -> Made:
    if manifest.input.form not in ("path", "image", "tensor") or not manifest.input.height:
        raise ModelUnusable(f"{manifest.name}: int8 is made of models of pictures")
    if calibration is None:
        raise ModelUnusable(
            f"{manifest.name}: int8 is calibrated by rows of a dataset's snapshot; name the dataset"
        )
    with tempfile.TemporaryDirectory(dir=target, prefix=".exporting-") as folder:
        graph, difference = manifest, None
        if manifest.runtime != _ONNX:
            told = exported(directory, Path(folder))
            if told.difference is None:
                raise ModelUnusable(f"{manifest.name}: models of {manifest.runtime} are not written as ONNX")
            graph, difference = told.manifest, told.difference
        rows = calibration(graph)
        quantised(graph, target / _GRAPH, rows, find_device("cpu", threads=1))
    written = _written(graph, target, name, RunSpec(INT8, threads=threads))
    return Made(written, difference, rows.read_rows, rows.skipped)


def _copied(manifest: Manifest, target: Path, name: str, run: RunSpec) -> Manifest:
    """The same files under another name. Hard links where they can be: they never change."""
    for file in manifest.files:
        source, place = manifest.path_of(file), target / file.name
        try:
            os.link(source, place)
        except OSError:  # another file system, or one that has none
            shutil.copyfile(source, place)
    found = dataclasses.replace(manifest, directory=str(target), name=name, run=run)
    return _said(found, target)


def _written(manifest: Manifest, target: Path, name: str, run: RunSpec) -> Manifest:
    sha256 = file_sha256(str(target / _GRAPH))
    found = dataclasses.replace(
        manifest,
        directory=str(target),
        name=name,
        weights=_GRAPH,
        sha256=sha256,
        files=(ModelFile(_GRAPH, sha256),),
        run=run,
    )
    return _said(found, target)


def _said(manifest: Manifest, target: Path) -> Manifest:
    # What was measured of the original says nothing of this.
    found = dataclasses.replace(manifest, accuracy=0.0)
    (target / MANIFEST_FILE).write_text(json.dumps(found.to_json(), indent=2) + "\n", encoding="utf-8")
    return found
