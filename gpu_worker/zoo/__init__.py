"""Named architectures: plain PyTorch modules, small enough to train on a CPU.

A name maps to "module:Class"; the class is called as `Class(classes, **architecture_options)` and returns a
module to [n, classes] logits: from [n, 3, H, W] normalised pixels, or, for the text models, from what its own
`encode` makes of texts (`zoo/text.py`). `hashing` is not among them: it has no weights and no pixels, and the
loader makes it itself. Nor are the tabular models, which are scikit-learn's and served as ONNX.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = [
    "ARCHITECTURES",
    "DETECTORS",
    "HASHING",
    "LINEAR_TEXT",
    "MOST_OF_OPTIONS",
    "TABULAR",
    "TEXT_ARCHITECTURES",
]

HASHING = "hashing"

ARCHITECTURES: Mapping[str, str] = MappingProxyType(
    {
        "small_cnn": "gpu_worker.zoo.small_cnn:SmallCnn",
        "vgg": "gpu_worker.zoo.vgg:Vgg",
        "resnet": "gpu_worker.zoo.resnet:ResNet",
        "squeezenet": "gpu_worker.zoo.squeezenet:SqueezeNet",
        "xception": "gpu_worker.zoo.xception:Xception",
        "inception": "gpu_worker.zoo.inception:Inception",
        "efficientnet_lite0": "gpu_worker.zoo.efficientnet_lite:EfficientNetLite0",
    }
)
# To [n, k · 6] boxes instead of logits: what `GridDetector.forward` says.
DETECTORS: Mapping[str, str] = MappingProxyType(
    {"grid_detector": "gpu_worker.zoo.grid_detector:GridDetector"}
)
IMPORTED = frozenset(("efficientnet_lite0",))
"""Those of `ARCHITECTURES` that are there for weights made elsewhere, and too large to be trained here."""

TEXT_ARCHITECTURES: Mapping[str, str] = MappingProxyType(
    {
        "tfidf_linear": "gpu_worker.zoo.tfidf_linear:TfidfLinear",
        "fasttext": "gpu_worker.zoo.fasttext:FastText",
        "temporal_cnn": "gpu_worker.zoo.temporal_cnn:TemporalCnn",
        "character_rnn": "gpu_worker.zoo.character_rnn:CharacterRnn",
    }
)
LINEAR_TEXT = "tfidf_linear"  # learnt by scikit-learn, not by gradient descent
TABULAR = frozenset(
    (
        *("logistic_regression", "ridge", "hist_gradient_boosting", "gradient_boosting", "random_forest"),
        *("lightgbm", "xgboost"),
    )
)

# The largest values of their options. A model.json comes from whoever may register a model.
MOST_OF_OPTIONS: Mapping[str, int] = MappingProxyType(
    {
        "width": 4096,
        "blocks": 64,
        "middle": 64,
        "length": 16_384,
        "buckets": 1 << 22,
        "embedding": 4096,
        "subword": 32,
        "dropout": 1,
        "words": 2,
        "characters": 8,
    }
)
