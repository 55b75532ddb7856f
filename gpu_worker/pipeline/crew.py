"""Threads of two trades that help each other out, so that none is idle while the other has work.

A thread that stays with its trade keeps what the trade needs in its core's caches (the decoder's tables,
the network's weights); one that would idle takes the other trade's first task. How many of each there
should be depends on the model and the images: nobody has to know.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from typing import Any, Literal

from gpu_worker.threads import Threads

__all__ = ["Crew", "Trade"]

Trade = Literal["decode", "model"]
_Task = tuple[int, int, Callable[[], object]]  # turn, number, call: of one turn in order


class Crew:
    """Gives every other one of `threads` to each trade. Thread-safe; starts and closes nothing itself."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._waiting: dict[Trade, list[_Task]] = {"model": [], "decode": []}
        self._numbers = itertools.count()
        self._trades: dict[int, Trade] = {}  # by thread
        self._lock = threading.Lock()

    def submit(self, trade: Trade, turn: int, task: Callable[..., object], *arguments: Any) -> None:  # noqa: ANN401 (passed on)
        """Queues a call; of one trade, the lower `turn` goes first, and then who came first.

        Raises `RuntimeError` after the threads were closed.
        """
        with self._lock:
            entry: _Task = (turn, next(self._numbers), partial(task, *arguments))
            heappush(self._waiting[trade], entry)
        self._threads.put(self._take_one)

    def go_on(self, trade: Trade, turn: int, task: Callable[..., object], *arguments: Any) -> None:  # noqa: ANN401 (passed on)
        """`submit`, by a task of the crew as its last step: done at once where nothing else waits.

        Waking another thread for it would cost more than a small pass, and gain nothing.
        """
        if self._waiting["model"] or self._waiting["decode"]:
            self.submit(trade, turn, task, *arguments)
        else:
            task(*arguments)

    def _take_one(self) -> None:
        """There are never more of these calls than tasks: one is waiting."""
        with self._lock:
            me = threading.get_ident()
            trade = self._trades.setdefault(me, "decode" if len(self._trades) % 2 else "model")
            other: Trade = "model" if trade == "decode" else "decode"
            _, _, task = heappop(self._waiting[trade] or self._waiting[other])
        task()
