"""A CUDA device's streams, three to a lane, and in which precision what is sent to them computes.

Not run where no CUDA is: `tests/gpu/test_worker_on_cuda.py` is what tries it.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections import deque
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from gpu_worker.networks.lane import Lane
from gpu_worker.networks.network import Floats
from gpu_worker.networks.precision import PRECISIONS, Precision

__all__ = ["CudaStreams", "computing_in", "lanes_of", "precisions_of"]


@functools.cache
def lanes_of(device: str) -> tuple[Lane[Tensor], Lane[Tensor]]:
    """The lane of what serves on `device` ("cuda:N"), and the one beside it; both once in the process."""
    return Lane(CudaStreams(torch.device(device))), Lane(CudaStreams(torch.device(device)))


def precisions_of(device: str) -> tuple[Precision, ...]:
    """Those that the device computes faster in than in float32, the fastest first; float32 last."""
    major, _ = torch.cuda.get_device_capability(torch.device(device))
    if major >= 8:
        return PRECISIONS
    return ("float16", "float32") if major == 7 else ("float32",)


class _Float32:
    """Whether torch computes float32 as TF32. torch keeps one answer, and looks when passes are sent off.

    Lanes that want the same send off side by side; others wait their turn.
    """

    def __init__(self) -> None:
        self._mode = ""
        self._holders = 0
        self._waiting: deque[object] = deque()
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def as_(self, mode: str) -> Iterator[None]:
        """mode: "ieee" or "tf32"."""
        mine = object()
        with self._changed:
            self._waiting.append(mine)
            while self._waiting[0] is not mine or (self._holders and self._mode != mode):
                self._changed.wait()
            self._waiting.popleft()
            # Each time: whoever shares the process, such as a notebook, may have said otherwise.
            torch.backends.cuda.matmul.fp32_precision = mode
            torch.backends.cudnn.conv.fp32_precision = mode  # type: ignore[attr-defined]  # torch's stubs lack it
            torch.backends.cudnn.rnn.fp32_precision = mode  # type: ignore[attr-defined]  # and this
            self._mode = mode
            self._holders += 1
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._holders -= 1
                self._changed.notify_all()


_float32 = _Float32()


def computing_in(precision: Precision, run: Callable[[Tensor], Tensor], batch: Tensor) -> Tensor:
    """`run(batch)`, its float32 as the precision has it; a narrower one the module's own numbers have."""
    with _float32.as_("tf32" if precision == "tf32" else "ieee"):
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
