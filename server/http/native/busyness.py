"""How much of a thread's time is spent, as the thread sees it itself. Pure."""

from __future__ import annotations

__all__ = ["Busyness"]

_LOOK_S = 0.01
_BUSY = 0.4


class Busyness:
    """The share of its time that a thread has worked lately."""

    def __init__(self, now_s: float, worked_s: float) -> None:
        self._since_s = now_s
        self._worked_s = worked_s
        self._share = 0.0

    def is_due(self, now_s: float) -> bool:
        """Whether to look anew; the processor's clock is a call of the kernel's."""
        return now_s - self._since_s >= _LOOK_S

    def look(self, now_s: float, worked_s: float) -> None:
        """The thread has had the processor for `worked_s` in all."""
        self._share = (worked_s - self._worked_s) / (now_s - self._since_s)
        self._since_s, self._worked_s = now_s, worked_s

    @property
    def is_busy(self) -> bool:
        """Whether what it does for each turn, few rows or many, begins to stand in others' way."""
        return self._share > _BUSY
