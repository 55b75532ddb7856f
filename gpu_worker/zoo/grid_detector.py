"""A one-stage detector without anchors, small enough to be learnt on a CPU in minutes.

As TTFNet (Liu et al. 2020, "Training-Time-Friendly Network for Real-Time Object Detection"): each cell of a
grid says how likely it is the centre of a thing of each class, and how far the sides of that thing's box lie
from it. A box is read at each peak among neighbours, as in CenterNet (Zhou et al. 2019, "Objects as Points").
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from gpu_worker.zoo.blocks import ConvNormAct, initialise

__all__ = ["MOST_DETECTED", "STRIDE", "GridDetector", "boxes_at", "peaks"]

STRIDE: Final = 8  # pixels of a cell's side
MOST_DETECTED: Final = 100  # of a picture: as many as COCO counts
_SAME_THING: Final = 0.5  # intersection over union of two boxes of a class
_FARTHEST: Final = 6.0  # log of cells
_PRIOR: Final = -2.19  # logit of 0.1 (Lin et al. 2017, "Focal Loss", §4.1)
_NUMBERS: Final = 6  # of a box: x0, y0, x1, y1, score, class


class GridDetector(nn.Module):
    """width: channels of the first layer; the last has four times as many. blocks: layers of each stage."""

    def __init__(self, classes: int, width: int = 16, blocks: int = 1) -> None:
        super().__init__()
        if classes < 1 or width < 1 or blocks < 1:
            raise ValueError("a detector needs a class, a width and a block")
        self.classes = classes
        fine, coarse = 3 * width, 4 * width
        self.stem = nn.Sequential(
            ConvNormAct(3, width, stride=2), ConvNormAct(width, 3 * width // 2 or 1, stride=2)
        )
        self.fine = nn.Sequential(
            ConvNormAct(3 * width // 2 or 1, fine, stride=2),
            *(ConvNormAct(fine, fine) for _ in range(blocks)),
        )
        self.coarse = nn.Sequential(
            ConvNormAct(fine, coarse, stride=2), *(ConvNormAct(coarse, coarse) for _ in range(blocks + 1))
        )
        self.beside = nn.Conv2d(fine, fine, 1)
        self.below = nn.Conv2d(coarse, fine, 1)
        self.head = ConvNormAct(fine, fine)
        self.out = nn.Conv2d(fine, classes + 4, 1)
        initialise(self)
        nn.init.normal_(self.out.weight, std=0.01)
        bias = torch.tensor([_PRIOR] * classes + [0.7] * 4)  # e^0.7: a box of four cells across
        self.out.bias = nn.Parameter(bias.to(self.out.weight.device))

    def forward(self, x: Tensor) -> Tensor:
        """[n, 3, H, W] normalised pixels → while it is trained, [n, classes + 4, ⌈H/8⌉, ⌈W/8⌉]: logits of the
        centres, and logs of the distances, in cells, to a box's left, upper, right and lower side. Else
        [n, 100 · 6]: of each box x0, y0, x1, y1 in pixels of x, score, number of its class; score 0 for none.
        """
        fine = self.fine(self.stem(x))
        coarse = self.below(self.coarse(fine))
        merged = self.beside(fine) + functional.interpolate(coarse, size=fine.shape[-2:])
        found: Tensor = self.out(self.head(merged))
        if self.training:
            return found
        return peaks(found, self.classes, x.shape[-2], x.shape[-1])


def peaks(found: Tensor, classes: int, height: int, width: int) -> Tensor:
    """The surest boxes of the grid, [n, 100 · 6]; see `GridDetector.forward`.

    Of two boxes of a class that overlap by more than half only the surer one is kept, whether or not that
    one falls to another (Fast NMS; Bolya et al. 2019, "YOLACT", §5): the same layers for every picture.
    """
    likely = found[:, :classes].sigmoid()
    is_peak = functional.max_pool2d(likely, 3, stride=1, padding=1) == likely
    rows, columns = found.shape[2], found.shape[3]
    cells = rows * columns
    flat = (likely * is_peak.to(likely.dtype)).flatten(1)
    scores, places = flat.topk(min(MOST_DETECTED, classes * cells), dim=1)
    label = torch.div(places, cells, rounding_mode="floor")
    boxes = boxes_at(found[:, classes:], height, width)  # [n, 4, cells]
    at = (places - label * cells)[:, None].expand(-1, 4, -1)
    corners = boxes.gather(2, at).transpose(1, 2)  # [n, k, 4]
    kept = scores * (1 - _is_covered(corners, label).to(scores.dtype))
    numbers = torch.cat([corners, kept[:, :, None], label[:, :, None].to(scores.dtype)], dim=2)
    missing = MOST_DETECTED - numbers.shape[1]
    return functional.pad(numbers, (0, 0, 0, missing)).reshape(-1, MOST_DETECTED * _NUMBERS)


def boxes_at(sides: Tensor, height: int, width: int) -> Tensor:
    """Corners in pixels, within the picture, of each cell's box: [n, 4, rows · columns]. sides: [n, 4, …]."""
    rows, columns = sides.shape[2], sides.shape[3]
    across = (torch.arange(columns, device=sides.device, dtype=sides.dtype) + 0.5) * STRIDE
    down = (torch.arange(rows, device=sides.device, dtype=sides.dtype) + 0.5) * STRIDE
    far = sides.clamp(max=_FARTHEST).exp() * STRIDE
    left, upper, right, lower = far.unbind(1)
    x, y = across[None, None, :], down[None, :, None]
    corners = torch.stack(
        [
            (x - left).clamp(0, width),
            (y - upper).clamp(0, height),
            (x + right).clamp(0, width),
            (y + lower).clamp(0, height),
        ],
        dim=1,
    )
    return corners.flatten(2)


def _is_covered(corners: Tensor, label: Tensor) -> Tensor:
    """Of boxes [n, k, 4], the surest first, whether a surer one of its label lies where it does: [n, k]."""
    low = torch.maximum(corners[:, :, None, :2], corners[:, None, :, :2])
    high = torch.minimum(corners[:, :, None, 2:], corners[:, None, :, 2:])
    common = (high - low).clamp(min=0).prod(dim=3)
    area = (corners[:, :, 2:] - corners[:, :, :2]).prod(dim=2)
    union = area[:, :, None] + area[:, None, :] - common
    is_one = (common > _SAME_THING * union) & (label[:, :, None] == label[:, None, :])
    count = corners.shape[1]
    order = torch.arange(count, device=corners.device)
    is_surer = order[:, None] < order[None, :]  # the first is the surer
    return (is_one & is_surer[None]).any(dim=1)
