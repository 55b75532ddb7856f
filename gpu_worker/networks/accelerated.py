"""How a module's passes run on an accelerator: through the device's lane, in the precision chosen for it.

    passes that serve      ─ lane ────────┐
                                          ├─ the device
    first passes, trials   ─ lane beside ─┘

A first pass loads kernels, and can take seconds: it has a lane of its own, so that no batch of another model
waits behind it.

What only CUDA has is given: the streams within a lane, how to compute in a precision, how to record. So all
of this is tried on a CPU too.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from gpu_worker.device import Device
from gpu_worker.networks.graph_sizes import GRAPH_SIZES
from gpu_worker.networks.lane import Lane
from gpu_worker.networks.network import Floats
from gpu_worker.networks.precision import Precision, Verdict

__all__ = ["Accelerated", "Recorded", "Run", "beside", "on_cuda"]

Run = Callable[[Tensor], Tensor]  # a batch on the device → numbers, [n, …]


class Recorded(Protocol):
    """A `Run` by recordings, where there are some."""

    def __call__(self, batch: Tensor) -> Tensor:
        """What the run makes of the batch."""
        ...

    def record(self, size: int, like: Tensor) -> None:
        """At that size, for rows like the first of `like`."""
        ...

    def clear(self) -> None:
        """Gives the recordings' memory back."""
        ...


class Accelerated:
    """The passes of one module. `run` may be called by several threads at once.

    lane, beside: of passes that serve, and of those that nobody waits for. computing_in: runs something in a
    precision. verdict: that in which the module is, or is to compute. recorded: makes a `Recorded` of a run
    and of what says where the weights are; None where nothing is recorded.
    """

    def __init__(
        self,
        lane: Lane[Tensor],
        beside: Lane[Tensor],
        computing_in: Callable[[Precision, Run, Tensor], Tensor],
        verdict: Verdict,
        recorded: Callable[[Run, Callable[[], int]], Recorded] | None = None,
    ) -> None:
        self._lane = lane
        self._beside = beside
        self._computing_in = computing_in
        self.verdict = verdict
        self._make_recorded = recorded
        self._recorded: Recorded | None = None
        self._recorded_run: Run | None = None
        self._threads = threading.local()

    @contextlib.contextmanager
    def beside(self) -> Iterator[None]:
        """Passes of this thread meanwhile keep nobody waiting who serves."""
        before = getattr(self._threads, "lane", self._lane)
        self._threads.lane = self._beside
        try:
            yield
        finally:
            self._threads.lane = before

    def record(self, run: Run, weights_at: Callable[[], int], row: np.ndarray) -> None:
        """Records `run` at all sizes, for rows like `row`, [1, …], if it is not and can be."""
        if self._make_recorded is None or self._recorded is not None:
            return
        recorded = self._make_recorded(lambda batch: self._in_its_precision(run, batch), weights_at)

        def record(batch: Tensor) -> Tensor:
            for size in reversed(GRAPH_SIZES):  # the largest first: the others find room in its memory
                recorded.record(size, batch)
            return recorded(batch)

        with self.beside():
            self._in_lane(record, row)
        self._recorded, self._recorded_run = recorded, run

    def run(self, run: Run, inputs: np.ndarray, *, recorded: bool = True) -> Floats:
        """What `run` makes of the inputs; by recordings, where there are some, only if they may be used."""
        compute = self._compute if recorded else self._in_its_precision
        found, self._threads.pass_s = self._in_lane(lambda batch: compute(run, batch), inputs)
        return found

    def pass_s(self) -> float | None:
        """How long the device computed for this thread's last pass."""
        return getattr(self._threads, "pass_s", None)

    def clear(self) -> None:
        """The weights leave the device, and what was recorded with them."""
        if self._recorded is not None:
            self._recorded.clear()

    def _in_lane(self, run: Run, inputs: np.ndarray) -> tuple[Floats, float]:
        lane: Lane[Any] = getattr(self._threads, "lane", self._lane)
        return lane.run(run, inputs)

    def _compute(self, run: Run, batch: Tensor) -> Tensor:
        if self._recorded is not None and batch.dtype == torch.uint8 and run == self._recorded_run:
            return self._recorded(batch)
        return self._in_its_precision(run, batch)

    def _in_its_precision(self, run: Run, batch: Tensor) -> Tensor:
        return self._computing_in(self.verdict.precision, run, batch)


def beside(accelerated: Accelerated | None) -> contextlib.AbstractContextManager[None]:
    """See `Accelerated.beside`; nothing where there is no accelerator."""
    return contextlib.nullcontext() if accelerated is None else accelerated.beside()


def on_cuda(device: Device, verdict: Verdict | None = None, *, recorded: bool = False) -> Accelerated:
    """Of a module on that CUDA device, in the verdict's precision, or float32.

    recorded: whether passes may be.
    """
    from gpu_worker.networks.cuda_graphs import Graphed
    from gpu_worker.networks.cuda_streams import computing_in, lanes_of

    lane, beside = lanes_of(device.name)
    graphed = Graphed if recorded and device.graphs else None
    return Accelerated(lane, beside, computing_in, verdict or Verdict("float32"), graphed)
