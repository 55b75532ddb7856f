"""A small residual network (He et al. 2016): blocks that add to what they were given."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gpu_worker.zoo.blocks import ConvNormAct, classifier, initialise

__all__ = ["ResNet"]


class _Block(nn.Module):
    """Two 3×3 convolutions beside a shortcut, which is projected where the shape changes."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.first = ConvNormAct(channels_in, channels_out, stride=stride)
        self.second = ConvNormAct(channels_out, channels_out, act=False)
        same = channels_in == channels_out and stride == 1
        self.shortcut: nn.Module = (
            nn.Identity() if same else ConvNormAct(channels_in, channels_out, 1, stride=stride, act=False)
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu_(self.second(self.first(x)) + self.shortcut(x))


class ResNet(nn.Module):
    """A stem of stride 2, then three stages of `blocks` residual blocks: `width`, 2·, 4·`width` channels."""

    def __init__(self, classes: int, *, width: int = 16, blocks: int = 1, dropout: float = 0.1) -> None:
        super().__init__()
        stages: list[nn.Module] = [ConvNormAct(3, width, stride=2)]
        channels = width
        for stage in range(3):
            for block in range(blocks):
                stride = 2 if block == 0 else 1
                stages.append(_Block(channels, width << stage, stride))
                channels = width << stage
        self.features = nn.Sequential(*stages)
        self.head = classifier(channels, classes, dropout)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        """[n, 3, H, W] normalised pixels → [n, classes] logits."""
        y: Tensor = self.head(self.features(x))
        return y
