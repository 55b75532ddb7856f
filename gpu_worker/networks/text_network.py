"""A torch module of `zoo/text.py`'s kind as a `Network`: texts in, probabilities out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from gpu_worker.device import Device
from gpu_worker.errors import ModelUnusable
from gpu_worker.networks.accelerated import beside, on_cuda
from gpu_worker.networks.moved import Weights
from gpu_worker.networks.network import Floats, Inputs, IsCancelled
from gpu_worker.networks.parts import in_parts_that_fit
from gpu_worker.networks.torch_network import ACTIVATE
from gpu_worker.tasks.task import Activation
from gpu_worker.zoo.text import TextModule

__all__ = ["TextNetwork"]


class TextNetwork:
    """`module` is changed in place (eval). Raises `ModelUnusable` for one that does not take texts.

    activation: how its last layer is read: scores, or values where that is "none".
    """

    forms = frozenset(("text",))
    pixels: tuple[int, int] | None = None
    cuttable = True

    def __init__(self, module: nn.Module, device: Device, activation: Activation = "softmax") -> None:
        if not hasattr(module, "encode"):
            raise ModelUnusable(f"{type(module).__name__} takes no texts: it has no 'encode'")
        self._device = torch.device(device.computes_on)
        self._module = module.eval().requires_grad_(False).to(self._device)
        self._accelerated = on_cuda(device) if device.is_cuda else None
        self._activate = ACTIVATE[activation]
        self._gives_values = activation == "none"
        self.values_width = 0  # known once it is warm
        self._encoder = cast("TextModule", module)
        self._weight_bytes: int = sum(
            tensor.numel() * tensor.element_size() for tensor in (*module.parameters(), *module.buffers())
        )
        self.weights: Weights | None = None

    @property
    def resident_bytes(self) -> int:
        """Its weights."""
        return self._weight_bytes if self.weights is None else self.weights.nbytes

    def warm_up(self, rows: int) -> Floats:
        """The scores, or values, of `rows` short texts."""
        with beside(self._accelerated):
            found = self.scores([b"warm up"] * rows, lambda: False)
        self.values_width = found.shape[1] if self._gives_values else 0
        return found

    def _answers(self, tokens: Tensor) -> Tensor:
        return self._activate(self._module(tokens).float())

    def values(self, inputs: Inputs, is_cancelled: IsCancelled) -> Floats:
        """[n, values_width] of texts in UTF-8. Raises `DeviceLost`."""
        return self.scores(inputs, is_cancelled)

    @torch.inference_mode()
    def scores(self, inputs: Inputs, is_cancelled: IsCancelled) -> Floats:
        """[n, classes] probabilities of texts in UTF-8. Raises `DeviceLost`."""

        def whole(part: Inputs) -> Floats:
            rows = cast("Sequence[bytes]", part)
            tokens = self._encoder.encode([bytes(row).decode("utf-8", "replace") for row in rows])
            if self._accelerated is not None:
                return self._accelerated.run(self._answers, tokens.numpy())
            result: Floats = self._answers(tokens.to(self._device)).cpu().numpy()
            return result

        return in_parts_that_fit(whole, inputs, is_cancelled, self._device, torch.cuda.empty_cache)
