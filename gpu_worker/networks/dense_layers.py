"""Linear layers behind a pooling, as sentence-transformers' Dense modules are: of several folders one file.

N_Dense/config.json         in_features, out_features, bias, activation_function
N_Dense/model.safetensors   linear.weight, linear.bias

A model's own file has them as 0.weight, 0.bias, 1.weight, …; its manifest names their activations.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from gpu_worker.errors import ModelUnusable
from gpu_worker.model_files.manifest import Manifest
from gpu_worker.networks.extras import first_line
from gpu_worker.networks.recognised import json_of

__all__ = ["dense_of", "gathered"]

_WEIGHTS_FILE: Final = "model.safetensors"
_ACTIVATIONS: Final[Mapping[str, type[nn.Module]]] = {
    "Identity": nn.Identity,
    "Tanh": nn.Tanh,
    "ReLU": nn.ReLU,
    "GELU": nn.GELU,
    "SiLU": nn.SiLU,
    "Sigmoid": nn.Sigmoid,
}


def gathered(folders: Sequence[Path]) -> tuple[bytes, list[str], int]:
    """Of Dense modules in their order: the file, the activations' names, the width that comes out.

    Raises `ModelUnusable`. An activation is taken by the last part of its name: none is imported.
    """
    tensors: dict[str, Tensor] = {}
    names = []
    for place, folder in enumerate(folders):
        if not (folder / _WEIGHTS_FILE).is_file():
            raise ModelUnusable(
                f"{folder} has no {_WEIGHTS_FILE}; pytorch_model.bin may hold code: it is not read"
            )
        said = str(json_of(folder / "config.json").get("activation_function") or "torch.nn.Tanh")
        name = said.rpartition(".")[2]
        if name not in _ACTIVATIONS or not said.startswith("torch.nn."):
            raise ModelUnusable(
                f"{folder} has the activation {said[:100]!r}; there are {', '.join(_ACTIVATIONS)}"
            )
        names.append(name)
        try:
            stored = load_file((folder / _WEIGHTS_FILE).resolve())
        except (SafetensorError, OSError, ValueError) as exc:
            raise ModelUnusable(f"{folder / _WEIGHTS_FILE} cannot be read: {first_line(exc)}") from exc
        if "linear.weight" not in stored or stored["linear.weight"].ndim != 2:
            raise ModelUnusable(f"{folder / _WEIGHTS_FILE} holds no matrix 'linear.weight'")
        for part in ("weight", "bias"):
            if f"linear.{part}" in stored:
                tensors[f"{place}.{part}"] = stored[f"linear.{part}"].float().contiguous()
    return save(tensors), names, len(tensors[f"{len(folders) - 1}.weight"])


def dense_of(manifest: Manifest) -> nn.Sequential | None:
    """The layers of a model's own file; None where it names none. Raises `ModelUnusable`."""
    names = manifest.architecture_options.get("dense")
    if not names:
        return None
    path = manifest.path_of_role("dense")
    if not isinstance(names, list) or any(name not in _ACTIVATIONS for name in names):
        raise ModelUnusable(f"'architecture_options.dense' must list some of {', '.join(_ACTIVATIONS)}")
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    try:
        stored = load_file(path)
        width = stored["0.weight"].shape[1]
        for place, name in enumerate(names):
            weight, bias = stored[f"{place}.weight"], stored.get(f"{place}.bias")
            linear = nn.Linear(width, len(weight), bias=bias is not None, dtype=torch.float32)
            linear.load_state_dict({"weight": weight} | ({} if bias is None else {"bias": bias}))
            layers[f"linear{place}"], layers[f"activation{place}"] = linear, _ACTIVATIONS[name]()
            width = len(weight)
    except (SafetensorError, OSError, RuntimeError, ValueError, TypeError, KeyError) as exc:
        raise ModelUnusable(f"{path} does not hold its {len(names)} dense layers: {first_line(exc)}") from exc
    return nn.Sequential(layers)
