"""A timm checkpoint as a `Network`: an architecture that the installed `timm` knows, and its safetensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from torch import nn

from gpu_worker.device import Device
from gpu_worker.errors import ModelUnusable
from gpu_worker.model_files.manifest import Manifest
from gpu_worker.networks.extras import required
from gpu_worker.networks.timm_options import check_options
from gpu_worker.networks.torch_network import TorchNetwork
from gpu_worker.tasks import task_named
from gpu_worker.tasks.task import Activation

__all__ = ["load_timm", "read_timm"]


def load_timm(
    manifest: Manifest, device: Device, *, content: bytes | None, allow_import: bool
) -> TorchNetwork:
    """The network of a model's folder. Raises `ModelUnusable`."""
    task = task_named(manifest.task)
    outputs = 0 if task.reads == "features" else len(manifest.classes) if task.reads == "scores" else 1
    module = read_timm(
        manifest.architecture, manifest.path_of_weights(), outputs, manifest.architecture_options
    )
    return TorchNetwork(
        module,
        manifest.input,
        device,
        traceable=manifest.run.traced,
        reads=task.reads,
        activation=cast("Activation", manifest.outputs.activation or task.activation),
    )


def read_timm(architecture: str, weights: str, outputs: int, options: Mapping[str, Any]) -> nn.Module:
    """The module with its weights; outputs: of its classifier, 0 for none. Raises `ModelUnusable`.

    options: arguments of timm's `create_model`, those of `check_options`.
    """
    check_options(options, f"'architecture_options' of the model with the weights {weights}")
    timm = required("timm", "timm")
    from safetensors.torch import load_file

    if not timm.is_model(architecture.partition(".")[0]):
        raise ModelUnusable(f"timm {timm.__version__} knows no architecture {architecture!r}")
    try:
        module = timm.create_model(
            architecture.partition(".")[0], pretrained=False, num_classes=outputs, **dict(options)
        )
        stored = load_file(weights)
        if not outputs:  # a checkpoint of a classifier gives features too
            wanted = module.state_dict()
            stored = {name: tensor for name, tensor in stored.items() if name in wanted}
        module.load_state_dict(stored)
    except Exception as exc:  # architectures raise what their parts do
        raise ModelUnusable(f"the weights {weights} do not fit {architecture!r}: {exc}") from exc
    found: nn.Module = module.eval().requires_grad_(False)
    return found
