"""How much sooner than its deadline a row that has to queue must be predicted to finish to be let in.

A prediction is right in the mean: of rows that are let in for as long as they would just make it, many are
late. So the margin grows with rows that were let in and were late all the same, and shrinks with those that
were in time, until one in fifty is late. Where nobody queues it says nothing.
"""

from __future__ import annotations

__all__ = ["SafetyMargin"]

_LATE = 0.02  # of the rows that are let in
_GAIN = 0.1  # by so much one batch that is late moves it
_MOST = 0.4


class SafetyMargin:
    """Tell it of interactive rows that were let in.

    share: of the time that a row has until its deadline.
    """

    __slots__ = ("share",)

    def __init__(self) -> None:
        self.share = 0.0

    def ended(self, rows: int, late: int, max_batch: int) -> None:
        """So many rows were answered or refused, `late` of them after their time."""
        self.share = min(_MOST, max(0.0, self.share + _GAIN * (late - _LATE * rows) / max_batch))
