"""Detectors of transformers as a `Network`: a fixed number of queries, each with its classes and one box.

DETR and YOLOS (Carion et al., 2020; Fang et al., 2021) have a class more, of no object, and a softmax over
all; RT-DETR, Conditional and Deformable DETR have none, and a sigmoid for each. By the width of their answers
the two are told apart. Of each query the likeliest class is answered; transformers' own post-processing of
the second kind may answer a query several times.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gpu_worker.device import Device
from gpu_worker.errors import ModelUnusable
from gpu_worker.model_files.manifest import Manifest
from gpu_worker.networks.box_layouts import BoxRules, boxes_from
from gpu_worker.networks.network import Floats, Inputs, IsCancelled, sigmoid
from gpu_worker.networks.precision import Verdict
from gpu_worker.networks.torch_network import TorchNetwork

__all__ = ["QueryDetector"]

_BOX = 4


class QueryDetector:
    """`module(pixel_values=…)` gives `logits` [n, k, classes (+ 1)], `pred_boxes` [n, k, 4] from 0 to 1."""

    forms = frozenset(("path", "image", "tensor"))
    cuttable = True

    def __init__(self, module: nn.Module, manifest: Manifest, device: Device) -> None:
        self.pixels = (manifest.input.height, manifest.input.width)
        self._directory = manifest.directory
        self._classes = len(manifest.classes)
        said = manifest.outputs
        self._rules = BoxRules(self.pixels, said.threshold, said.overlap)
        self._logits = 0  # of a query; known once it is warm
        self._queries = _Queries(module)
        # As features, which are taken as they come, but in float32: they are places and classes at once.
        self._network = TorchNetwork(
            self._queries,
            manifest.input,
            device,
            traceable=False,
            reads="features",
            activation="none",
            verdict=Verdict("float32"),
        )
        self.boxes_width = 0

    @property
    def resident_bytes(self) -> int:
        """See `TorchNetwork`."""
        return self._network.resident_bytes

    def warm_up(self, rows: int) -> Floats:
        """The boxes in black pictures. Raises `ModelUnusable` where the classes are none of the module's."""
        self._network.warm_up(rows)
        self._logits = self._queries.logits
        if self._logits not in (self._classes, self._classes + 1):
            raise ModelUnusable(
                f"the model in {self._directory} tells {self._logits} classes apart, one of no object "
                f"perhaps among them, and model.json names {self._classes}"
            )
        found = self.boxes(np.zeros((rows, *self.pixels, 3), np.uint8), lambda: False)
        self.boxes_width = found.shape[1]
        return found

    def scores(self, inputs: Inputs, is_cancelled: IsCancelled) -> Floats:
        """It has no scores of a picture: nobody asks a detector for them."""
        raise ModelUnusable(f"the model in {self._directory} says what is where, and no class of a picture")

    def boxes(self, inputs: Inputs, is_cancelled: IsCancelled) -> Floats:
        """[n, boxes_width], in pixels of the input."""
        flat = self._network.features(inputs, is_cancelled)
        found = flat.reshape(len(flat), -1, self._logits + _BOX)
        logits, boxes = found[:, :, : self._logits], found[:, :, self._logits :]
        if self._logits > self._classes:
            return boxes_from("detr", [logits, boxes], self._rules)
        height, width = self.pixels
        whole = boxes * np.array([width, height, width, height], np.float32)
        lines = np.concatenate([whole, sigmoid(logits)], axis=2)
        return boxes_from("yolo", [lines.transpose(0, 2, 1)], self._rules)


class _Queries(nn.Module):
    """Pixels [n, 3, H, W] → [n, k · (logits + 4)]. logits: how many a query has, after the first pass."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.logits = 0

    def forward(self, pixels: Tensor) -> Tensor:
        found: Any = self.module(pixel_values=pixels)
        self.logits = int(found.logits.shape[2])
        return torch.cat([found.logits, found.pred_boxes], dim=2).flatten(1)
