"""How many rows of a batch go through a CPU's model at once: as many as are cheapest, found by trying.

Few rows pay for the layers' set-up each time; many leave the caches before the next layer wants them.
Microseconds of a forward pass per row, one of two Zen 5 cores, the other as busy:

    |                      |     4 |     8 |    16 |    32 |
    | squeezenet at 64×64  |   201 |   160 |   151 |   128 |
    | vgg at 224×224       | 3,010 | 3,040 | 3,450 | 4,060 |

Handing a piece over costs some 0.3 ms. Of rows that take some microseconds that is felt at 64 as well:
networks whose memory does not grow by it say that they take more at once (`TakesManyRows`).

Hears what pieces took of a core, and says how large the next should be. By the clock small ones would seem
the cheapest wherever cores and the interpreter are shared: a short pass is the sooner one that nobody comes
into. Knows no model and no clock.
"""

from __future__ import annotations

import math
import sys
import threading
from collections import deque
from collections.abc import Iterable

__all__ = ["LARGEST_LIGHT_PIECE_ROWS", "LARGEST_PIECE_ROWS", "PieceSizes", "rows_that_fit"]

LARGEST_PIECE_ROWS = 64
LARGEST_LIGHT_PIECE_ROWS = 256  # of who `TakesManyRows`
_LEAST_ROWS = 4
_TRIES = 4  # before a size is judged
_RECENT = 8  # the least of so many counts: what disturbs a pass makes it slower, never faster
_AGAIN = 1024  # passes, after which the other sizes are tried again
_HANDING_S = 0.0002  # that each piece costs beside its pass
_CHEAPER = 0.97  # than the larger size, to be worth more pieces


_MOST_PIXEL_BYTES = 64 << 20  # of a piece, as bytes; a network's own arrays are some tens of times that
_MOST_PIXEL_BYTES_CUDA = 256 << 20


def rows_that_fit(sizes: Iterable[tuple[int, int]], *, is_cuda: bool) -> int:
    """Rows of a piece whose pixels, at each of `sizes` (H, W), take no more memory than a piece may have.

    A model may ask for pictures of 4096×4096: as many rows of those as of small ones would fill the machine.
    """
    row_bytes = sum(3 * height * width for height, width in sizes)
    most_bytes = _MOST_PIXEL_BYTES_CUDA if is_cuda else _MOST_PIXEL_BYTES
    return max(1, most_bytes // row_bytes) if row_bytes else sys.maxsize


class PieceSizes:
    """Of one model; the largest, a power of two, while nothing is known. Thread-safe."""

    def __init__(self, largest: int = LARGEST_PIECE_ROWS) -> None:
        self._sizes = [largest]
        while self._sizes[-1] > _LEAST_ROWS:
            self._sizes.append(self._sizes[-1] // 2)
        self._row_s: dict[int, deque[float]] = {size: deque(maxlen=_RECENT) for size in self._sizes}
        self._best = largest
        self._passes = 0
        self._lock = threading.Lock()

    def observe(self, rows: int, core_s: float) -> None:
        """A forward pass of `rows` rows took `core_s` of a core. Sizes in between count for the nearest."""
        size = 1 << round(math.log2(rows))
        if size not in self._row_s:
            return
        with self._lock:
            self._row_s[size].append((core_s + _HANDING_S) / rows)
            self._passes += 1
            if self._passes % _AGAIN == 0:
                for other, row_s in self._row_s.items():
                    if other != self._best:
                        row_s.clear()
            self._climb()

    def rows(self, most: int) -> int:
        """Of the next piece, of at most `most` rows: a size that was not tried yet, else the cheapest."""
        for size in self._sizes:
            if size <= most and not self._is_known(size):
                return size
        return min(self._best, most)

    def _is_known(self, size: int) -> bool:
        return len(self._row_s[size]) >= _TRIES

    def _climb(self) -> None:
        known = [size for size in self._sizes if self._is_known(size)]
        if not known:
            return
        self._best = known[0]
        for size in known[1:]:
            if min(self._row_s[size]) <= _CHEAPER * min(self._row_s[self._best]):
                self._best = size
