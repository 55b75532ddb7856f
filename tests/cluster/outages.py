"""What callers of a server see while something dies: every row, and the longest that none was answered."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ml_udf.errors import MlUdfError
from tests.inference_server import InferenceServer
from tests.models import label_of
from tests.waiting import wait_until

__all__ = ["Outage", "asked_without_end"]

_CALLERS = 2
_ROWS = 8
_PAUSE_S = 0.02  # so that callers, and not their number, are measured


@dataclass
class Outage:
    """answered_s: when each request was answered, on the clock of time.monotonic. wrong: rows that were
    answered otherwise than they should, or not once. refused: the errors of requests that had one. back_s:
    after which all workers were there again, counted from the fault.
    """

    function: str
    answered_s: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    rows: int = 0
    back_s: float = 0.0
    _fault_s: float = 0.0
    _ends: threading.Event = field(default_factory=threading.Event)
    _changed: threading.Lock = field(default_factory=threading.Lock)

    def happens(self) -> None:
        """The fault is done now."""
        self._fault_s = time.monotonic()

    def is_over(self) -> None:
        """All workers are there again."""
        self.back_s = time.monotonic() - self._fault_s

    @property
    def longest_s(self) -> float:
        """The longest, from the fault on, without any answer."""
        times = [self._fault_s, *sorted(at for at in self.answered_s if at > self._fault_s)]
        return max((later - earlier for earlier, later in itertools.pairwise(times)), default=0.0)

    def answered_since(self) -> int:
        """Requests that were answered since the fault."""
        return sum(at > self._fault_s for at in list(self.answered_s))

    def ask(self, server: InferenceServer, number: int) -> None:
        """Without end, rows that nobody else asks."""
        with server.client() as client:
            for turn in itertools.count():
                if self._ends.wait(_PAUSE_S):
                    return
                texts = [f"{number} {turn} {row}" for row in range(_ROWS)]
                try:
                    values = client.predict(self.function, texts).values
                except MlUdfError as error:
                    with self._changed:
                        self.refused.append(f"{type(error).__name__}: {error}")
                    continue
                with self._changed:
                    self.answered_s.append(time.monotonic())
                    self.rows += len(values)
                    if values != [label_of(text) for text in texts]:
                        self.wrong.append(f"{texts} → {values}")

    def end(self) -> None:
        """Callers ask no more."""
        self._ends.set()


@contextmanager
def asked_without_end(server: InferenceServer, function: str) -> Iterator[Outage]:
    """Callers ask, from before the fault until some rows after its end."""
    outage = Outage(function)
    callers = [
        threading.Thread(target=outage.ask, args=[server, number], name=f"caller {number}")
        for number in range(_CALLERS)
    ]
    for caller in callers:
        caller.start()
    try:
        wait_until(lambda: len(outage.answered_s) > _CALLERS)
        outage.happens()
        yield outage
        there = len(outage.answered_s)
        wait_until(lambda: len(outage.answered_s) > there + _CALLERS)
    finally:
        outage.end()
        for caller in callers:
            caller.join()
