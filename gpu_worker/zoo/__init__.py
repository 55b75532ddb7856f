"""Named architectures: plain PyTorch modules, small enough to train on a CPU.

A name maps to "module:Class"; the class is called as `Class(classes, **architecture_options)` and returns a
module from [n, 3, H, W] normalised pixels to [n, classes] logits. `hashing` is not among them: it has no
weights and no pixels, and the loader makes it itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["ARCHITECTURES", "HASHING"]

HASHING = "hashing"

ARCHITECTURES: Mapping[str, str] = MappingProxyType(
    {
        "vgg": "gpu_worker.zoo.vgg:Vgg",
        "resnet": "gpu_worker.zoo.resnet:ResNet",
        "squeezenet": "gpu_worker.zoo.squeezenet:SqueezeNet",
        "xception": "gpu_worker.zoo.xception:Xception",
        "inception": "gpu_worker.zoo.inception:Inception",
    }
)
