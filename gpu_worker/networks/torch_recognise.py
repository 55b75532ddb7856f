"""A PyTorch checkpoint as a model: numbers alone are read of it, and its architecture is one of the zoo.

A checkpoint is a pickle. It is read with `weights_only=True`, which makes tensors and nothing else of it, and
only where its owner names the architecture; what is registered is safetensors.
"""

from __future__ import annotations

import importlib
import zipfile
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
    import torch
    from safetensors.torch import save

    module_name, _, attribute = known[architecture].partition(":")
    module = importlib.import_module(module_name)
    own_name = getattr(module, "own_name", lambda name: name)
    tensors = {own_name(name): tensor for name, tensor in _tensors(path).items()}
    matrices = (tensor for tensor in reversed(tensors.values()) if tensor.ndim == 2 and tensor.numel())
    last = next(matrices, None)
    classes = wishes.get("classes") or [str(number) for number in range(0 if last is None else len(last))]
    with torch.device("meta"):
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
    stored = save({name: tensor.contiguous() for name, tensor in tensors.items()})
    return Recognised(manifest, {"model.safetensors": (stored, "weights")}, guesses)


def _tensors(path: Path) -> dict[str, Any]:
    import torch

    if path.suffix.lower() == _TENSORS:
        from safetensors.torch import load_file

        return dict(load_file(path))
    _check_archive(path)
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
    for name, tensor in found.items():
        is_whole = tensor.layout == torch.strided and tensor.nbytes <= tensor.untyped_storage().nbytes()
        if not is_whole:  # a few numbers may call themselves a matrix of any size
            raise ModelUnusable(f"{path}: the numbers of {name!r} are not all there")
    return {name.removeprefix("module."): value for name, value in found.items()}


def _check_archive(path: Path) -> None:
    """Raises `ModelUnusable` for an archive that grows when it is read: torch stores all as it is."""
    if not zipfile.is_zipfile(path):
        return  # the format before torch 1.6
    with zipfile.ZipFile(path) as archive:
        parts = archive.infolist()
    is_packed = any(part.compress_type != zipfile.ZIP_STORED for part in parts)
    if is_packed or sum(part.file_size for part in parts) > path.stat().st_size:
        raise ModelUnusable(f"{path} is packed, as torch writes no checkpoint: save it again with torch.save")


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
