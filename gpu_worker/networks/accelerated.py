"""How a module's passes run on an accelerator: through the device's lane, in the precision chosen for it.

What only CUDA has is given: the streams within the lane, how to compute in a precision, how to record. So all
of this is tried on a CPU too.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from gpu_worker.device import Device
from gpu_worker.networks.lane import Lane
from gpu_worker.networks.network import Floats
from gpu_worker.networks.precision import Precision, Verdict, chosen

__all__ = ["Accelerated", "Recorded", "Run", "on_cuda"]

_log = logging.getLogger(__name__)

Run = Callable[[Tensor], Tensor]  # a batch on the device → numbers, [n, …]


class Recorded(Protocol):
    """A `Run` by recordings, where there are some."""

    def __call__(self, batch: Tensor) -> Tensor:
        """What the run makes of the batch."""
        ...

    def record_all(self, row: Tensor) -> None:
        """At all sizes, for rows like `row`, [1, …]."""
        ...

    def clear(self) -> None:
        """Gives the recordings' memory back."""
        ...


class Accelerated:
    """The passes of one module. `run` may be called by several threads at once.

    computing_in: runs something in a precision. precisions: the fastest first. recorded: makes a `Recorded`
    of a run and of what says where the weights are; None where nothing is recorded.
    """

    def __init__(
        self,
        lane: Lane[Tensor],
        computing_in: Callable[[Precision, Run, Tensor], Tensor],
        precisions: Sequence[Precision] = ("float32",),
        recorded: Callable[[Run, Callable[[], int]], Recorded] | None = None,
    ) -> None:
        self._lane = lane
        self._computing_in = computing_in
        self._precisions = precisions
        self._make_recorded = recorded
        self._recorded: Recorded | None = None
        self._recorded_run: Run | None = None
        self._threads = threading.local()
        self.is_ready = False
        self.verdict = Verdict("float32")

    def make_ready(
        self,
        images: np.ndarray,
        runs: Sequence[tuple[Run, bool]],
        weights_at: Callable[[], int],
        name: str,
        *,
        static: bool,
    ) -> None:
        """Chooses the precision by what `runs` make of the images, and records the first of them.

        runs: each with whether it gives features. static: whether its kernels depend on the size alone.
        """
        precisions = self._precisions
        for run, features in runs:
            answers = functools.partial(self._answers, run, images)
            self.verdict, refused = chosen(precisions, answers("float32"), answers, features=features)
            for verdict in refused:
                _log.info("%s does not run in %s", name, verdict)
            precisions = precisions[precisions.index(self.verdict.precision) :]
        _log.info("%s runs in %s", name, self.verdict)
        if static and runs and self._make_recorded is not None:
            self._recorded_run = run = runs[0][0]
            recorded = self._make_recorded(lambda batch: self._in_its_precision(run, batch), weights_at)

            def record(row: Tensor) -> Tensor:
                recorded.record_all(row)
                return recorded(row)

            self._lane.run(record, images[:1])
            self._recorded = recorded
        self.is_ready = True

    def run(self, run: Run, inputs: np.ndarray, *, recorded: bool = True) -> Floats:
        """What `run` makes of the inputs; by recordings, where there are some, only if they may be used."""
        compute = self._compute if recorded else self._in_its_precision
        found, self._threads.pass_s = self._lane.run(lambda batch: compute(run, batch), inputs)
        return found

    def pass_s(self) -> float | None:
        """How long the device computed for this thread's last pass."""
        return getattr(self._threads, "pass_s", None)

    def clear(self) -> None:
        """The weights leave the device, and what was recorded with them."""
        if self._recorded is not None:
            self._recorded.clear()

    def _answers(self, run: Run, images: np.ndarray, precision: Precision) -> Floats:
        return self._lane.run(lambda batch: self._computing_in(precision, run, batch), images)[0]

    def _compute(self, run: Run, batch: Tensor) -> Tensor:
        if self._recorded is not None and batch.dtype == torch.uint8 and run == self._recorded_run:
            return self._recorded(batch)
        return self._in_its_precision(run, batch)

    def _in_its_precision(self, run: Run, batch: Tensor) -> Tensor:
        return self._computing_in(self.verdict.precision, run, batch)


def on_cuda(device: Device, *, narrow: bool = True) -> Accelerated:
    """Of a module on that CUDA device. narrow: whether less than float32 may be tried."""
    from gpu_worker.networks.cuda_graphs import Graphed
    from gpu_worker.networks.cuda_streams import computing_in, lane_of, precisions_of

    precisions = precisions_of(device.name) if narrow and device.precision == "auto" else ("float32",)
    return Accelerated(
        lane_of(device.name), computing_in, precisions, Graphed if narrow and device.graphs else None
    )
