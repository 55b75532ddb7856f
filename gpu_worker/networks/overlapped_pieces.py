"""How large a piece of a batch is on a device that works beside the threads that decode for it.

Two stages, decoding and passes, work on different pieces at once. Of small pieces the device launches many
passes; of large ones it waits long for the first, and the decoders have nothing to do during the last. What
passes take, l̂(b) = fixed + row · b, and what decoding takes a row are learned apart, and the pieces chosen by
which the whole batch is over soonest. Knows numbers of rows and seconds alone.
"""

from __future__ import annotations

import threading
from typing import Final

__all__ = ["OverlappedPieces"]

_SIZES: Final = (16, 32, 64, 128, 256, 512, 1024)
_KEPT: Final = 0.95  # of the weight of what was learned before, at each pass
_NEWEST: Final = 0.2  # of a piece's decoding among those before
_FIRST_ROWS: Final = 256  # while nothing is known


class OverlappedPieces:
    """Of one model on one device. Thread-safe."""

    def __init__(self) -> None:
        self._weight = self._x = self._y = self._xx = self._xy = 0.0
        self._decode_row_s = 0.0
        self._lock = threading.Lock()

    def passed(self, rows: int, took_s: float) -> None:
        """A pass of `rows` rows took the device so long."""
        with self._lock:
            old = (self._weight, self._x, self._y, self._xx, self._xy)
            new = (1.0, rows, took_s, rows * rows, rows * took_s)
            self._weight, self._x, self._y, self._xx, self._xy = (
                _KEPT * before + one for before, one in zip(old, new, strict=True)
            )

    def decoded(self, rows: int, thread_s: float) -> None:
        """Decoding `rows` rows took threads so long, all together."""
        with self._lock:
            row_s = thread_s / rows
            before_s = self._decode_row_s or row_s
            self._decode_row_s = before_s + _NEWEST * (row_s - before_s)

    def pass_line(self) -> tuple[float, float]:
        """(fixed seconds, seconds a row) of a pass; 0, 0 while nothing is known."""
        with self._lock:
            if not self._weight:
                return 0.0, 0.0
            mean_x, mean_y = self._x / self._weight, self._y / self._weight
            spread = self._xx / self._weight - mean_x * mean_x
            if spread <= 1e-6 * mean_x * mean_x:  # all of one size
                return 0.0, mean_y / mean_x
            row_s = max(0.0, (self._xy / self._weight - mean_x * mean_y) / spread)
            return max(0.0, mean_y - row_s * mean_x), row_s

    @property
    def decode_row_s(self) -> float:
        """Seconds of a thread for decoding a row; 0 while nothing is known."""
        return self._decode_row_s

    def rows(self, rows: int, threads: int) -> int:
        """Of a piece of a batch of `rows` rows, which `threads` threads decode."""
        fixed_s, row_s = self.pass_line()
        if not row_s and not fixed_s:
            return _FIRST_ROWS

        def over_s(size: int) -> float:
            """When the last of equal pieces is over: each waits for its stage to be free."""
            pieces = -(-rows // size)
            each = rows / pieces
            decode_s, pass_s = each * self._decode_row_s / threads, fixed_s + each * row_s
            return decode_s + (pieces - 1) * max(decode_s, pass_s) + pass_s

        sizes = [size for size in _SIZES if size < rows] or [_SIZES[0]]
        if sizes[-1] < _SIZES[-1] and sizes[-1] < rows:
            sizes.append(2 * sizes[-1])
        best = min(sizes, key=lambda size: (over_s(size), size))
        pieces = -(-rows // best)
        return max(1, -(-rows // pieces))  # of equal size, not large ones and a rest
