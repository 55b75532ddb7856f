"""Variations of training images, drawn anew in every epoch. Works on whole batches of uint8 pixels.

Boxes in a picture move with it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Augment"]

_LEAST_SIDE = 2.0  # pixels of a box that is left in the picture
_LEAST_SHARE = 0.3  # and how much of it


@dataclass(frozen=True, slots=True)
class _Moved:
    """How pictures were varied: [n, 1] each. shares of the side; mirrored: None = none of them."""

    zoom: Tensor
    down: Tensor
    across: Tensor
    mirrored: Tensor | None


@dataclass(frozen=True, slots=True)
class Augment:
    """flip: mirror half of the images. shift, zoom: at most this share of the side. colour: at most this
    share of gain for each channel, and of brightness for all.
    """

    flip: bool = True
    shift: float = 0.08
    zoom: float = 0.1
    colour: float = 0.15

    def __post_init__(self) -> None:
        if not all(0 <= share < 1 for share in (self.shift, self.zoom, self.colour)):
            raise ValueError("shift, zoom and colour are shares, from 0 to below 1")

    def apply(self, pixels: Tensor, generator: torch.Generator) -> Tensor:
        """uint8 [n, H, W, 3] → float32 [n, H, W, 3] in 0…255, each image varied on its own."""
        return self._varied(pixels, self._moved(len(pixels), generator), generator)

    def apply_with_boxes(
        self, pixels: Tensor, boxes: Tensor, labels: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """As `apply`, and boxes [n, m, 4] (x0, y0, x1, y1 in pixels) where their things are then.

        A box of which too little is left in the picture is none: its label [n, m] is −1.
        """
        moved = self._moved(len(pixels), generator)
        varied = self._varied(pixels, moved, generator)
        height, width = pixels.shape[1:3]
        side = torch.tensor([width, height, width, height], dtype=boxes.dtype)
        shift = torch.cat([moved.across, moved.down] * 2, dim=1)[:, None, :]
        source = boxes
        if moved.mirrored is not None:
            mirrored = boxes[..., [2, 1, 0, 3]] * torch.tensor([-1.0, 1.0, -1.0, 1.0])
            mirrored = mirrored + torch.tensor([float(width), 0.0, float(width), 0.0])
            source = torch.where(moved.mirrored[:, :, None], mirrored, boxes)
        there = (source - side / 2 - shift * side) / moved.zoom[:, :, None] + side / 2
        left = torch.minimum(there.clamp(min=0), side)
        sides, whole = left[..., 2:] - left[..., :2], there[..., 2:] - there[..., :2]
        is_left = (sides >= _LEAST_SIDE).all(dim=2) & (sides.prod(dim=2) >= _LEAST_SHARE * whole.prod(dim=2))
        return varied, left, torch.where(is_left, labels, -1)

    def _moved(self, n: int, generator: torch.Generator) -> _Moved:
        zoom = 1 + self._draw((n, 1), self.zoom, generator)
        down = self._draw((n, 1), self.shift, generator)
        across = self._draw((n, 1), self.shift, generator)
        mirrored = torch.rand((n, 1), generator=generator) < 0.5 if self.flip else None
        return _Moved(zoom, down, across, mirrored)

    def _varied(self, pixels: Tensor, moved: _Moved, generator: torch.Generator) -> Tensor:
        n, height, width, _ = pixels.shape
        rows = self._places(height, moved.zoom, moved.down)
        columns = self._places(width, moved.zoom, moved.across)
        if moved.mirrored is not None:
            columns = torch.where(moved.mirrored, width - 1 - columns, columns)
        # One gather does flip, shift and zoom together; edges are continued.
        image = torch.arange(n)[:, None, None]
        varied = pixels[image, rows[:, :, None], columns[:, None, :]].float()
        gain = (1 + self._draw((n, 1, 1, 1), self.colour, generator)) * (
            1 + self._draw((n, 1, 1, 3), self.colour, generator)
        )
        return varied.mul_(gain).clamp_(0, 255)

    @staticmethod
    def _draw(shape: tuple[int, ...], most: float, generator: torch.Generator) -> Tensor:
        return (torch.rand(shape, generator=generator) * 2 - 1) * most

    @staticmethod
    def _places(side: int, zoom: Tensor, shift: Tensor) -> Tensor:
        """For each image, the source of each of `side` rows or columns: [n, side]."""
        middle = (side - 1) / 2
        places = (torch.arange(side) - middle) * zoom + middle + shift * side
        return places.round().long().clamp_(0, side - 1)
