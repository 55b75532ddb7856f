"""Variations of training images, drawn anew in every epoch. Works on whole batches of uint8 pixels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Augment"]


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
        n, height, width, _ = pixels.shape
        zoom = 1 + self._draw((n, 1), self.zoom, generator)
        rows = self._places(height, zoom, self._draw((n, 1), self.shift, generator))
        columns = self._places(width, zoom, self._draw((n, 1), self.shift, generator))
        if self.flip:
            mirrored = torch.rand((n, 1), generator=generator) < 0.5
            columns = torch.where(mirrored, width - 1 - columns, columns)
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
