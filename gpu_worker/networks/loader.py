"""A model version's folder → a `Network` on the device. Knows files and runtimes, not who asks."""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from gpu_worker.device import Device
from gpu_worker.errors import ModelUnusable
from gpu_worker.model_files.manifest import Manifest
from gpu_worker.model_files.regular import file_sha256
from gpu_worker.networks.hashing import Hashing
from gpu_worker.networks.network import Network, width_of
from gpu_worker.networks.piece_sizes import rows_that_fit
from gpu_worker.tasks import task_named
from gpu_worker.zoo import ARCHITECTURES, HASHING, MOST_OF_OPTIONS, TEXT_ARCHITECTURES

if TYPE_CHECKING:
    from torch import nn

__all__ = ["build_module", "import_runtime", "load_network", "warm_up", "weights_bytes"]

_PLAIN_FORMS = ("text", "row")  # of rows that are no pictures
_WARM_UP_ROWS = (1, 64)  # one row, and a piece of a CPU's size
_MOST_UNPACKING = 4  # a weight is float32 on the device, and may be stored in one byte


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
        "gpu_worker.networks.torch_network",
    ):
        importlib.import_module(name)
    import torch

    with torch.device("meta"):  # random weights without memory: the first ones import half of torch
        torch.empty(1).normal_()


def load_network(manifest: Manifest, device: Device, *, allow_import: bool = False) -> Network:
    """The model, loaded and checked against its manifest, not yet warm. Raises `ModelUnusable`.

    Weights come from safetensors or ONNX alone: neither can run code.
    """
    if manifest.architecture == HASHING:
        return Hashing.from_options(manifest.classes, manifest.architecture_options)
    if manifest.input.form not in _PLAIN_FORMS and not (manifest.input.height and manifest.input.width):
        raise ModelUnusable(f"{manifest.directory}: 'input' needs 'height' and 'width'")
    _check_sha256(manifest)
    if manifest.runtime == "onnx":
        return _onnx(manifest, device)
    return _torch(manifest, device, allow_import=allow_import)


def warm_up(network: Network, manifest: Manifest) -> None:
    """First passes: kernels are chosen, memory is laid in, the shape of the answers is seen.

    Raises `ModelUnusable` when a row does not get one finite score for each class, or what its own task is
    made of instead.
    """
    task, said = task_named(manifest.task), manifest.features.width
    sizes = [network.pixels] if network.pixels else []
    for most_rows in _WARM_UP_ROWS:
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


def build_module(
    architecture: str, classes: int, options: dict[str, Any], *, allow_import: bool = False
) -> nn.Module:
    """An untrained module of a named architecture. Raises `ModelUnusable`.

    With `allow_import` a name may also be "package.module:attribute", which is imported and called.
    """
    target = ARCHITECTURES.get(architecture) or TEXT_ARCHITECTURES.get(architecture)
    if target is None and ":" in architecture:
        if not allow_import:
            raise ModelUnusable(
                f"the architecture {architecture!r} is an import path, which runs code; "
                "start the worker with --allow-import to permit it"
            )
        target = architecture
    if target is None:
        known = ", ".join(sorted([*ARCHITECTURES, *TEXT_ARCHITECTURES, HASHING]))
        raise ModelUnusable(f"the architecture {architecture!r} is not known; there are: {known}")
    if target != architecture:
        _check_options(architecture, options)
    module_name, _, attribute = target.partition(":")
    try:
        make: Callable[..., nn.Module] = getattr(importlib.import_module(module_name), attribute)
        return make(classes, **options)
    except (ImportError, AttributeError, TypeError, ValueError, ArithmeticError, RuntimeError) as exc:
        raise ModelUnusable(f"the architecture {architecture!r} cannot be built: {exc}") from exc


def _check_options(architecture: str, options: Mapping[str, Any]) -> None:
    """An option can make a module as large as one likes, out of a file of a few bytes."""
    for name, value in options.items():
        most = MOST_OF_OPTIONS.get(name)
        if most is None or isinstance(value, bool) or not isinstance(value, int | float):
            continue  # the architecture says what it takes
        if not 0 <= value <= most:
            raise ModelUnusable(
                f"the architecture {architecture!r} cannot be built: {name!r} must be from 0 to {most}, "
                f"not {value}"
            )


def weights_bytes(manifest: Manifest) -> int:
    """Size of the weights file: the least that the model will take. Raises `ModelUnusable`."""
    if manifest.architecture == HASHING:
        return Hashing.resident_bytes
    path = manifest.path_of_weights()
    try:
        return os.path.getsize(path)
    except OSError as exc:
        raise ModelUnusable(f"the weights {path} cannot be read: {exc.strerror}") from exc


def _check_sha256(manifest: Manifest) -> None:
    path = manifest.path_of_weights()
    try:
        found = file_sha256(path)
    except OSError as exc:
        raise ModelUnusable(f"the weights {path} cannot be read: {exc.strerror}") from exc
    if manifest.sha256 is not None and found != manifest.sha256.lower():
        raise ModelUnusable(
            f"the weights {path} have SHA-256 {found}, and model.json says {manifest.sha256}: "
            "the file is damaged or was replaced; register the model again"
        )


def _torch(manifest: Manifest, device: Device, *, allow_import: bool) -> Network:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from gpu_worker.networks.text_network import TextNetwork
    from gpu_worker.networks.torch_network import TorchNetwork

    path = manifest.path_of_weights()
    build = functools.partial(
        build_module,
        manifest.architecture,
        len(manifest.classes),
        dict(manifest.architecture_options),
        allow_import=allow_import,
    )
    if manifest.architecture in ARCHITECTURES or manifest.architecture in TEXT_ARCHITECTURES:
        _check_fits(build, manifest)
    module = build()
    try:
        module.load_state_dict(load_file(path))
    except (SafetensorError, RuntimeError, OSError, TypeError, ValueError, KeyError) as exc:
        raise ModelUnusable(f"the weights {path} do not fit {manifest.architecture!r}: {exc}") from exc
    if manifest.input.form == "text":
        return TextNetwork(module, device)
    # What a module of somebody else's does may depend on its input.
    return TorchNetwork(module, manifest.input, device, traceable=manifest.architecture in ARCHITECTURES)


def _check_fits(build: Callable[[], nn.Module], manifest: Manifest) -> None:
    """Before memory is taken for a module that the weights are far too small for. Raises `ModelUnusable`."""
    import torch

    with torch.device("meta"):  # sizes without memory
        wanted_bytes = sum(tensor.nbytes for tensor in build().state_dict().values())
    stored_bytes = weights_bytes(manifest)
    if wanted_bytes > _MOST_UNPACKING * stored_bytes:
        raise ModelUnusable(
            f"the weights {manifest.path_of_weights()} do not fit {manifest.architecture!r}: it has "
            f"{wanted_bytes} bytes of them, and the file {stored_bytes}"
        )


def _onnx(manifest: Manifest, device: Device) -> Network:
    from gpu_worker.networks.onnx_network import OnnxNetwork
    from gpu_worker.networks.row_network import RowNetwork

    if manifest.input.form == "row":
        return RowNetwork(manifest.path_of_weights(), device)
    return OnnxNetwork(
        manifest.path_of_weights(),
        manifest.input,
        device,
        features=manifest.features.output,
        has_scores=bool(manifest.classes),
    )
