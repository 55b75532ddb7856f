"""What a `GridDetector` has to pay for what it says of pictures whose boxes are known.

The centres: focal loss against a Gaussian around each (Law & Deng 2018, "CornerNet", §3.2; Zhou et al. 2019).
The sides: 1 − GIoU (Rezatofighi et al. 2019) of the cells near a centre, by how near they are (Liu et al.
2020, "Training-Time-Friendly Network", §3.2, α = β = 0.54).
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from gpu_worker.zoo.grid_detector import STRIDE, boxes_at

__all__ = ["detection_loss"]

_ALPHA: Final = 0.54  # of a box, that its Gaussian reaches over
_LEAST: Final = 0.0111  # of a Gaussian, three σ away from its centre
_SIDES: Final = 5.0  # weight of the sides
_POWER_OF_WRONG, _POWER_OF_FAR = 2, 4


def detection_loss(found: Tensor, boxes: Tensor, labels: Tensor, height: int, width: int) -> Tensor:
    """The mean over the boxes of some pictures, or their sum where there is none.

    found: [n, classes + 4, rows, columns], as the module gives it in training · boxes: float32 [n, m, 4], x0,
    y0, x1, y1 in pixels · labels: int64 [n, m], −1 = no box · height, width: of the pictures.
    """
    classes = found.shape[1] - 4
    logits, corners = found[:, :classes], boxes_at(found[:, classes:], height, width)
    heat, wanted, weights = _targets(boxes, labels, classes, found.shape[2], found.shape[3])
    count = int((labels >= 0).sum()) or 1
    taken = weights > 0
    overlap = _giou(corners.transpose(1, 2)[taken], wanted[taken])
    sides = ((1 - overlap) * weights[taken]).sum()
    return (_focal(logits, heat) + _SIDES * sides) / count


def _focal(logits: Tensor, heat: Tensor) -> Tensor:
    likely = logits.sigmoid()
    is_centre = heat == 1
    right = functional.logsigmoid(logits) * (1 - likely) ** _POWER_OF_WRONG
    wrong = functional.logsigmoid(-logits) * likely**_POWER_OF_WRONG * (1 - heat) ** _POWER_OF_FAR
    return -torch.where(is_centre, right, wrong).sum()


def _targets(
    boxes: Tensor, labels: Tensor, classes: int, rows: int, columns: int
) -> tuple[Tensor, Tensor, Tensor]:
    """What cells should say: heat [n, classes, rows, columns], boxes [n, cells, 4] and their weights."""
    device = boxes.device
    heat = torch.zeros((len(boxes), classes, rows, columns), device=device)
    wanted = torch.zeros((len(boxes), rows * columns, 4), device=device)
    weights = torch.zeros((len(boxes), rows * columns), device=device)
    across = torch.arange(columns, device=device)
    down = torch.arange(rows, device=device)
    for picture in range(len(boxes)):
        is_box = labels[picture] >= 0
        if not bool(is_box.any()):
            continue
        mine, label = boxes[picture][is_box], labels[picture][is_box]
        side = (mine[:, 2:] - mine[:, :2]).clamp(min=1e-3)
        order = (side[:, 0] * side[:, 1]).argsort(descending=True, stable=True)
        mine, label, side = mine[order], label[order], side[order]  # small things lie before large ones
        middle = ((mine[:, :2] + mine[:, 2:]) / 2 / STRIDE).floor().long()
        x, y = middle[:, 0].clamp(0, columns - 1), middle[:, 1].clamp(0, rows - 1)
        sigma = (_ALPHA * side / STRIDE / 6).clamp(min=1e-3)
        gauss = (
            torch.exp(-((down[None] - y[:, None]) ** 2) / (2 * sigma[:, 1:] ** 2))[:, :, None]
            * torch.exp(-((across[None] - x[:, None]) ** 2) / (2 * sigma[:, :1] ** 2))[:, None, :]
        )  # [m, rows, columns], 1 at the centre's cell
        heat[picture].scatter_reduce_(0, label[:, None, None].expand_as(gauss), gauss, "amax")
        flat = gauss.flatten(1)
        reached = torch.where(flat >= _LEAST, torch.arange(len(flat), device=device)[:, None], -1)
        last = reached.max(dim=0).values
        cells = (last >= 0).nonzero().flatten()
        owner = last[cells]
        wanted[picture, cells] = mine[owner]
        near = flat[owner, cells]
        share = torch.zeros(len(mine), device=device).index_add_(0, owner, near)
        weights[picture, cells] = near / share[owner]
    return heat, wanted, weights


def _giou(found: Tensor, wanted: Tensor) -> Tensor:
    """Generalised intersection over union of pairs [k, 4] of boxes: [k], from −1 to 1."""
    low, high = torch.maximum(found[:, :2], wanted[:, :2]), torch.minimum(found[:, 2:], wanted[:, 2:])
    common = (high - low).clamp(min=0).prod(dim=1)
    union = _area(found) + _area(wanted) - common
    around = (torch.maximum(found[:, 2:], wanted[:, 2:]) - torch.minimum(found[:, :2], wanted[:, :2])).prod(
        dim=1
    )
    tiny = 1e-6
    return common / (union + tiny) - (around - union) / (around + tiny)


def _area(boxes: Tensor) -> Tensor:
    return (boxes[:, 2:] - boxes[:, :2]).clamp(min=0).prod(dim=1)
