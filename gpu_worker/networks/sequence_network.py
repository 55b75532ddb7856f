"""A transformer of texts as a `Network`: tokens in, and of each text scores, values or an embedding out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, cast

import numpy as np
import torch
from torch import Tensor, nn

from gpu_worker.device import Device
from gpu_worker.errors import ModelUnusable
from gpu_worker.model_files.manifest import Manifest
from gpu_worker.networks.accelerated import beside, on_cuda
from gpu_worker.networks.narrowing import narrowed, narrower
from gpu_worker.networks.network import Floats, Inputs, IsCancelled, activated
from gpu_worker.networks.parts import in_parts_that_fit
from gpu_worker.networks.precision import Read, Verdict, token_lists
from gpu_worker.networks.text_tokenizer import TextTokenizer
from gpu_worker.tasks.task import Activation

__all__ = ["POOLINGS", "Head", "SequenceNetwork", "pooled", "pooling_of"]

# What the module gives: of each text its classes, or a value, or of each token a vector.
Head = Literal["scores", "values", "features"]

POOLINGS = ("mean", "cls", "max", "last")

_MOST_TOKENS = 8192  # of a pass, padding among them
_LONGER = 1.25  # than the shortest of a pass a text may be, and
_MORE_TOKENS = 8  # so many: more would compute padding for nothing
_TRIED = 128  # tokens of the longest text that precisions are judged by


class SequenceNetwork:
    """run(module, tokens, mask) gives [n, outputs], or of `features` [n, length, width].

    tokens, mask: int64 [n, length]. Texts of like length run together, the rest is padding. Of features:
    pooling, dense (layers behind it), normalise. verdict: on the precision of the module, on a CUDA device;
    None where none was tried: it is then narrowed when it is warmed up, if the device wants that. The layers
    behind it stay float32.
    """

    forms = frozenset(("text",))
    pixels: tuple[int, int] | None = None
    cuttable = True

    def __init__(
        self,
        run: Callable[[nn.Module, Tensor, Tensor], Tensor],
        module: nn.Module,
        tokenizer: TextTokenizer,
        device: Device,
        *,
        head: Head,
        activation: Activation = "none",
        pooling: str = "mean",
        dense: nn.Module | None = None,
        normalise: bool = False,
        padding: int = 0,
        verdict: Verdict | None = None,
    ) -> None:
        self._device = torch.device(device.computes_on)
        self._accelerated = on_cuda(device, verdict) if device.is_cuda else None
        self._precisions = () if verdict is not None else narrower(device, head)

        def tried(copied: nn.Module, verdict: Verdict) -> SequenceNetwork:
            return SequenceNetwork(
                run,
                copied,
                tokenizer,
                device,
                head=head,
                activation=activation,
                pooling=pooling,
                dense=dense,
                normalise=normalise,
                padding=padding,
                verdict=verdict,
            )

        self._tried = tried
        self._module_runs = run
        self._module = module.eval().requires_grad_(False).to(self._device)
        self._tokenizer = tokenizer
        self._head = head
        self._activation = activation
        self._pooling = pooling
        self._dense = None if dense is None else dense.eval().requires_grad_(False).to(self._device)
        self._normalise = normalise
        self._padding = padding
        self.features_width = 0  # known once it is warm, as the next
        self.values_width = 0

    @property
    def resident_bytes(self) -> int:
        """Its weights, and the tokenizer."""
        weights_bytes = sum(
            tensor.numel() * tensor.element_size()
            for part in (self._module, *([] if self._dense is None else [self._dense]))
            for tensor in (*part.parameters(), *part.buffers())
        )
        return weights_bytes + self._tokenizer.resident_bytes

    @property
    def precision(self) -> str:
        """In which it computes, and how its answers compare with float32's; "" = nothing was to choose."""
        return "" if self._accelerated is None else str(self._accelerated.verdict)

    def read(self) -> Read:
        """What it gives of the texts that precisions are judged by."""
        texts = token_lists(self._tokenizer.vocabulary, min(self._tokenizer.most_tokens or _TRIED, _TRIED))
        with beside(self._accelerated):
            return [(self._of_tokens(texts), self._head != "scores")]

    def warm_up(self, rows: int) -> Floats:
        """What the module gives of `rows` short texts; of one that is as long as may be, too.

        Raises `ModelUnusable` where the layers behind it take other vectors.
        """
        with beside(self._accelerated):
            if self._precisions and self._accelerated is not None:
                self._module, self._accelerated.verdict = narrowed(
                    self._module, self._tried, self._precisions
                )
                self._precisions = ()
            if rows == 1:
                self._answered([b"warm up " * max(1, self._tokenizer.most_tokens)])
            found = self._answered([b"warm up"] * rows)
        if self._head == "features":
            self.features_width = found.shape[1]
        elif self._head == "values":
            self.values_width = found.shape[1]
        return found

    def scores(self, inputs: Inputs, is_cancelled: IsCancelled) -> Floats:
        """[n, classes] probabilities of texts in UTF-8. Raises `DeviceLost`, as the next two."""
        return self._passed(inputs, is_cancelled)

    def values(self, inputs: Inputs, is_cancelled: IsCancelled) -> Floats:
        """[n, values_width] of the same."""
        return self._passed(inputs, is_cancelled)

    def features(self, inputs: Inputs, is_cancelled: IsCancelled) -> Floats:
        """[n, features_width] of the same."""
        return self._passed(inputs, is_cancelled)

    def _passed(self, inputs: Inputs, is_cancelled: IsCancelled) -> Floats:
        def whole(part: Inputs) -> Floats:
            return self._answered([bytes(row) for row in cast("Sequence[bytes]", part)])

        return in_parts_that_fit(whole, inputs, is_cancelled, self._device, torch.cuda.empty_cache)

    def _answered(self, rows: Sequence[bytes]) -> Floats:
        return self._of_tokens([encoding.ids or [self._padding] for encoding in self._tokenizer.encode(rows)])

    @torch.inference_mode()
    def _of_tokens(self, texts: Sequence[Sequence[int]]) -> Floats:
        parts = [(part, self._pass([texts[place] for place in part])) for part in _alike(texts)]
        found = np.empty((len(texts), parts[0][1].shape[1] if parts else 0), np.float32)
        for part, numbers in parts:
            found[part] = numbers
        return found

    def _pass(self, texts: Sequence[Sequence[int]]) -> Floats:
        longest = max(map(len, texts))
        padded = np.zeros((len(texts), 2, longest), np.int64)  # of each text its tokens, and a mask
        padded[:, 0] = self._padding
        for row, text in enumerate(texts):
            padded[row, 0, : len(text)] = text
            padded[row, 1, : len(text)] = 1
        if self._accelerated is not None:
            found = self._accelerated.run(self._given, padded)
        else:
            found = self._given(torch.from_numpy(padded)).numpy()
        return activated(found, self._activation)

    def _given(self, padded: Tensor) -> Tensor:
        """What is given of texts [n, 2, length], before the activation."""
        tokens, mask = padded[:, 0], padded[:, 1]
        found = self._module_runs(self._module, tokens, mask).float()
        if self._head == "features":
            found = pooled(found, mask, self._pooling)
            if self._dense is not None:
                takes = next(self._dense.parameters()).shape[1]
                if takes != found.shape[1]:
                    raise ModelUnusable(
                        f"the model's dense layers take {takes} numbers, and a text has {found.shape[1]}"
                    )
                found = self._dense(found)
            if self._normalise:
                found = torch.nn.functional.normalize(found, dim=1)
        return found


def pooling_of(manifest: Manifest) -> str:
    """What `architecture_options` say, or the mean. Raises `ModelUnusable`."""
    said = str(manifest.architecture_options.get("pooling", "mean"))
    if said not in POOLINGS:
        raise ModelUnusable(
            f"{manifest.directory}: the pooling {said!r} is not known; there are {', '.join(POOLINGS)}"
        )
    return said


def pooled(vectors: Tensor, mask: Tensor, pooling: str) -> Tensor:
    """[n, width] of the tokens' [n, length, width]; mask: int64 [n, length], 1 where there is a token.

    As sentence-transformers' Pooling has them: mean, max, cls (the first token), last.
    """
    if pooling == "cls":
        return vectors[:, 0]
    if pooling == "last":
        return vectors[torch.arange(len(vectors), device=vectors.device), mask.sum(1) - 1]
    there = mask.unsqueeze(-1).to(vectors.dtype)
    if pooling == "max":
        return vectors.masked_fill(there == 0, torch.finfo(vectors.dtype).min).amax(1)
    return (vectors * there).sum(1) / there.sum(1).clamp(min=1e-9)


def _alike(texts: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """The places of texts that run in one pass, the shortest first."""
    part: list[int] = []
    for place in sorted(range(len(texts)), key=lambda place: len(texts[place])):
        length = len(texts[place])
        if part:
            shortest = len(texts[part[0]])
            is_long = length > max(shortest * _LONGER, shortest + _MORE_TOKENS)
            if is_long or length * (len(part) + 1) > _MOST_TOKENS:
                yield part
                part = []
        part.append(place)
    if part:
        yield part
