"""A CUDA device's memory in one piece, and the host's from which it is copied beside the kernels that run.

Not run where no CUDA is: `tests/gpu/test_tiers_on_cuda.py` is what tries it.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["CudaRegion", "PinnedRegion"]


class PinnedRegion:
    """`nbytes` of the host's memory that stay in their place, so that the device reads them by itself."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.tensor: Tensor = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
        self.view = memoryview(self.tensor.numpy().data)
        self.address = self.tensor.data_ptr()

    def give_back(self) -> None:
        """Pinned memory goes with the object."""


class CudaRegion:
    """`nbytes` of `device`'s memory. Given back and taken again, it may lie elsewhere; its views follow."""

    def __init__(self, nbytes: int, device: str) -> None:
        self.nbytes = nbytes
        self.tensor: Tensor = torch.empty(nbytes, dtype=torch.uint8, device=device)
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch's

    def give_back(self) -> None:
        """Its memory is the device's again; nothing may read the views until it is taken."""
        self.tensor.untyped_storage().resize_(0)

    def take(self) -> None:
        """Memory of the same size, if it was given back."""
        if self.tensor.untyped_storage().nbytes() < self.nbytes:
            self.tensor.untyped_storage().resize_(self.nbytes)

    def copy_from(self, source: PinnedRegion, start: int, end: int) -> None:
        """Copies bytes `start` to `end` of `source` to the same place; returns once they are there."""
        with torch.cuda.stream(self._stream):
            self.tensor[start:end].copy_(source.tensor[start:end], non_blocking=True)
        self._stream.synchronize()
