"""A network's passes as CUDA graphs: all layers of a small batch in one launch.

Not run where no CUDA is: `tests/gpu/test_worker_on_cuda.py` is what tries it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gpu_worker.networks.failures import failure_of
from gpu_worker.networks.graph_sizes import Recordings

__all__ = ["Graphed"]

_log = logging.getLogger(__name__)
_FIRST_RUNS = 2  # on the recording's own stream: libraries choose kernels, and take memory for good
_MOST_DIFFERENCE = 1e-3


@dataclass(frozen=True, slots=True)
class _Recording:
    """A graph, and the memory that it reads and writes."""

    graph: torch.cuda.CUDAGraph
    inputs: Tensor
    outputs: Tensor


class Graphed:
    """`run` by graphs where there is one. Used by who has the device's lane to himself.

    run: a batch [n, …] on the device → numbers [n, …], by kernels that depend on n alone. weights_at: the
    address of the weights, which a graph holds.
    """

    def __init__(self, run: Callable[[Tensor], Tensor], weights_at: Callable[[], int]) -> None:
        self._run = run
        self._weights_at = weights_at
        self._recordings: Recordings[_Recording] = Recordings()
        self._stream: torch.cuda.Stream | None = None
        self._pool: Any = None  # torch's handle

    def __call__(self, batch: Tensor) -> Tensor:
        """What `run(batch)` is; on the current stream, which orders one replay after the other."""
        rows = len(batch)
        found = self._recordings.find(rows, self._weights_at())
        if found is None:
            if (size := self._recordings.is_due(rows)) is not None:
                self.record(size, batch)
            return self._run(batch)
        _, recording = found
        recording.inputs[:rows].copy_(batch)
        recording.graph.replay()
        return recording.outputs[:rows].clone()  # the next replay writes there again

    def record(self, size: int, like: Tensor) -> None:
        """A graph of `size` rows like the first of `like`; kept if it answers as `run` does."""
        self._recordings.find(size, self._weights_at())  # lets go of those of another place
        try:
            recording, expected = self._recorded(size, like)
            recording.graph.replay()
            same = torch.allclose(recording.outputs, expected, rtol=0.0, atol=_MOST_DIFFERENCE)
        except RuntimeError as exc:  # what cannot be captured, or finds no memory
            if failure_of(exc) == "lost":
                raise
            _log.info("a batch of %d is not recorded as a graph: %s", size, exc)
            same = False
        if same:
            self._recordings.keep(size, recording)
        else:
            self._recordings.refuse(size)

    def clear(self) -> None:
        """Gives the graphs' memory back."""
        self._recordings.clear()
        self._pool = None

    def _recorded(self, size: int, like: Tensor) -> tuple[_Recording, Tensor]:
        if self._stream is None:
            self._stream = torch.cuda.Stream(like.device)  # type: ignore[no-untyped-call]  # torch's
        stream = self._stream
        # One for all sizes: replays come one after the other, and nothing within one outlives it.
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        stream.wait_stream(torch.cuda.current_stream(like.device))
        with torch.cuda.stream(stream):
            inputs = like[:1].expand(size, *like.shape[1:]).clone(memory_format=torch.contiguous_format)
            for _ in range(_FIRST_RUNS):
                expected = self._run(inputs)
            graph = torch.cuda.CUDAGraph()
            # Not by `torch.cuda.graph`, which lets the whole device come to rest and collects all garbage
            # before: others are served meanwhile. They may ask the driver for memory; this thread does not.
            graph.capture_begin(self._pool, capture_error_mode="thread_local")
            try:
                outputs = self._run(inputs)
            finally:
                graph.capture_end()
        torch.cuda.current_stream(like.device).wait_stream(stream)
        return _Recording(graph, inputs, outputs), expected
