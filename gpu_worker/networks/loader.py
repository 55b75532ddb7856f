"""A model version's folder → a `Network` on the device. Knows files and runtimes, not who asks."""

from __future__ import annotations

import importlib
import os

import numpy as np

from gpu_worker.device import Device
from gpu_worker.errors import ModelUnusable
from gpu_worker.model_files.manifest import Manifest
from gpu_worker.model_files.sources import Sources
from gpu_worker.networks.hashing import Hashing
from gpu_worker.networks.network import IsCancelled, Network, check, width_of
from gpu_worker.networks.piece_sizes import rows_that_fit
from gpu_worker.tasks import task_named
from gpu_worker.zoo import HASHING

__all__ = [
    "check_pixels",
    "import_runtime",
    "load_network",
    "onnx_network",
    "warm_up",
    "weights_bytes",
]

_PLAIN_FORMS = ("text", "row")  # of rows that are no pictures
_WARM_UP_ROWS = (1, 64)  # one row, and a piece of a CPU's size


def import_runtime(manifest: Manifest) -> None:
    """Imports the libraries that `load_network` needs for such a model, if they are not there yet."""
    if manifest.architecture == HASHING:
        return
    if manifest.runtime == "onnx":
        importlib.import_module("gpu_worker.networks.onnx_network")
        importlib.import_module("gpu_worker.networks.row_network")
        return
    for name in (
        "safetensors.torch",
        "gpu_worker.networks.text_network",
        "gpu_worker.networks.torch_loader",
        "gpu_worker.networks.torch_network",
    ):
        importlib.import_module(name)
    import torch

    with torch.device("meta"):  # random weights without memory: the first ones import half of torch
        torch.empty(1).normal_()


def load_network(manifest: Manifest, device: Device, *, allow_import: bool = False) -> Network:
    """The model, loaded and checked against its manifest, not yet warm. Raises `ModelUnusable`.

    For one that is loaded once, straight into the memory where it is computed; `gpu_worker.tiers` is the way
    of a worker's models. Weights come from safetensors or ONNX alone: neither can run code.
    """
    if manifest.architecture == HASHING:
        return Hashing.from_options(manifest.classes, manifest.architecture_options)
    check_pixels(manifest)
    sources = Sources()
    sources.hashed(manifest, sources.stamp(manifest), lambda: False)
    if manifest.runtime == "onnx":
        return onnx_network(manifest, device)
    from gpu_worker.networks.torch_loader import network_of, prepared_module

    return network_of(prepared_module(manifest, allow_import=allow_import), manifest, device)


def check_pixels(manifest: Manifest) -> None:
    """Raises `ModelUnusable` where a model of pictures does not say how large they are."""
    if manifest.input.form not in _PLAIN_FORMS and not (manifest.input.height and manifest.input.width):
        raise ModelUnusable(f"{manifest.directory}: 'input' needs 'height' and 'width'")


def warm_up(network: Network, manifest: Manifest, is_cancelled: IsCancelled = lambda: False) -> None:
    """First passes: kernels are chosen, memory is laid in, the shape of the answers is seen.

    Raises `ModelUnusable` when a row does not get one finite score for each class, or what its own task is
    made of instead; `Cancelled` between two passes.
    """
    task, said = task_named(manifest.task), manifest.features.width
    sizes = [network.pixels] if network.pixels else []
    for most_rows in _WARM_UP_ROWS:
        check(is_cancelled)
        rows = min(most_rows, rows_that_fit(sizes, is_cuda=False))
        found = network.warm_up(rows)
        width = width_of(network, task.reads, len(manifest.classes))
        if width == 0:
            raise ModelUnusable(
                f"the model in {manifest.directory} has no {task.reads}, of which {task.name} is made"
            )
        if found.shape != (rows, width):
            named = f"names {width} classes" if task.needs_classes else f"says {width} features"
            raise ModelUnusable(
                f"the model in {manifest.directory} answers {list(found.shape)} for {rows} rows, "
                f"and model.json {named}"
            )
        if not np.isfinite(found).all():
            raise ModelUnusable(f"the model in {manifest.directory} answers scores that are not finite")
    has = width_of(network, "features", 0)
    if said and has != said:
        raise ModelUnusable(
            f"the model in {manifest.directory} has {has} features, and model.json says {said}"
        )


def weights_bytes(manifest: Manifest) -> int:
    """Size of the weights file: the least that the model will take. Raises `ModelUnusable`."""
    if manifest.architecture == HASHING:
        return Hashing.from_options(manifest.classes, manifest.architecture_options).resident_bytes
    path = manifest.path_of_weights()
    try:
        return os.path.getsize(path)
    except OSError as exc:
        raise ModelUnusable(f"the weights {path} cannot be read: {exc.strerror}") from exc


def onnx_network(manifest: Manifest, device: Device, content: bytes | None = None) -> Network:
    """The network of an ONNX file, or of its content where that is in memory. Raises `ModelUnusable`."""
    from gpu_worker.networks.onnx_network import OnnxNetwork
    from gpu_worker.networks.row_network import RowNetwork

    if manifest.input.form == "row":
        return RowNetwork(manifest.path_of_weights(), device, content)
    return OnnxNetwork(
        manifest.path_of_weights(),
        manifest.input,
        device,
        features=manifest.features.output,
        has_scores=bool(manifest.classes),
        content=content,
    )
