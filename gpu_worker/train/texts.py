"""A split's texts, as the tokens that one architecture makes of them. Knows no SQL and no sampling."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_worker.train.spec import TrainSpec

__all__ = ["Texts"]


@dataclass(frozen=True, slots=True, eq=False)
class Texts:
    """tokens: int32 [n, tokens]; labels: int64 [n], indices into `classes`."""

    tokens: Tensor
    labels: Tensor
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)

    def varied(
        self, rows: Tensor, spec: TrainSpec, generator: torch.Generator, device: torch.device
    ) -> Tensor:
        """See `loop.Lessons.varied`: the tokens, a share of `spec.forget` of them left out."""
        tokens = self.tokens[rows]
        if spec.forget > 0:
            kept = torch.rand(tokens.shape, generator=generator) >= spec.forget
            tokens = tokens * kept
        return tokens.to(device)

    def plain(self, start: int, end: int, spec: TrainSpec, device: torch.device) -> Tensor:
        """See `loop.Lessons.plain`."""
        return self.tokens[start:end].to(device)

    def content(self) -> bytes:
        """See `loop.Lessons.content`."""
        return self.tokens.numpy().tobytes()
