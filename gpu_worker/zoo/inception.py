"""A small Inception (Szegedy et al. 2015): parallel branches see the picture at several scales."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gpu_worker.zoo.blocks import ConvNormAct, classifier, initialise

__all__ = ["Inception"]


class _Mixed(nn.Module):
    """Four branches of `width` channels each: 1×1; 3×3; two 3×3 (for a 5×5); pooling and 1×1."""

    def __init__(self, channels_in: int, width: int) -> None:
        super().__init__()
        reduced = max(8, width // 2)
        self.point = ConvNormAct(channels_in, width, 1)
        self.middle = nn.Sequential(ConvNormAct(channels_in, reduced, 1), ConvNormAct(reduced, width))
        self.wide = nn.Sequential(
            ConvNormAct(channels_in, reduced, 1), ConvNormAct(reduced, reduced), ConvNormAct(reduced, width)
        )
        self.pooled = nn.Sequential(nn.AvgPool2d(3, stride=1, padding=1), ConvNormAct(channels_in, width, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.point(x), self.middle(x), self.wide(x), self.pooled(x)], dim=1)


class Inception(nn.Module):
    """A stem of stride 2, then four mixed modules with two poolings between; `width` channels a branch."""

    def __init__(self, classes: int, *, width: int = 16, dropout: float = 0.2) -> None:
        super().__init__()
        self.features = nn.Sequential(
            ConvNormAct(3, 2 * width, stride=2),
            nn.MaxPool2d(2),
            _Mixed(2 * width, width),
            _Mixed(4 * width, width),
            nn.MaxPool2d(2),
            _Mixed(4 * width, 2 * width),
            _Mixed(8 * width, 2 * width),
        )
        self.head = classifier(8 * width, classes, dropout)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        """[n, 3, H, W] normalised pixels → [n, classes] logits."""
        y: Tensor = self.head(self.features(x))
        return y
