"""A stored torch model → a module as it will run: folded, converted, its numbers in the order of the passes.

No weights are drawn at random for one that is loaded: modules of the zoo are built without memory, and get
the tensors of the file.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from gpu_worker.device import Device
from gpu_worker.errors import ModelUnusable
from gpu_worker.model_files.manifest import Manifest
from gpu_worker.model_files.run_spec import BFLOAT16
from gpu_worker.networks.build import build_module
from gpu_worker.networks.narrowing import narrowed, narrowed_to, narrower
from gpu_worker.networks.precision import Precision, Verdict
from gpu_worker.networks.text_network import TextNetwork
from gpu_worker.networks.torch_network import TorchNetwork
from gpu_worker.tasks import task_named
from gpu_worker.zoo import ARCHITECTURES, DETECTORS, TEXT_ARCHITECTURES
from gpu_worker.zoo.blocks import fold_batch_norms

__all__ = [
    "as_it_suits",
    "is_of_the_zoo",
    "network_of",
    "precisions_for",
    "prepared_module",
    "skeleton",
]

_MOST_UNPACKING = 4  # a weight is float32 on the device, and may be stored in one byte


def is_of_the_zoo(manifest: Manifest) -> bool:
    """Whether the module is ours, and so is made of nothing but its architecture, options and weights."""
    return any(manifest.architecture in known for known in (ARCHITECTURES, DETECTORS, TEXT_ARCHITECTURES))


def prepared_module(manifest: Manifest, *, allow_import: bool = False) -> nn.Module:
    """The module with its weights, in ordinary memory, as it will run. Raises `ModelUnusable`."""
    path = manifest.path_of_weights()
    build = _builder(manifest, allow_import=allow_import)
    module = _without_memory(build) if is_of_the_zoo(manifest) else build()
    if is_of_the_zoo(manifest):
        _check_fits(module, manifest)
    try:
        stored = load_file(path)
        if is_of_the_zoo(manifest):
            wanted = module.state_dict()
            module.load_state_dict(
                {name: _converted(tensor, wanted.get(name)) for name, tensor in stored.items()}, assign=True
            )
        else:
            module.load_state_dict(stored)
    except (SafetensorError, RuntimeError, OSError, TypeError, ValueError, KeyError) as exc:
        raise ModelUnusable(f"the weights {path} do not fit {manifest.architecture!r}: {exc}") from exc
    return _as_it_runs(module, manifest)


def skeleton(manifest: Manifest, verdict: Verdict | None = None) -> nn.Module:
    """The same module of the zoo, with tensors that have no memory. Raises `ModelUnusable`.

    verdict: on its precision, where one was chosen for it.
    """
    module = _as_it_runs(_without_memory(_builder(manifest, allow_import=False)), manifest)
    return module if verdict is None else narrowed_to(module, verdict.precision)


def as_it_suits(module: nn.Module, manifest: Manifest, device: Device) -> tuple[nn.Module, Verdict | None]:
    """A module of the zoo in the precision that suits the device, and the verdict; None: none was tried."""
    precisions = precisions_for(manifest, device)
    if not precisions:
        return module, None

    def tried(copied: nn.Module, verdict: Verdict) -> TorchNetwork:
        return cast(TorchNetwork, network_of(copied, manifest, device, verdict))

    return narrowed(module, tried, precisions)


def precisions_for(manifest: Manifest, device: Device) -> tuple[Precision, ...]:
    """Those that a module of the zoo is tried in on the device, the fastest first."""
    return () if manifest.input.form == "text" else narrower(device, task_named(manifest.task).reads)


def network_of(
    module: nn.Module, manifest: Manifest, device: Device, verdict: Verdict | None = None
) -> TextNetwork | TorchNetwork:
    """The network of a module that is as it will run. Raises `ModelUnusable`.

    verdict: on its precision, where that was tried.
    """
    task = task_named(manifest.task)
    if manifest.run.precision == BFLOAT16 and device.is_cuda:
        raise ModelUnusable(
            f"{manifest.name} computes in bfloat16 on a CPU; on {device.name} a worker finds the fastest "
            f"precision of {manifest.name.partition('~')[0]} by itself"
        )
    if manifest.input.form == "text":
        return TextNetwork(module, device, task.activation)
    return TorchNetwork(
        module,
        manifest.input,
        device,
        # What a module of somebody else's does may depend on its input.
        traceable=manifest.architecture in ARCHITECTURES or manifest.architecture in DETECTORS,
        reads=task.reads if task.reads in ("values", "boxes") else "scores",
        activation=task.activation,
        verdict=verdict,
    )


def _builder(manifest: Manifest, *, allow_import: bool) -> Callable[[], nn.Module]:
    return functools.partial(
        build_module,
        manifest.architecture,
        len(manifest.classes) or 1,  # a value
        dict(manifest.architecture_options),
        allow_import=allow_import,
    )


def _without_memory(build: Callable[[], nn.Module]) -> nn.Module:
    with torch.device("meta"):
        return build()


def _as_it_runs(module: nn.Module, manifest: Manifest) -> nn.Module:
    module.eval().requires_grad_(False)
    if manifest.input.form != "text":
        fold_batch_norms(module)
        # torch's stubs lack this overload, which its documentation names first.
        module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if manifest.run.precision == BFLOAT16:
            module.to(torch.bfloat16)
    return module


def _converted(tensor: Tensor, wanted: Tensor | None) -> Tensor:
    return tensor if wanted is None else tensor.to(wanted.dtype)


def _check_fits(module: nn.Module, manifest: Manifest) -> None:
    """Before memory is taken for a module that the weights are far too small for. Raises `ModelUnusable`."""
    wanted_bytes = sum(tensor.nbytes for tensor in module.state_dict().values())
    stored_bytes = os.path.getsize(manifest.path_of_weights())
    if wanted_bytes > _MOST_UNPACKING * stored_bytes:
        raise ModelUnusable(
            f"the weights {manifest.path_of_weights()} do not fit {manifest.architecture!r}: it has "
            f"{wanted_bytes} bytes of them, and the file {stored_bytes}"
        )
