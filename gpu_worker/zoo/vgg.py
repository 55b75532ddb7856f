"""A small VGG (Simonyan & Zisserman 2015): stacked 3×3 convolutions, halving the picture between stages."""

from __future__ import annotations

from torch import Tensor, nn

from gpu_worker.zoo.blocks import ConvNormAct, classifier, initialise

__all__ = ["Vgg"]


class Vgg(nn.Module):
    """Three stages of two 3×3 convolutions each, `width`, 2·`width`, 4·`width` channels.

    The first convolution has stride 2: at 64×64 pixels it is where a plain VGG spends most of its time.
    """

    def __init__(self, classes: int, *, width: int = 24, dropout: float = 0.2) -> None:
        super().__init__()
        self.features = nn.Sequential(
            ConvNormAct(3, width, stride=2),
            ConvNormAct(width, width),
            nn.MaxPool2d(2),
            ConvNormAct(width, 2 * width),
            ConvNormAct(2 * width, 2 * width),
            nn.MaxPool2d(2),
            ConvNormAct(2 * width, 4 * width),
            ConvNormAct(4 * width, 4 * width),
        )
        self.head = classifier(4 * width, classes, dropout)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        """[n, 3, H, W] normalised pixels → [n, classes] logits."""
        y: Tensor = self.head(self.features(x))
        return y
