"""A detector of the zoo that learns from pictures with boxes: `NetworkLearner`, with a loss of its own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from gpu_worker.errors import BadRequest
from gpu_worker.networks.network import Floats
from gpu_worker.tasks.average_precision import Boxed
from gpu_worker.train.boxed_images import BoxedImages
from gpu_worker.train.detection_loss import detection_loss
from gpu_worker.train.images import normalised_pixels
from gpu_worker.train.learner import Evaluation, Objective, row_time
from gpu_worker.train.loop import begin, steps_of_epoch
from gpu_worker.train.network_learner import NetworkLearner, warm
from gpu_worker.train.spec import TrainSpec

__all__ = ["DetectorLearner", "detector_evaluated"]

_EVALUATION_ROWS = 64


class DetectorLearner(NetworkLearner):
    """See `NetworkLearner`. Raises as it does."""

    def __init__(
        self,
        spec: TrainSpec,
        objective: Objective,
        examples: BoxedImages,
        validation: BoxedImages,
        *,
        skipped: int,
        start: str,
        start_epoch: int,
        device: str,
    ) -> None:
        for what, rows in (("training", examples), ("validation", validation)):
            if not bool((rows.labels >= 0).any()):
                raise ValueError(f"the {what} pictures have no box to find; the dataset needs more that have")
        self._boxed = examples
        self._validated = validation
        self._begin(
            spec,
            objective,
            len(examples.classes),
            skipped=skipped,
            start=start,
            start_epoch=start_epoch,
            device=device,
        )

    def _teach(self, should_stop: Callable[[], bool]) -> float:
        examples, spec, module = self._boxed, self._spec, self._module
        height, width = examples.pixels.shape[1:3]
        device = next(module.parameters()).device

        def loss_of(rows: Tensor, generator: torch.Generator) -> Tensor:
            pixels, boxes, labels = spec.augment.apply_with_boxes(
                examples.pixels[rows], examples.boxes[rows], examples.labels[rows], generator
            )
            found = module(normalised_pixels(pixels.to(device), spec.input))
            return detection_loss(found, boxes.to(device), labels.to(device), height, width)

        return steps_of_epoch(spec, self.epoch, module, self._optimiser, len(examples), loss_of, should_stop)

    def _answers(self) -> Floats:
        return _boxes_of(self._module, self._validated, self._spec, slice(0, len(self._validated)))

    def _targets(self) -> Boxed:
        return self._validated.targets()


def detector_evaluated(spec: TrainSpec, examples: BoxedImages, start: str, *, device: str) -> Evaluation:
    """What the checkpoint `start` answers. Raises `BadRequest` for one of another architecture."""
    module, _ = begin(spec, len(examples.classes), device=device)
    if warm(module, start):
        raise BadRequest(f"the checkpoint {start} is not of {spec.architecture} with these knobs")
    found = _boxes_of(module, examples, spec, slice(0, len(examples)))
    row_s = row_time(lambda part: _boxes_of(module, examples, spec, part), len(examples))
    return Evaluation(found, examples.targets(), row_s)


@torch.inference_mode()
def _boxes_of(module: nn.Module, examples: BoxedImages, spec: TrainSpec, rows: slice) -> Floats:
    """float32 [n, k · 6] of the rows, some at a time; leaves the module in eval mode."""
    module.eval()
    device = next(module.parameters()).device
    end = min(rows.stop, len(examples))
    parts = [
        module(
            normalised_pixels(
                examples.pixels[start : min(start + _EVALUATION_ROWS, end)].to(device).float(), spec.input
            )
        )
        for start in range(rows.start, end, _EVALUATION_ROWS)
    ]
    found: Floats = torch.cat(parts).cpu().numpy().astype(np.float32)
    return found
