"""A small convolutional network for small pictures: digits, signs; seconds where others take minutes.

LeCun et al. 1998, "Gradient-based learning applied to document recognition", with batch normalisation (Ioffe
& Szegedy 2015) and 3×3 convolutions as VGG's.
"""

from __future__ import annotations

from torch import Tensor, nn

from gpu_worker.zoo.blocks import ConvNormAct, initialise

__all__ = ["SmallCnn"]


class SmallCnn(nn.Module):
    """A first convolution of stride 4, then three stages of `width`, 2·`width`, 4·`width` channels.

    What it saw is averaged over quarters of the picture, not over all of it: where something is, tells digits
    and signs apart.
    """

    def __init__(self, classes: int, *, width: int = 24, dropout: float = 0.2) -> None:
        super().__init__()
        self.features = nn.Sequential(
            ConvNormAct(3, width, 7, stride=4),
            ConvNormAct(width, width),
            nn.MaxPool2d(2),
            ConvNormAct(width, 2 * width),
            ConvNormAct(2 * width, 2 * width),
            nn.MaxPool2d(2),
            ConvNormAct(2 * width, 4 * width),
        )
        self.head = nn.Sequential(
            nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(dropout), nn.Linear(16 * width, classes)
        )
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        """[n, 3, H, W] normalised pixels → [n, classes] logits."""
        y: Tensor = self.head(self.features(x))
        return y
