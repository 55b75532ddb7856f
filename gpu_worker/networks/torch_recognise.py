"""A PyTorch checkpoint as a model: numbers alone are read of it, and its architecture is one of the zoo.

A checkpoint is a pickle. It is read with `weights_only=True`, which makes tensors and nothing else of it, and
only where its owner names the architecture; what is registered is safetensors.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpu_worker.errors import ModelUnusable
from gpu_worker.networks.recognised import Recognised
from gpu_worker.zoo import ARCHITECTURES, TEXT_ARCHITECTURES

__all__ = ["recognise_checkpoint"]

_CHECKPOINTS = (".pt", ".pth", ".ckpt")
_TENSORS = ".safetensors"
_WRAPPERS = ("state_dict", "model_state_dict", "model", "model_state")


def recognise_checkpoint(path: Path, wishes: Mapping[str, Any]) -> Recognised | None:
    """A checkpoint or safetensors file of an architecture of the zoo; None for another file.

    Raises `ModelUnusable` for a checkpoint whose architecture is not named, or does not fit.
    """
    is_checkpoint = path.suffix.lower() in _CHECKPOINTS
    if not path.is_file() or not (is_checkpoint or path.suffix.lower() == _TENSORS):
        return None
    architecture = str(wishes.get("architecture") or "")
    known = {**ARCHITECTURES, **TEXT_ARCHITECTURES}
    if architecture not in known:
        if not is_checkpoint and not architecture:
            return None  # of some other runtime, perhaps
        what = "is a pickle, which runs code when it is read" if is_checkpoint else "holds tensors alone"
        raise ModelUnusable(
            f"{path} {what}: say --architecture, one of {', '.join(sorted(known))}, and its numbers alone "
            "are read; a model of another architecture is exported to ONNX by whoever has its code"
        )
    from safetensors.torch import save

    module_name, _, attribute = known[architecture].partition(":")
    module = importlib.import_module(module_name)
    own_name = getattr(module, "own_name", lambda name: name)
    tensors = {own_name(name): tensor.contiguous() for name, tensor in _tensors(path).items()}
    last = next((tensors[name] for name in reversed(tensors) if tensors[name].ndim == 2), None)
    classes = wishes.get("classes") or [str(number) for number in range(0 if last is None else len(last))]
    wanted = getattr(module, attribute)(len(classes)).state_dict()
    _check_fits(path, architecture, tensors, wanted)
    given = getattr(module, "INPUT", None)
    guesses = (
        [] if wishes.get("classes") else [f"classes: 0 to {len(classes) - 1}; --classes FILE names them"]
    )
    if given is not None:
        guesses.append(f"input: as {architecture} was trained")
    manifest = {
        "runtime": "torch",
        "architecture": architecture,
        "task": "text-classification" if architecture in TEXT_ARCHITECTURES else "image-classification",
        "classes": classes,
        "input": given or {"form": "text" if architecture in TEXT_ARCHITECTURES else "path"},
    }
    return Recognised(manifest, {"model.safetensors": (save(tensors), "weights")}, guesses)


def _tensors(path: Path) -> dict[str, Any]:
    import torch

    if path.suffix.lower() == _TENSORS:
        from safetensors.torch import load_file

        return dict(load_file(path))
    try:
        stored = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as exc:  # whatever a file that is none may raise
        raise ModelUnusable(
            f"{path} cannot be read for its tensors alone: {exc}. A file that holds a whole model is code: "
            "export it to ONNX, or save its state_dict()"
        ) from exc
    for name in _WRAPPERS:
        if isinstance(stored, dict) and isinstance(stored.get(name), dict):
            stored = stored[name]
    found = (
        {name: value for name, value in stored.items() if isinstance(value, torch.Tensor)}
        if isinstance(stored, dict)
        else {}
    )
    if not found:
        raise ModelUnusable(f"{path} holds no tensors by their names (a state_dict)")
    return {name.removeprefix("module."): value for name, value in found.items()}


def _check_fits(path: Path, architecture: str, tensors: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    missing = sorted(wanted.keys() - tensors.keys())
    odd = sorted(tensors.keys() - wanted.keys())
    wrong = [name for name in wanted if name in tensors and tensors[name].shape != wanted[name].shape]
    reason = (
        f"it has no {missing[0]!r}"
        if missing
        else f"it has {odd[0]!r} too"
        if odd
        else f"{wrong[0]!r} has the shape {list(tensors[wrong[0]].shape)}, not {list(wanted[wrong[0]].shape)}"
        if wrong
        else ""
    )
    if reason:
        raise ModelUnusable(f"{path} does not fit {architecture!r}: {reason}")
