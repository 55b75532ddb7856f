"""A Hugging Face directory as a `Network`: config.json, model.safetensors, and the texts' tokenizer.json.

The architecture is one of the installed `transformers`; no code of the directory is run, and weights come
from safetensors alone. Each weight of the architecture must be in the file: transformers itself would draw
the missing ones at random, with a warning.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from gpu_worker.device import Device
from gpu_worker.errors import ModelUnusable
from gpu_worker.model_files.manifest import Manifest
from gpu_worker.model_files.regular import read_json
from gpu_worker.networks.dense_layers import dense_of
from gpu_worker.networks.extras import first_line, required
from gpu_worker.networks.network import Network
from gpu_worker.networks.query_detector import QueryDetector
from gpu_worker.networks.sequence_network import Head, SequenceNetwork, pooling_of
from gpu_worker.networks.text_tokenizer import TextRules, read_tokenizer
from gpu_worker.networks.torch_network import TorchNetwork
from gpu_worker.networks.transformers_config import most_positions, safe_config
from gpu_worker.tasks import task_named
from gpu_worker.tasks.task import Activation

__all__ = ["CONFIG_FILE", "load_transformers", "read_module"]

CONFIG_FILE = "config.json"
_INDEX_FILE = "model.safetensors.index.json"
_ADAPTER_FILE = "adapter_config.json"

# Which class of transformers makes the module: by what the network gives, of texts and of pictures.
_TEXTS: Mapping[str, str] = {
    "scores": "AutoModelForSequenceClassification",
    "values": "AutoModelForSequenceClassification",
    "features": "AutoModel",
}
_PICTURES: Mapping[str, str] = {
    "scores": "AutoModelForImageClassification",
    "values": "AutoModelForImageClassification",
    "features": "AutoModel",
    "boxes": "AutoModelForObjectDetection",
}
# Parts that an embedding does not read, and checkpoints may lack.
_UNREAD = ("pooler.",)


def load_transformers(
    manifest: Manifest, device: Device, *, content: bytes | None, allow_import: bool
) -> Network:
    """The network of a model's folder. Raises `ModelUnusable`."""
    task = task_named(manifest.task)
    reads = task.reads
    is_text = manifest.input.form == "text"
    classes = (_TEXTS if is_text else _PICTURES).get(reads)
    if classes is None:
        raise ModelUnusable(
            f"{manifest.directory}: transformers models give no {reads}, of which {task.name} is"
        )
    module, lacks = read_module(manifest, classes, features=reads == "features")
    activation = cast("Activation", manifest.outputs.activation or task.activation)
    if reads == "boxes":
        return QueryDetector(module, manifest, device)
    if not is_text:
        return TorchNetwork(
            _Pictures(module, features=reads == "features", has_pooler=not lacks),
            manifest.input,
            device,
            traceable=False,
            reads=reads,
            activation=activation,
        )
    return _of_texts(manifest, module, device, cast("Head", reads), activation)


def _of_texts(
    manifest: Manifest, module: nn.Module, device: Device, head: Head, activation: Activation
) -> SequenceNetwork:
    said = manifest.input.preprocess
    pooling = pooling_of(manifest)
    config: Any = module.config
    known = int(getattr(config, "vocab_size", None) or 0)
    # A token or a place that the module does not have ends an accelerator's process.
    positions = most_positions(config.to_dict())
    length = min(said.length or positions, positions or said.length)
    rules = TextRules(length, prefix=said.prefix, lower_case=said.lower_case)
    tokenizer = read_tokenizer(manifest.path_of_role("tokenizer"), rules)
    if tokenizer.vocabulary > known:
        raise ModelUnusable(
            f"{manifest.directory}: the tokenizer has {tokenizer.vocabulary} tokens, and the model knows "
            f"{known}: they are not of one model"
        )
    padding = getattr(config, "pad_token_id", None)
    output = "last_hidden_state" if head == "features" else "logits"

    def run(module: nn.Module, tokens: Tensor, mask: Tensor) -> Tensor:
        found: Tensor = getattr(module(input_ids=tokens, attention_mask=mask), output)
        return found

    return SequenceNetwork(
        run,
        module,
        tokenizer,
        device,
        head=head,
        activation=activation,
        pooling=pooling,
        dense=dense_of(manifest) if head == "features" else None,
        normalise=bool(manifest.architecture_options.get("normalise", False)),
        padding=padding if isinstance(padding, int) and 0 <= padding < known else 0,
    )


def read_module(manifest: Manifest, auto_class: str, *, features: bool) -> tuple[nn.Module, bool]:
    """The module of a model's folder with its weights, in float32; and whether it lacks its pooler.

    auto_class: of transformers, such as AutoModel. features: a pooler may be missing. Raises `ModelUnusable`.
    """
    directory = manifest.directory
    transformers = required("transformers", "transformers")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        said = read_json(f"{directory}/{CONFIG_FILE}")
    except ValueError as exc:
        raise ModelUnusable(str(exc)) from exc
    kind = said.get("model_type")
    if not isinstance(kind, str) or kind not in transformers.CONFIG_MAPPING:
        raise ModelUnusable(
            f"{directory}/{CONFIG_FILE} has the model_type {kind!r}, which transformers "
            f"{transformers.__version__} does not know; code of the directory is never run"
        )
    safe = safe_config(said, f"{directory}/{CONFIG_FILE}")
    _check_weights(manifest)
    try:
        config = transformers.CONFIG_MAPPING[kind].from_dict(safe)
        module, report = getattr(transformers, auto_class).from_pretrained(
            directory,
            config=config,
            dtype=torch.float32,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            ignore_mismatched_sizes=True,  # its own error tells of a report that nobody sees: ours is below
            output_loading_info=True,
        )
    except Exception as exc:  # transformers raises whatever its parts do
        raise ModelUnusable(f"transformers cannot load {directory}: {first_line(exc)}") from exc
    unread = {name for name in report["missing_keys"] if features and name.startswith(_UNREAD)}
    missing = sorted(report["missing_keys"] - unread)
    if mismatched := sorted(report["mismatched_keys"]):
        name, stored, wanted = mismatched[0]
        raise ModelUnusable(
            f"the weight {name} of {directory} is {list(stored)}, and {CONFIG_FILE} makes it {list(wanted)}: "
            "are they of one model?"
        )
    if missing:
        raise ModelUnusable(
            f"the weights of {directory} lack {', '.join(missing[:5])}{' …' if len(missing) > 5 else ''}, "
            f"which {type(module).__name__} needs: was it trained for this?"
        )
    return cast("nn.Module", module), bool(unread)


def _check_weights(manifest: Manifest) -> None:
    """Raises `ModelUnusable` where transformers would read weights that are none of the model's files."""
    directory = manifest.directory
    if os.path.lexists(os.path.join(directory, _ADAPTER_FILE)):
        raise ModelUnusable(
            f"{directory} holds {_ADAPTER_FILE}, which takes its model from elsewhere: merge the two first"
        )
    index = os.path.join(directory, _INDEX_FILE)
    if not os.path.lexists(index):
        return
    try:
        listed = read_json(index).get("weight_map")
    except ValueError as exc:
        raise ModelUnusable(str(exc)) from exc
    files = [file.name for file in manifest.files]
    others = [name for name in listed.values() if name not in files] if isinstance(listed, dict) else [listed]
    if others:
        raise ModelUnusable(f"{index} names {str(others[0])[:100]!r}, which is none of the model's files")


class _Pictures(nn.Module):
    """Pixels [n, 3, H, W] → logits, or of `features` one vector for each picture."""

    def __init__(self, module: nn.Module, *, features: bool, has_pooler: bool) -> None:
        super().__init__()
        self.module = module
        self._features = features
        self._has_pooler = has_pooler
        # Positions that were learnt for another size are stretched, where the module can.
        takes = inspect.signature(module.forward).parameters
        self._options = {"interpolate_pos_encoding": True} if "interpolate_pos_encoding" in takes else {}

    def forward(self, pixels: Tensor) -> Tensor:
        """[n, classes], or [n, width]."""
        found = self.module(pixel_values=pixels, **self._options)
        if not self._features:
            logits: Tensor = found.logits
            return logits
        pooler: Tensor | None = getattr(found, "pooler_output", None) if self._has_pooler else None
        if pooler is None:
            hidden: Tensor = found.last_hidden_state
            pooler = hidden[:, 0] if hidden.ndim == 3 else hidden.mean((2, 3))
        return pooler.flatten(1)
