"""A small SqueezeNet (Iandola et al. 2016): few parameters by squeezing channels before 3×3 convolutions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gpu_worker.zoo.blocks import ConvNormAct, classifier, initialise

__all__ = ["SqueezeNet"]


class _Fire(nn.Module):
    """Squeeze by 1×1 to a quarter of `half`, then expand by 1×1 and 3×3 to `half` channels each."""

    def __init__(self, channels_in: int, half: int) -> None:
        super().__init__()
        self.squeeze = ConvNormAct(channels_in, max(8, half // 4), 1)
        self.expand_1 = ConvNormAct(max(8, half // 4), half, 1)
        self.expand_3 = ConvNormAct(max(8, half // 4), half, 3)

    def forward(self, x: Tensor) -> Tensor:
        squeezed = self.squeeze(x)
        return torch.cat([self.expand_1(squeezed), self.expand_3(squeezed)], dim=1)


class SqueezeNet(nn.Module):
    """A stem of stride 2, then six fire modules with two poolings between; `width` channels in the stem."""

    def __init__(self, classes: int, *, width: int = 32, dropout: float = 0.2) -> None:
        super().__init__()
        self.features = nn.Sequential(
            ConvNormAct(3, width, stride=2),
            nn.MaxPool2d(2),
            _Fire(width, width),
            _Fire(2 * width, width),
            nn.MaxPool2d(2),
            _Fire(2 * width, 2 * width),
            _Fire(4 * width, 2 * width),
            _Fire(4 * width, 3 * width),
            _Fire(6 * width, 3 * width),
        )
        self.head = classifier(6 * width, classes, dropout)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        """[n, 3, H, W] normalised pixels → [n, classes] logits."""
        y: Tensor = self.head(self.features(x))
        return y
