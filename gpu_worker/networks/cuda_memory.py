"""A CUDA device's memory in one piece, and the host's from which it is copied beside the kernels that run.

On an H100 behind PCIe 5 (`make bench-loads FLAGS='--device cuda:0'`): 54.8 GB/s for a copy of 233 MB in one
piece; in pieces of 4 MiB with a wait after each .76 of that, with two pieces on their way .94, of 16 MiB .97.
Memory that is registered is copied as quickly as what torch pins, and pinning 233 MB takes 12 ms instead of
374; nor is it rounded up to a power of two, or kept for good.

Not run where no CUDA is: `tests/gpu/test_tiers_on_cuda.py` is what tries it.
"""

from __future__ import annotations

import logging
import weakref
from collections import deque
from typing import Any

import torch
from torch import Tensor

from gpu_worker.memory import Region

__all__ = ["CudaRegion", "PinnedRegion"]

_log = logging.getLogger(__name__)
_ON_THEIR_WAY = 2  # pieces: the link is never without one while the next is sent off


class PinnedRegion(Region):
    """Memory of the host that stays in its place, so that the device reads it by itself.

    Where the system lets no more be pinned, it is ordinary memory, from which copies are slower.
    """

    def __init__(self, nbytes: int) -> None:
        super().__init__(nbytes)
        if not nbytes:
            self.tensor: Tensor = torch.empty(0, dtype=torch.uint8)
            return
        self.tensor = torch.frombuffer(self.view, dtype=torch.uint8)
        torch.cuda.init()  # type: ignore[no-untyped-call]  # torch's
        runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]  # torch's
        code = int(runtime.cudaHostRegister(self.address, nbytes, 0))
        if code:
            _log.warning("%d bytes of the host's memory are not pinned (CUDA error %d)", nbytes, code)
            return
        # Before the pages go: whoever is about to be let go of hears of it with all its parts in place. At
        # the end of the process the driver does it, when no copy is under way any more.
        weakref.finalize(self, runtime.cudaHostUnregister, self.address).atexit = False


class CudaRegion:
    """`nbytes` of `device`'s memory. Given back and taken again, it may lie elsewhere; its views follow."""

    def __init__(self, nbytes: int, device: str) -> None:
        self.nbytes = nbytes
        self.tensor: Tensor = torch.empty(nbytes, dtype=torch.uint8, device=device)
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch's
        self._coming: deque[torch.cuda.Event] = deque()

    def give_back(self) -> None:
        """Its memory is the device's again; nothing may read the views until it is taken."""
        self.settle()
        self.tensor.untyped_storage().resize_(0)

    def take(self) -> None:
        """Memory of the same size, if it was given back."""
        if self.tensor.untyped_storage().nbytes() < self.nbytes:
            self.tensor.untyped_storage().resize_(self.nbytes)

    def copy_from(self, source: PinnedRegion, start: int, end: int) -> None:
        """Sends bytes `start` to `end` of `source` off to the same place, whose last end where it does.

        Returns while they, and what was sent off before them, may be on their way; not so for the last ones.
        """
        with torch.cuda.stream(self._stream):
            self.tensor[start:end].copy_(source.tensor[start:end], non_blocking=True)
            here = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # torch's
            here.record(self._stream)
        self._coming.append(here)
        while self._coming and (end == self.nbytes or len(self._coming) > _ON_THEIR_WAY):
            self._coming.popleft().synchronize()

    def settle(self) -> None:
        """Returns once nothing is on its way any more."""
        while self._coming:
            self._coming.popleft().synchronize()
