"""What runs a model: a small object for each runtime. A new one is an object here, and a word in `RUNTIMES`
of `gpu_worker/model_files/regular.py`.

Whoever loads a model asks `runtime_of`; nobody else compares a runtime's name. Nothing heavy is imported
until a model of a runtime is loaded.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Protocol

from gpu_worker.device import Device
from gpu_worker.errors import ModelUnusable
from gpu_worker.model_files.backbone import HEAD
from gpu_worker.model_files.manifest import Manifest
from gpu_worker.networks.network import Network
from gpu_worker.networks.recognised import Recognised
from gpu_worker.zoo import HASHING

__all__ = ["RUNTIMES", "Held", "Runtime", "files_bytes", "runs_torch", "runtime_of"]

# How a model gets into a device's memory (gpu_worker/tiers/loads.py):
#   tensors  its weights are laid out once, kept in the host's memory, and copied under the network
#   file     its first file may lie in the host's memory; making a network of that is the load
#   made     making the network is the load: it reads its files itself, and has its weights for itself
#   drawn    it has no files: its weights are written where they are needed
Held = Literal["tensors", "file", "made", "drawn"]


class Load(Protocol):
    """Makes the network of a model that is checked: files hashed, forms known. Not warm yet."""

    def __call__(
        self, manifest: Manifest, device: Device, *, content: bytes | None, allow_import: bool
    ) -> Network:
        """content: of the first file, where that is in memory. Raises `ModelUnusable`."""
        ...


Recognise = Callable[[Path, Mapping[str, Any]], Recognised | None]


def files_bytes(manifest: Manifest) -> int:
    """Size of a model's files: the least that it will take. Raises `ModelUnusable`."""
    nbytes = 0
    for file in manifest.files:
        path = manifest.path_of(file)
        try:
            nbytes += os.path.getsize(path)
        except OSError as exc:
            raise ModelUnusable(f"the weights {path} cannot be read: {exc.strerror}") from exc
    if not manifest.files:
        manifest.path_of_weights()  # says which is missing
    return nbytes


@dataclass(frozen=True, slots=True)
class Runtime:
    """One runtime.

    forms: of the rows that its models may take. imports: modules that `load` needs, imported where a load may
    take its time; extra: of ml_udf, whose packages they are. nbytes: the least that a model takes of the
    device. is_torch: of one that is `made`, whether torch runs its passes. below: the model that one of its
    models stands on. recognise(path, wishes): what a
    file or folder is, where it is of this runtime, else None; wishes: what its owner said of it, as fields of
    a manifest.
    """

    name: str
    forms: frozenset[str]
    held: Held
    imports: tuple[str, ...]
    load: Load
    extra: str = "worker"
    nbytes: Callable[[Manifest], int] = files_bytes
    prepare: Callable[[], None] = lambda: None
    is_torch: bool = False
    below: Callable[[Manifest], Manifest | None] = lambda _: None
    recognise: Recognise | None = None

    def import_modules(self) -> None:
        """Imports what it needs. Raises `ModelUnusable` where that is not installed."""
        for name in self.imports:
            try:
                importlib.import_module(name)
            except ModuleNotFoundError as exc:
                raise ModelUnusable(
                    f"a model of the runtime {self.name!r} needs {exc.name}, which this worker has not; "
                    f"pip install 'ml_udf[{self.extra}]', and start it again"
                ) from exc
        self.prepare()


def runtime_of(manifest: Manifest) -> Runtime:
    """What runs the model. Raises `ModelUnusable` for a runtime that is not known."""
    if manifest.architecture == HASHING:
        return _HASHING
    found = RUNTIMES.get(manifest.runtime)
    if found is None:
        known = ", ".join(RUNTIMES)
        raise ModelUnusable(f"the runtime {manifest.runtime!r} is not known here; there are: {known}")
    return found


def runs_torch(manifest: Manifest) -> bool:
    """Whether torch runs a model's passes, or those of what it stands on. Raises `ModelUnusable`."""
    runtime = runtime_of(manifest)
    below = runtime.below(manifest)
    return runtime.is_torch or runtime.held == "tensors" or (below is not None and runs_torch(below))


# ── torch: a named architecture and safetensors ──────────────────────────────────────────────────────────


def _load_torch(manifest: Manifest, device: Device, *, content: bytes | None, allow_import: bool) -> Network:
    from gpu_worker.networks.torch_loader import network_of, prepared_module

    return network_of(prepared_module(manifest, allow_import=allow_import), manifest, device)


@functools.cache
def _draw_once() -> None:
    import torch

    with torch.device("meta"):  # random weights without memory: the first ones import half of torch
        torch.empty(1).normal_()


# ── ONNX ─────────────────────────────────────────────────────────────────────────────────────────────────


def _load_onnx(manifest: Manifest, device: Device, *, content: bytes | None, allow_import: bool) -> Network:
    from gpu_worker.networks.onnx_network import OnnxNetwork
    from gpu_worker.networks.row_network import RowNetwork

    if manifest.input.form == "text" and manifest.input.preprocess.tokenizer:
        from gpu_worker.networks.onnx_sequence import OnnxSequence

        return OnnxSequence(manifest, device, content)
    if manifest.input.form in ("row", "text") or manifest.input.preprocess.file_ends is not None:
        return RowNetwork(manifest, device, content)
    return OnnxNetwork(manifest, device, content)


# ── hashing: answers that are known beforehand ───────────────────────────────────────────────────────────


def _load_hashing(
    manifest: Manifest, device: Device, *, content: bytes | None, allow_import: bool
) -> Network:
    from gpu_worker.networks.hashing import Hashing

    return Hashing.from_options(manifest.classes, manifest.architecture_options)


def _hashing_bytes(manifest: Manifest) -> int:
    from gpu_worker.networks.hashing import Hashing

    return Hashing.from_options(manifest.classes, manifest.architecture_options).resident_bytes


# ── heads: a small ONNX file over another model's features ───────────────────────────────────────────────


def _of_head(name: str) -> Callable[[Manifest], Any]:
    """The function of that name, of the module that knows heads."""

    def told(manifest: Manifest) -> Any:  # noqa: ANN401  # as the function says
        return getattr(importlib.import_module("gpu_worker.networks.head_network"), name)(manifest)

    return told


# ── modules that make a network of a model's folder themselves ───────────────────────────────────────────


def _load_by(module: str, name: str) -> Load:
    """The function of that name, of a module that is imported when it is called."""

    def load(manifest: Manifest, device: Device, *, content: bytes | None, allow_import: bool) -> Network:
        make: Load = getattr(importlib.import_module(f"gpu_worker.networks.{module}"), name)
        return make(manifest, device, content=content, allow_import=allow_import)

    return load


def _recognise_by(module: str, name: str) -> Recognise:
    """The same, of what looks at a file or folder."""

    def recognise(path: Path, wishes: Mapping[str, Any]) -> Recognised | None:
        look: Recognise = getattr(importlib.import_module(f"gpu_worker.networks.{module}"), name)
        return look(path, wishes)

    return recognise


_PICTURES = frozenset(("path", "image", "tensor"))
_HASHING = Runtime(HASHING, _PICTURES | {"text"}, "drawn", (), _load_hashing, nbytes=_hashing_bytes)
RUNTIMES: Mapping[str, Runtime] = MappingProxyType(
    {
        runtime.name: runtime
        for runtime in (
            Runtime(
                "torch",
                _PICTURES | {"text"},
                "tensors",
                (
                    "safetensors.torch",
                    "gpu_worker.networks.text_network",
                    "gpu_worker.networks.torch_loader",
                    "gpu_worker.networks.torch_network",
                ),
                _load_torch,
                prepare=_draw_once,
                recognise=_recognise_by("torch_recognise", "recognise_checkpoint"),
            ),
            Runtime(
                "onnx",
                _PICTURES | {"text", "row"},
                "file",
                ("gpu_worker.networks.onnx_network", "gpu_worker.networks.row_network"),
                _load_onnx,
                recognise=_recognise_by("onnx_recognise", "recognise_onnx"),
            ),
            Runtime(
                "static",
                frozenset(("text",)),
                "made",
                ("tokenizers", "safetensors.numpy", "gpu_worker.networks.static_embedding"),
                _load_by("static_embedding", "load_static"),
                extra="embeddings",
                recognise=_recognise_by("static_source", "recognise_static"),
            ),
            Runtime(
                "xgboost",
                frozenset(("row",)),
                "made",
                ("xgboost", "gpu_worker.networks.xgboost_network"),
                _load_by("xgboost_network", "load_xgboost"),
                extra="xgboost",
                recognise=_recognise_by("tree_source", "recognise_xgboost"),
            ),
            Runtime(
                "lightgbm",
                frozenset(("row",)),
                "made",
                ("lightgbm", "gpu_worker.networks.lightgbm_network"),
                _load_by("lightgbm_network", "load_lightgbm"),
                extra="lightgbm",
                recognise=_recognise_by("tree_source", "recognise_lightgbm"),
            ),
            Runtime(
                "transformers",
                _PICTURES | {"text"},
                "made",
                ("transformers", "tokenizers", "gpu_worker.networks.transformers_network"),
                _load_by("transformers_network", "load_transformers"),
                extra="transformers",
                prepare=_draw_once,
                is_torch=True,
                recognise=_recognise_by("transformers_source", "recognise_transformers"),
            ),
            Runtime(
                "timm",
                _PICTURES,
                "made",
                ("timm", "gpu_worker.networks.timm_network"),
                _load_by("timm_network", "load_timm"),
                extra="timm",
                prepare=_draw_once,
                is_torch=True,
                recognise=_recognise_by("timm_source", "recognise_timm"),
            ),
            Runtime(
                HEAD,
                _PICTURES | {"text"},
                "made",
                ("gpu_worker.networks.head_network",),
                _load_by("head_network", "load_head"),
                nbytes=_of_head("head_bytes"),
                below=_of_head("below_head"),
            ),
        )
    }
)
