"""A device's way for one piece after the other: copy in, compute, copy out, each on a stream of its own.

    copy in    │ piece 1 │ piece 2 │ piece 3 │
    compute              │ piece 1 │ piece 2 │ piece 3 │
    copy out                       │ piece 1 │ piece 2 │ piece 3 │

A thread sends all three steps of its piece off without waiting, and then waits for the last of them alone:
several threads so keep all three streams busy, and the device is never waited for as a whole. Steps are sent
off under one lock, so that no piece comes between the steps of another. Knows pieces, not what runs them:
`Streams` is what a device does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import numpy as np

from gpu_worker.networks.network import Floats

__all__ = ["Lane", "Pending", "Streams"]

T = TypeVar("T")


class Pending(Protocol):
    """Numbers on their way back."""

    def wait(self) -> Floats:
        """The numbers, once they are in the host's memory. Raises what the device raises."""
        ...

    def computed_s(self) -> float:
        """How long the device computed, once `wait` has returned."""
        ...


class Streams(Protocol[T]):
    """What a device does, in the order in which it is asked; nothing here waits for it."""

    def copy_in(self, inputs: np.ndarray) -> T:
        """The inputs on the device, once its first stream is there; until then they must not change."""
        ...

    def compute(self, run: Callable[[T], T], batch: T) -> T:
        """What `run` makes of them."""
        ...

    def copy_out(self, found: T) -> Pending:
        """On the way back."""
        ...


class Lane(Generic[T]):
    """Of one device, for all its models. Thread-safe."""

    def __init__(self, streams: Streams[T]) -> None:
        self._streams = streams
        self._alone = threading.Lock()  # held by who has the device's streams to himself for a moment

    def run(self, run: Callable[[T], T], inputs: np.ndarray) -> tuple[Floats, float]:
        """What `run` makes of the inputs, and how long the device computed."""
        with self._alone:
            batch = self._streams.copy_in(inputs)
            found = self._streams.compute(run, batch)
            pending = self._streams.copy_out(found)
        return pending.wait(), pending.computed_s()
