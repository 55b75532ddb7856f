"""A sample of what functions were asked and have answered of late, in memory alone, for who looks for drift.

Bounded in time and space, whatever the traffic: of a function some rows a second are looked at, and the last
ones are kept. Of pictures and texts nothing is kept but how long they are.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from server.catalog.functions import Function
from server.serving.calls import Call, Reply

__all__ = ["AnsweredRow", "RecentAnswers", "Sample"]

_ROWS_A_SECOND = 200
_AT_A_TIME = 50
_KEPT = 2_000
_FIRST = 500
_ROW_BYTES = 4_096
_MOST_FUNCTIONS = 64


@dataclass(frozen=True, slots=True)
class AnsweredRow:
    """row: of a table, as it came; b"" of everything else, and where it is large. length: of the input, in
    bytes. value: what was answered, a text or a number; None of other kinds.
    """

    row: bytes
    length: int
    value: str | float | None
    confidence: float | None


@dataclass(slots=True)
class Sample:
    """Of one version of a function. first: what it answered at first; recent: of late."""

    function: Function
    first: list[AnsweredRow] = field(default_factory=list)
    recent: deque[AnsweredRow] = field(default_factory=lambda: deque(maxlen=_KEPT))
    second: int = 0
    taken: int = 0  # in this second


class RecentAnswers:
    """Samples by function's key; those of the newest functions."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._samples: dict[str, Sample] = {}

    def all(self) -> list[Sample]:
        """Every sample."""
        return list(self._samples.values())

    def answered(self, call: Call, reply: Reply) -> None:
        """A call was answered: some of its rows are kept."""
        function = call.function
        sample = self._samples.get(function.key)
        if sample is None:
            sample = self._samples[function.key] = Sample(function)
            while len(self._samples) > _MOST_FUNCTIONS:
                del self._samples[next(iter(self._samples))]
        second = int(self._clock())
        if second != sample.second:
            sample.second, sample.taken = second, 0
        rows = min(len(call.rows), _AT_A_TIME, _ROWS_A_SECOND - sample.taken)
        if rows <= 0 or call.members is not None:
            return
        sample.taken += rows
        value = reply.columns.get(function.task.value.name)
        sure = reply.columns.get("confidence")
        values = None if value is None or value.shape or value.content else value.values
        confidences = None if sure is None else sure.values
        for at in range(0, len(call.rows), max(1, len(call.rows) // rows)):
            if at in reply.errors or at in reply.defaulted:
                continue
            row = call.rows[at]
            kept = AnsweredRow(
                row if call.form == "row" and len(row) <= _ROW_BYTES else b"",
                len(row),
                None if values is None else values[at],
                None if confidences is None else float(confidences[at]),
            )
            sample.recent.append(kept)
            if len(sample.first) < _FIRST:
                sample.first.append(kept)
