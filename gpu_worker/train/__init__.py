"""Training: a server's trials, an epoch at a time (`trainer`, `trial`, `learners`); or a folder of images.

    examples.read_examples → images.decode_examples → loop.train → saving.save_model

The second is `python -m gpu_worker.train`; both train networks by the same `loop`.
"""

from __future__ import annotations

from gpu_worker.train.augment import Augment
from gpu_worker.train.examples import Example, read_examples
from gpu_worker.train.images import ImageExamples, decode_examples
from gpu_worker.train.loop import Epoch, Trained, TrainingStopped, accuracy_of, train
from gpu_worker.train.spec import TrainSpec

__all__ = [
    "Augment",
    "Epoch",
    "Example",
    "ImageExamples",
    "TrainSpec",
    "Trained",
    "TrainingStopped",
    "accuracy_of",
    "decode_examples",
    "read_examples",
    "train",
]
