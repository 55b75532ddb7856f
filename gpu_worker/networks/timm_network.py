"""A timm checkpoint as a `Network`: an architecture that the installed `timm` knows, and its safetensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import nn

from gpu_worker.device import Device
from gpu_worker.errors import ModelUnusable
from gpu_worker.model_files.manifest import Manifest
from gpu_worker.networks.extras import required
from gpu_worker.networks.timm_options import check_options
from gpu_worker.networks.torch_network import TorchNetwork
from gpu_worker.tasks import task_named
from gpu_worker.tasks.task import Activation

__all__ = ["embedding_width", "load_timm", "read_timm"]


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
    from safetensors.torch import load_file

    try:
        module = _created(architecture, outputs, options)
        stored = load_file(weights)
        if not outputs:  # a checkpoint of a classifier gives features too
            wanted = module.state_dict()
            stored = {name: tensor for name, tensor in stored.items() if name in wanted}
        module.load_state_dict(stored)
    except ModelUnusable:
        raise
    except Exception as exc:  # architectures raise what their parts do
        raise ModelUnusable(f"the weights {weights} do not fit {architecture!r}: {exc}") from exc
    found: nn.Module = module.eval().requires_grad_(False)
    return found


def embedding_width(architecture: str, options: Mapping[str, Any]) -> int:
    """Numbers of what it gives without its classifier; computes nothing. Raises `ModelUnusable`.

    Its `num_features`, which config.json has, are those of its last layer: a head may widen them.
    """
    try:
        with torch.device("meta"):
            module = _created(architecture, 0, options)
        return int(module.head_hidden_size)
    except ModelUnusable:
        raise
    except Exception as exc:  # architectures raise what their parts do
        raise ModelUnusable(f"timm cannot make {architecture!r} of its options: {exc}") from exc


def _created(architecture: str, outputs: int, options: Mapping[str, Any]) -> Any:  # noqa: ANN401  # no types
    timm = required("timm", "timm")
    name = architecture.partition(".")[0]
    if not timm.is_model(name):
        raise ModelUnusable(f"timm {timm.__version__} knows no architecture {architecture!r}")
    given = {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
    return timm.create_model(name, pretrained=False, num_classes=outputs, **given)
