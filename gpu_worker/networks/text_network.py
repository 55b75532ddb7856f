"""A torch module of `zoo/text.py`'s kind as a `Network`: texts in, probabilities out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import nn

from gpu_worker.device import Device
from gpu_worker.errors import DeviceLost, ModelUnusable
from gpu_worker.networks.network import Floats, Inputs, IsCancelled, check
from gpu_worker.zoo.text import TextModule

__all__ = ["TextNetwork"]


class TextNetwork:
    """`module` is changed in place (eval). Raises `ModelUnusable` for one that does not take texts."""

    forms = frozenset(("text",))
    pixels: tuple[int, int] | None = None
    cuttable = True

    def __init__(self, module: nn.Module, device: Device) -> None:
        if not hasattr(module, "encode"):
            raise ModelUnusable(f"{type(module).__name__} takes no texts: it has no 'encode'")
        self._device = torch.device(device.name)
        self._module = module.eval().requires_grad_(False).to(self._device)
        self._encoder = cast("TextModule", module)
        self.resident_bytes: int = sum(
            tensor.numel() * tensor.element_size() for tensor in (*module.parameters(), *module.buffers())
        )

    def warm_up(self, rows: int) -> Floats:
        """The scores of `rows` short texts."""
        return self.scores([b"warm up"] * rows, lambda: False)

    @torch.inference_mode()
    def scores(self, inputs: Inputs, is_cancelled: IsCancelled) -> Floats:
        """[n, classes] probabilities of texts in UTF-8. Raises `DeviceLost`."""
        check(is_cancelled)
        rows: Sequence[bytes] = cast("Sequence[bytes]", inputs)
        tokens = self._encoder.encode([bytes(row).decode("utf-8", "replace") for row in rows])
        try:
            logits = self._module(tokens.to(self._device))
            result: Floats = torch.softmax(logits.float(), dim=1).cpu().numpy()
            return result
        except torch.OutOfMemoryError:
            if len(rows) < 2:
                raise
        except torch.AcceleratorError as exc:
            raise DeviceLost(f"{self._device} failed: {exc}") from exc
        torch.cuda.empty_cache()
        half = len(rows) // 2
        return np.concatenate([self.scores(part, is_cancelled) for part in (rows[:half], rows[half:])])
