"""A sample of what functions were asked and have answered of late, in memory alone, for who looks for drift.

Bounded in time and space, whatever the traffic: of a function some rows a second are looked at, and the last
ones are kept, two megabytes of them at the most. Of pictures and texts nothing is kept but how long they are.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from server.catalog.functions import Function
from server.serving.calls import Call, Reply

__all__ = ["FIRST", "AnsweredRow", "RecentAnswers", "Sample"]

_ROWS_A_SECOND = 200
_AT_A_TIME = 50
_KEPT = 2_000
_KEPT_BYTES = 2 << 20
FIRST = 500
_ROW_BYTES = 4_096
_TEXT_LENGTH = 200
_MOST_FUNCTIONS = 64
_FORGOTTEN_S = 86_400.0


@dataclass(frozen=True, slots=True)
class AnsweredRow:
    """row: of a table, as it came; b"" of everything else, and where it is large. length: of the input, in
    bytes. value: what was answered, a short text or a number; None of other kinds. is_first: whether its
    confidence is one of `Sample.first`.
    """

    row: bytes
    length: int
    value: str | float | None
    confidence: float | None
    is_first: bool = False


@dataclass(slots=True)
class Sample:
    """Of one version of a function. first: how sure it was at first; recent: what it answered of late."""

    function: Function
    first: list[float] = field(default_factory=list)
    recent: deque[AnsweredRow] = field(default_factory=deque)
    nbytes: int = 0  # of the recent rows
    asked_s: float = 0.0  # the last time
    second: int = 0
    taken: int = 0  # in this second

    def keep(self, row: AnsweredRow) -> None:
        """The oldest ones go for it."""
        if row.confidence is not None and len(self.first) < FIRST:
            self.first.append(row.confidence)
            row = replace(row, is_first=True)
        self.recent.append(row)
        self.nbytes += len(row.row)
        while len(self.recent) > _KEPT or self.nbytes > _KEPT_BYTES:
            self.nbytes -= len(self.recent.popleft().row)


class RecentAnswers:
    """Samples by function's key; of those that were asked of late."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._samples: dict[str, Sample] = {}  # who was asked last is the last

    def all(self) -> list[Sample]:
        """Every sample but of what nobody has asked for a day: a version before the one that answers now."""
        before_s = self._clock() - _FORGOTTEN_S
        self._samples = {key: each for key, each in self._samples.items() if each.asked_s >= before_s}
        return list(self._samples.values())

    def answered(self, call: Call, reply: Reply) -> None:
        """A call was answered: some of its rows are kept."""
        if call.members is not None:
            return
        sample, now_s = self._sample(call.function), self._clock()
        sample.asked_s, second = now_s, int(now_s)
        if second != sample.second:
            sample.second, sample.taken = second, 0
        most = min(len(call.rows), _AT_A_TIME, _ROWS_A_SECOND - sample.taken)
        if most <= 0:
            return
        sample.taken += most
        value = reply.columns.get(call.function.task.value.name)
        sure = reply.columns.get("confidence")
        values = None if value is None or value.shape or value.content else value.values
        confidences = None if sure is None else sure.values
        for at in range(0, len(call.rows), -(-len(call.rows) // most)):
            if at not in reply.errors and at not in reply.defaulted:
                row, said = call.rows[at], None if values is None else values[at]
                is_long = isinstance(said, str) and len(said) > _TEXT_LENGTH
                sample.keep(
                    AnsweredRow(
                        row if call.form == "row" and len(row) <= _ROW_BYTES else b"",
                        len(row),
                        None if is_long else said,
                        None if confidences is None else float(confidences[at]),
                    )
                )

    def _sample(self, function: Function) -> Sample:
        sample = self._samples.pop(function.key, None) or Sample(function)
        self._samples[function.key] = sample
        while len(self._samples) > _MOST_FUNCTIONS:
            del self._samples[next(iter(self._samples))]
        return sample
