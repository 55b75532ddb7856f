"""An ONNX graph of tokens as a `Network` of texts, with its tokenizer.json: classes, values or embeddings.

As exporters of transformers write them: `input_ids`, `attention_mask` and perhaps `token_type_ids` in, any
number of texts of any length; `logits`, a vector for each token (pooled here), or one for each text out.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, cast

import numpy as np
import onnxruntime
import torch
from torch import Tensor, nn

from gpu_worker.device import Device
from gpu_worker.errors import ModelUnusable
from gpu_worker.model_files.manifest import Manifest
from gpu_worker.networks.dense_layers import dense_of
from gpu_worker.networks.network import Floats
from gpu_worker.networks.onnx_network import first_passes, open_session
from gpu_worker.networks.sequence_network import Head, SequenceNetwork, pooling_of
from gpu_worker.networks.text_tokenizer import TextRules, read_tokenizer
from gpu_worker.tasks import task_named
from gpu_worker.tasks.task import Activation

__all__ = ["OnnxSequence"]

_TYPES: Final[Mapping[str, Any]] = MappingProxyType({"tensor(int64)": np.int64, "tensor(int32)": np.int32})
_TOKENS, _MASK, _SEGMENTS = "input_ids", "attention_mask", "token_type_ids"
_KNOWN: Final[Mapping[str, Sequence[str]]] = MappingProxyType(
    {
        "scores": ("logits",),
        "values": ("logits",),
        "features": ("last_hidden_state", "token_embeddings", "sentence_embedding"),
    }
)
_MOST_TOKENS: Final = 512  # where nobody says: as many places as most have


class OnnxSequence(SequenceNetwork):
    """The weights of `manifest`, or `content` where that is in memory. Raises `ModelUnusable`."""

    def __init__(self, manifest: Manifest, device: Device, content: bytes | None = None) -> None:
        path = manifest.path_of_weights()
        task, said = task_named(manifest.task), manifest.input.preprocess
        if task.reads not in _KNOWN:
            raise ModelUnusable(f"{path}: a graph of tokens gives no {task.reads}, of which {task.name} is")
        head = cast("Head", task.reads)
        self._path = path
        self._session = open_session(path, device, content)
        self._options: onnxruntime.RunOptions | None = None  # of the first passes
        self._types = _inputs(self._session, path)
        self._output, is_pooled = _output(self._session, manifest, head, path)
        rules = TextRules(said.length or _MOST_TOKENS, prefix=said.prefix, lower_case=said.lower_case)
        super().__init__(
            self._run,
            nn.Identity(),  # the session has the weights
            read_tokenizer(manifest.path_of_role("tokenizer"), rules),
            # What is around the graph's pass stays with the texts.
            dataclasses.replace(device, name="cpu"),
            head=head,
            activation=cast("Activation", manifest.outputs.activation or task.activation),
            # A vector of the text is the first and only one.
            pooling="cls" if is_pooled else pooling_of(manifest),
            dense=dense_of(manifest) if head == "features" else None,
            normalise=bool(manifest.architecture_options.get("normalise", False)),
        )
        self._graph_bytes = os.path.getsize(path) if content is None else len(content)

    @property
    def resident_bytes(self) -> int:
        """The graph, the tokenizer, and what stands behind the graph."""
        return self._graph_bytes + super().resident_bytes

    def warm_up(self, rows: int) -> Floats:
        """See `SequenceNetwork`. Raises `ModelUnusable` where the graph fails, or never ends."""
        with first_passes(self._path) as self._options:
            try:
                return super().warm_up(rows)
            finally:
                self._options = None

    def _run(self, _: nn.Module, tokens: Tensor, mask: Tensor) -> Tensor:
        given = {_TOKENS: tokens, _MASK: mask, _SEGMENTS: torch.zeros_like(tokens)}
        feed = {name: given[name].numpy().astype(kind, copy=False) for name, kind in self._types.items()}
        (found,) = self._session.run([self._output], feed, self._options)
        numbers = torch.from_numpy(np.asarray(found, np.float32))
        return numbers.unsqueeze(1) if self._head == "features" and numbers.ndim == 2 else numbers


def _inputs(session: onnxruntime.InferenceSession, path: str) -> dict[str, Any]:
    """Name → type of each."""
    inputs = session.get_inputs()
    types = {str(each.name): _TYPES.get(each.type) for each in inputs}
    told = ", ".join(f"{each.name} {each.type} {each.shape}" for each in inputs)
    if not {_TOKENS} <= types.keys() <= {_TOKENS, _MASK, _SEGMENTS} or None in types.values():
        raise ModelUnusable(
            f"{path} takes {told}; a graph of tokens takes {_TOKENS}, {_MASK} and perhaps {_SEGMENTS}"
        )
    if any(isinstance(size, int) for each in inputs for size in each.shape):
        raise ModelUnusable(
            f"{path} takes {told}: texts of one length or number alone; export it with dynamic axes"
        )
    return types


def _output(
    session: onnxruntime.InferenceSession, manifest: Manifest, head: Head, path: str
) -> tuple[str, bool]:
    """Its name, and whether it has one vector for each text already."""
    outputs = {str(each.name): len(each.shape) for each in session.get_outputs()}
    said = {
        "scores": manifest.outputs.scores,
        "values": manifest.outputs.values,
        "features": manifest.outputs.features or manifest.features.output,
    }[head]
    names = [said] if said else [name for name in _KNOWN[head] if name in outputs] or [*outputs][:1]
    if names[0] not in outputs or (not said and len(outputs) > 1 and names[0] not in _KNOWN[head]):
        raise ModelUnusable(
            f"{path} has the outputs {', '.join(outputs)}; say which gives the {head}: --output {head}=NAME"
        )
    return names[0], head == "features" and outputs[names[0]] == 2
