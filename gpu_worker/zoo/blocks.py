"""The pieces that the zoo's convolutional networks share."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

__all__ = ["ConvNormAct", "SeparableConv", "classifier", "fold_batch_norms", "initialise"]


class ConvNormAct(nn.Module):
    """Convolution without bias → batch normalisation → ReLU (unless `act` is False); "same" padding."""

    def __init__(
        self,
        channels_in: int,
        channels_out: int,
        kernel: int | tuple[int, int] = 3,
        *,
        stride: int = 1,
        act: bool = True,
    ) -> None:
        super().__init__()
        sides = (kernel, kernel) if isinstance(kernel, int) else kernel
        padding = (sides[0] // 2, sides[1] // 2)
        self.conv = nn.Conv2d(channels_in, channels_out, sides, stride=stride, padding=padding, bias=False)
        self.norm: nn.Module = nn.BatchNorm2d(channels_out)
        self.act: nn.Module = nn.ReLU(inplace=True) if act else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """[n, channels_in, h, w] → [n, channels_out, ⌈h/stride⌉, ⌈w/stride⌉]."""
        y: Tensor = self.act(self.norm(self.conv(x)))
        return y


class SeparableConv(nn.Module):
    """Depthwise 3×3, then pointwise 1×1 convolution, batch normalisation (Xception, Chollet 2017)."""

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels_in, channels_in, 3, padding=1, groups=channels_in, bias=False)
        self.pointwise = ConvNormAct(channels_in, channels_out, 1, act=False)

    def forward(self, x: Tensor) -> Tensor:
        """[n, channels_in, h, w] → [n, channels_out, h, w]."""
        y: Tensor = self.pointwise(self.depthwise(x))
        return y


def classifier(channels: int, classes: int, dropout: float) -> nn.Sequential:
    """[n, channels, h, w] → global average → dropout → [n, classes] logits."""
    return nn.Sequential(
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(dropout), nn.Linear(channels, classes)
    )


def initialise(module: nn.Module) -> None:
    """He initialisation of every convolution, for the ReLU that follows it (He et al. 2015)."""
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")


def fold_batch_norms(module: nn.Module) -> None:
    """Multiplies every batch normalisation into the convolution before it; for inference only.

    It spares one pass over every activation; outputs differ by rounding.
    """
    for part in module.modules():
        if isinstance(part, ConvNormAct) and isinstance(part.norm, nn.BatchNorm2d):
            part.conv = fuse_conv_bn_eval(part.conv.eval(), part.norm.eval())
            part.norm = nn.Identity()
