"""A small Xception (Chollet 2017): residual blocks of depthwise separable convolutions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gpu_worker.zoo.blocks import ConvNormAct, SeparableConv, classifier, initialise

__all__ = ["Xception"]


class _Block(nn.Module):
    """ReLU → separable, twice, beside a shortcut; where channels grow the picture is halved."""

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__()
        grows = channels_in != channels_out
        self.first = SeparableConv(channels_in, channels_out)
        self.second = SeparableConv(channels_out, channels_out)
        self.pool: nn.Module = nn.MaxPool2d(3, stride=2, padding=1) if grows else nn.Identity()
        self.shortcut: nn.Module = (
            ConvNormAct(channels_in, channels_out, 1, stride=2, act=False) if grows else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(torch.relu(x))
        y = self.second(torch.relu_(y))
        result: Tensor = self.pool(y) + self.shortcut(x)
        return result


class Xception(nn.Module):
    """A stem of stride 2, two blocks that grow to 4·`width` channels, `middle` blocks of that shape."""

    def __init__(self, classes: int, *, width: int = 32, middle: int = 2, dropout: float = 0.1) -> None:
        super().__init__()
        self.features = nn.Sequential(
            ConvNormAct(3, width, stride=2),
            _Block(width, 2 * width),
            _Block(2 * width, 4 * width),
            *(_Block(4 * width, 4 * width) for _ in range(middle)),
            nn.ReLU(),
        )
        self.head = classifier(4 * width, classes, dropout)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        """[n, 3, H, W] normalised pixels → [n, classes] logits."""
        y: Tensor = self.head(self.features(x))
        return y
