"""The link from the host's memory to the device's: one model at a time, in the order in which they ask.

What moves is copied for real, in pieces, by the thread of whoever loads. A simulated link keeps to its rate
by the clock: it waits where copying was quicker. Knows bytes and time, no models.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

from gpu_worker.networks.network import IsCancelled, check
from gpu_worker.wire.devices import Simulated

__all__ = ["Link"]

_LOOK_S = 0.01  # between two looks whether it is given up
_PIECE_BYTES = 16 << 20  # a third of a millisecond of PCIe 5
_SIMULATED_PIECE_BYTES = 4 << 20
_RECENT = 0.3  # weight of the newest load in what the rate is taken to be


class Link:
    """`simulated`: what it should take; None for a link that takes what it takes. Thread-safe."""

    def __init__(self, simulated: Simulated | None = None) -> None:
        self._fixed_s = simulated.fixed_s if simulated else 0.0
        self._bytes_per_s = simulated.bytes_per_s if simulated else 0.0  # 0: as it goes
        self._measured_bytes_per_s = self._bytes_per_s
        self._waiting: deque[object] = deque()
        self._changed = threading.Condition()

    @property
    def bytes_per_s(self) -> float:
        """Its rate, as said or as measured; 0 while nothing was moved."""
        return self._measured_bytes_per_s

    def move(self, nbytes: int, copy: Callable[[int, int], None], is_cancelled: IsCancelled) -> float:
        """Moves `nbytes` by `copy(start, end)`, when it is its turn. Seconds that it had the link.

        Raises `Cancelled` within 50 ms of being asked to stop, moving or waiting; and what `copy` raises.
        """
        with self._turn(is_cancelled):
            began_s = time.monotonic()
            _wait_until(began_s + self._fixed_s, is_cancelled)
            for start in range(0, nbytes, self._piece_bytes()):
                check(is_cancelled)
                end = min(nbytes, start + self._piece_bytes())
                copy(start, end)
                if self._bytes_per_s:
                    _wait_until(began_s + self._fixed_s + end / self._bytes_per_s, is_cancelled)
            took_s = time.monotonic() - began_s
        if not self._bytes_per_s and nbytes >= _PIECE_BYTES:
            rate, known = nbytes / max(took_s, 1e-9), self._measured_bytes_per_s
            self._measured_bytes_per_s = known + _RECENT * (rate - known) if known else rate
        return took_s

    def wait(self, seconds: float, is_cancelled: IsCancelled) -> None:
        """Keeps the link for `seconds`, when it is its turn. Raises `Cancelled` as `move` does."""
        if seconds > 0:
            with self._turn(is_cancelled):
                _wait_until(time.monotonic() + seconds, is_cancelled)

    def _piece_bytes(self) -> int:
        """A piece is over soon enough for a cancel to be felt."""
        if not self._bytes_per_s:
            return _PIECE_BYTES
        return max(4096, min(_SIMULATED_PIECE_BYTES, int(self._bytes_per_s * _LOOK_S)))

    @contextlib.contextmanager
    def _turn(self, is_cancelled: IsCancelled) -> Iterator[None]:
        mine = object()
        with self._changed:
            self._waiting.append(mine)
        try:
            with self._changed:
                while self._waiting[0] is not mine:
                    check(is_cancelled)
                    self._changed.wait(_LOOK_S)
            yield
        finally:
            with self._changed:
                self._waiting.remove(mine)
                self._changed.notify_all()


def _wait_until(at_s: float, is_cancelled: IsCancelled) -> None:
    while (left_s := at_s - time.monotonic()) > 0:
        time.sleep(min(_LOOK_S, left_s))
        check(is_cancelled)
