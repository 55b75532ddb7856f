"""How many threads decode at once: as many as get the processor while they do.

Decoding a large photo is a library's work, beside which other threads run; of a small one half is Python's,
and threads that all want the interpreter wait for it longer than they work. By how much of its time a thread
had the processor the two are told apart. Rows/s of photos of 128×128 on two cores by the threads that decode,
and the share of their time that they had the processor (of 1,600×1,200 below):

    |     1     |     2     |     4     |    16     |
    | 8,958 .99 | 7,977 .78 | 7,769 .38 | 8,237 .09 |
    |   291 1.0 |   588 .98 |   566 .49 |   528 .13 |

More threads than help cost a processor half as much again for each row, and hold up those that run passes: 16
threads had 5,400 to 5,800 of the small ones with 250 µs of a processor each, and so they have 7,900 to 8,300
with 190. Two always may: where other programs take the cores, a thread's share says nothing of its own.
Knows threads and seconds, no photos.
"""

from __future__ import annotations

import math
import threading
from types import TracebackType
from typing import Final

__all__ = ["DecodingWidth", "next_width"]

_LEAST: Final = 2  # threads
_ENOUGH: Final = 0.75  # of its time that a thread should have the processor
_ALL: Final = 0.85  # from which on one more is tried
_JUDGED_S: Final = 0.02  # of threads' time, all together, by which a width is judged


def next_width(width: int, most: int, had_processor: float, *, was_full: bool) -> int:
    """Threads that should decode at once, after `width` did.

    had_processor: the share of their time. was_full: whether others waited to decode too.
    """
    if had_processor < _ENOUGH:
        return max(min(_LEAST, most), min(width, math.ceil(width * had_processor / _ENOUGH)))
    return min(most, width + 1) if had_processor > _ALL and was_full else width


class DecodingWidth:
    """Lets so many threads decode at once; `with` waits for a place. At most `most`, with which it begins."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.width = most
        self._inside = 0
        self._was_full = False
        self._worked_s = self._took_s = 0.0
        self._changed = threading.Condition()

    def __enter__(self) -> None:
        with self._changed:
            while self._inside >= self.width:
                self._was_full = True
                self._changed.wait()
            self._inside += 1

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._inside -= 1
            self._changed.notify()

    def took(self, worked_s: float, took_s: float) -> None:
        """A thread has decoded for `took_s`, and had the processor for `worked_s` of it."""
        with self._changed:
            self._worked_s += worked_s
            self._took_s += took_s
            if self._took_s < _JUDGED_S * self.width:
                return
            share = min(1.0, self._worked_s / self._took_s)
            wider = next_width(self.width, self._most, share, was_full=self._was_full)
            if wider > self.width:
                self._changed.notify(wider - self.width)
            self.width = wider
            self._was_full = False
            self._worked_s = self._took_s = 0.0
