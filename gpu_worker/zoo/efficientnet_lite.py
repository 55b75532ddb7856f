"""EfficientNet-Lite0: EfficientNet-B0 (Tan and Le, 2019, table 1) without squeeze-and-excitation, with ReLU6.

Trained in TensorFlow, so that its padding is TensorFlow's: of an odd number of lines the larger half comes
last. Weights of it can be imported; it is not among those that are trained here.
"""

from __future__ import annotations

import re
from typing import Final

from torch import Tensor, nn
from torch.nn.functional import pad

from gpu_worker.zoo.blocks import ConvNormAct

__all__ = ["INPUT", "EfficientNetLite0", "own_name"]

# What its authors' evaluation does to a picture (tensorflow/tpu, efficientnet/lite and preprocessing.py).
INPUT: Final = {
    "form": "path",
    "height": 224,
    "width": 224,
    "mean": [127 / 255] * 3,
    "std": [128 / 255] * 3,
    "preprocess": {"resize": "short_side", "size": 256, "interpolation": "bicubic"},
}

_EPSILON: Final = 1e-3  # of its batch normalisation
# Repetitions, kernel, stride of the first, expansion, channels out.
_STAGES: Final = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
# Names in checkpoints of lukemelas/EfficientNet-PyTorch, from which this one's weights came, → ours.
_NAMES: Final = (
    (r"^_conv_stem\.", "stem.conv."),
    (r"^_bn0\.", "stem.norm."),
    (r"^_conv_head\.", "top.conv."),
    (r"^_bn1\.", "top.norm."),
    (r"^_fc\.", "head.2."),
    (r"^_blocks\.(\d+)\._expand_conv\.", r"blocks.\1.expand.conv."),
    (r"^_blocks\.(\d+)\._bn0\.", r"blocks.\1.expand.norm."),
    (r"^_blocks\.(\d+)\._depthwise_conv\.", r"blocks.\1.depthwise.conv."),
    (r"^_blocks\.(\d+)\._bn1\.", r"blocks.\1.depthwise.norm."),
    (r"^_blocks\.(\d+)\._project_conv\.", r"blocks.\1.project.conv."),
    (r"^_blocks\.(\d+)\._bn2\.", r"blocks.\1.project.norm."),
)


def own_name(name: str) -> str:
    """A tensor's name here, of the one that it has in a checkpoint; names that are ours stay."""
    for theirs, ours in _NAMES:
        found, changed = re.subn(theirs, ours, name)
        if changed:
            return found
    return name


class _Conv(ConvNormAct):
    """Convolution with TensorFlow's "same" padding → batch normalisation → ReLU6 (unless `act` is False)."""

    def __init__(
        self, channels_in: int, channels_out: int, kernel: int, *, stride: int = 1, groups: int = 1, act: bool
    ) -> None:
        super().__init__(channels_in, channels_out, kernel, stride=stride, act=act)
        self.conv = nn.Conv2d(channels_in, channels_out, kernel, stride=stride, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(channels_out, eps=_EPSILON)
        self.act = nn.ReLU6(inplace=True) if act else nn.Identity()
        self._kernel, self._stride = kernel, stride

    def forward(self, x: Tensor) -> Tensor:
        """[n, channels_in, h, w] → [n, channels_out, ⌈h/stride⌉, ⌈w/stride⌉]."""
        down, across = (
            max((-(-side // self._stride) - 1) * self._stride + self._kernel - side, 0)
            for side in x.shape[2:]
        )
        if down or across:
            x = pad(x, (across // 2, across - across // 2, down // 2, down - down // 2))
        return super().forward(x)


class _Block(nn.Module):
    """Inverted residual (Sandler et al., 2018): widen, depthwise convolution, narrow; added to its input."""

    def __init__(self, channels_in: int, channels_out: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = channels_in * expansion
        self.expand: nn.Module = _Conv(channels_in, wide, 1, act=True) if expansion > 1 else nn.Identity()
        self.depthwise = _Conv(wide, wide, kernel, stride=stride, groups=wide, act=True)
        self.project = _Conv(wide, channels_out, 1, act=False)
        self._adds = stride == 1 and channels_in == channels_out

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.project(self.depthwise(self.expand(x)))
        return x + y if self._adds else y


class EfficientNetLite0(nn.Module):
    """A stem of stride 2, sixteen blocks in seven stages, 1,280 features; `width` channels in the stem.

    The others are in proportion; checkpoints are of 32.
    """

    def __init__(self, classes: int, *, width: int = 32) -> None:
        super().__init__()
        self.stem = _Conv(3, width, 3, stride=2, act=True)
        blocks = []
        channels = width
        for repetitions, kernel, stride, expansion, channels_of_32 in _STAGES:
            channels_out = max(1, channels_of_32 * width // 32)
            for repetition in range(repetitions):
                blocks.append(
                    _Block(channels, channels_out, kernel, stride if repetition == 0 else 1, expansion)
                )
                channels = channels_out
        self.blocks = nn.Sequential(*blocks)
        features = 40 * width
        self.top = _Conv(channels, features, 1, act=True)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(features, classes))

    def forward(self, x: Tensor) -> Tensor:
        """[n, 3, H, W] normalised pixels → [n, classes] logits."""
        y: Tensor = self.head(self.top(self.blocks(self.stem(x))))
        return y
