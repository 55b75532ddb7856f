"""Whether a training process still takes steps towards a reply, or hangs.

Pure but for `probed`: a `StepWatch` learns when its message was sent and what the process said of itself.
"""

from __future__ import annotations

import asyncio

from gpu_worker.wire.protocol import ProbeTraining, TrainingProbed
from server.workers.pool import Worker

__all__ = ["BEGIN_S", "StepWatch", "probed"]

BEGIN_S = 600.0  # before the first step: a snapshot is read, a checkpoint is written
_PROBE_S = 5.0  # for an answer to a probe


class StepWatch:
    """The steps of a training process towards one reply. Times in seconds, on one monotonic clock."""

    def __init__(self, begin_s: float) -> None:
        self._begin_s = begin_s  # that may pass before the first
        self.message = 0
        self._is_on_it = False  # else it is on another's message, which was sent before
        self._since_s: float | None = None
        self._heard_s = 0.0
        self._steps: int | None = None
        self._stepped = False

    def begin(self, now_s: float) -> None:
        """The message is sent."""
        self._since_s = self._heard_s = now_s

    @property
    def are_counted(self) -> bool:
        """Whether the worker is on it, and not on another job's."""
        return self._since_s is not None

    def saw(self, looked: TrainingProbed, now_s: float) -> None:
        """What it said of itself."""
        self._heard_s = now_s
        begins = looked.on == self.message and not self._is_on_it
        self._is_on_it |= begins
        if looked.steps != self._steps:
            # Files on their way to it count below 0: after them it begins, as where they lie beside it.
            counts = self._steps is not None and min(self._steps, looked.steps) >= 0
            self._stepped = self._is_on_it and counts
            self._steps, self._since_s = looked.steps, now_s
        elif begins:
            self._since_s = now_s

    def have_ended(self, now_s: float, lease_s: float) -> bool:
        """Whether none was taken for a lease, or none at all for longer than it takes to begin, or the
        process says nothing.
        """
        if self._since_s is None:
            return False
        begin_s = self._begin_s if self._is_on_it else max(lease_s, BEGIN_S)
        patience_s = lease_s if self._stepped else begin_s
        return now_s - self._since_s > patience_s or now_s - self._heard_s > lease_s


async def probed(worker: Worker) -> TrainingProbed | None:
    """What the training process says of itself; None if it says nothing in time, or there is none."""
    try:
        async with asyncio.timeout(_PROBE_S):
            reply = await worker.call(ProbeTraining(0))
    except TimeoutError:
        return None
    return reply if isinstance(reply, TrainingProbed) else None
