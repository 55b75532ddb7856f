"""A CUDA device's three streams, and in which precision what is sent to them computes.

Not run where no CUDA is: `tests/gpu/test_worker_on_cuda.py` is what tries it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from gpu_worker.networks.lane import Lane
from gpu_worker.networks.network import Floats
from gpu_worker.networks.precision import PRECISIONS, Precision

__all__ = ["CudaStreams", "computing_in", "lane_of", "precisions_of"]

_AUTOCAST = {"float16": torch.float16, "bfloat16": torch.bfloat16}


@functools.cache
def lane_of(device: str) -> Lane[Tensor]:
    """The lane of `device` ("cuda:N"), one for the process as the device's own streams are."""
    return Lane(CudaStreams(torch.device(device)))


def precisions_of(device: str) -> tuple[Precision, ...]:
    """Those that the device computes faster in than in float32, the fastest first; float32 last."""
    major, _ = torch.cuda.get_device_capability(torch.device(device))
    if major >= 8:
        return PRECISIONS
    return ("float16", "float32") if major == 7 else ("float32",)


def computing_in(precision: Precision, run: Callable[[Tensor], Tensor], batch: Tensor) -> Tensor:
    """`run(batch)` in that precision, for whoever has the lane to himself: a part of it is process-wide."""
    mode = "tf32" if precision == "tf32" else "ieee"
    torch.backends.cuda.matmul.fp32_precision = mode
    torch.backends.cudnn.conv.fp32_precision = mode  # type: ignore[attr-defined]  # torch's stubs lack it
    torch.backends.cudnn.rnn.fp32_precision = mode  # type: ignore[attr-defined]  # and this
    dtype = _AUTOCAST.get(precision)
    if dtype is None:
        return run(batch)
    # Each weight is read once a pass, and a recorded graph must not depend on what was cast before it.
    with torch.autocast("cuda", dtype=dtype, cache_enabled=False):
        return run(batch)


class _OnItsWay:
    """Numbers that are copied into pinned memory."""

    def __init__(self, found: Tensor, began: torch.cuda.Event, ended: torch.cuda.Event) -> None:
        self._found, self._began, self._ended = found, began, ended
        # A thread that waits for it sleeps, and lets others decode.
        self._here = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # torch's
        self._here.record()

    def wait(self) -> Floats:
        self._here.synchronize()
        found: Floats = self._found.numpy()
        return found

    def computed_s(self) -> float:
        return float(self._began.elapsed_time(self._ended)) / 1e3


class CudaStreams:
    """One stream each for copying in, computing and copying out. Used under a `Lane`'s lock."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._in, self._work, self._out = (_stream(device) for _ in range(3))
        self._timed = self._timer()

    def copy_in(self, inputs: np.ndarray) -> Tensor:
        """See `Streams.copy_in`. From pinned memory, as `Buffers` lends, nobody waits for the copy."""
        with torch.cuda.stream(self._in):
            batch = torch.from_numpy(inputs).to(self._device, non_blocking=True)
        self._work.wait_stream(self._in)
        batch.record_stream(self._work)  # its memory is not used again before the work is done
        return batch

    def compute(self, run: Callable[[Tensor], Tensor], batch: Tensor) -> Tensor:
        """See `Streams.compute`."""
        self._timed = began, ended = self._timer()
        with torch.cuda.stream(self._work):
            began.record()
            found = run(batch)
            ended.record()
        return found

    def copy_out(self, found: Tensor) -> _OnItsWay:
        """See `Streams.copy_out`; of what was computed last."""
        began, ended = self._timed
        self._out.wait_event(ended)
        with torch.cuda.stream(self._out):
            found.record_stream(self._out)
            # torch keeps pinned memory for the next piece, and knows when this copy is over.
            here = torch.empty(found.shape, dtype=found.dtype, pin_memory=True)
            here.copy_(found, non_blocking=True)
            return _OnItsWay(here, began, ended)

    def _timer(self) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        first, second = (
            torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch's
            for _ in range(2)
        )
        return first, second


def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch's
