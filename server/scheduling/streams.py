"""Who brings how many rows to a lane, while several tenants are there.

Knows times and rates; nothing of queues or batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from server.scheduling.policy import RowClass
from server.scheduling.rhythm import Rhythm
from server.scheduling.sharing import Pace

__all__ = ["Stream", "Streams"]

_REMEMBERED_S = 5.0
_FADE_S = 1.0  # by which rates are known
_GAIN = 0.1
_MOST = 64  # that are told


@dataclass(slots=True)
class Stream:
    """Rows of one tenant and class. request_rows: of one of its requests, of late, in the mean.

    seen_s: when it last was here, with rows that came or that waited.
    """

    rhythm: Rhythm = field(default_factory=Rhythm)
    pace: Pace = field(default_factory=Pace)
    request_rows: float = 0.0
    seen_s: float = 0.0

    def came(self, now_s: float, rows: int) -> None:
        """Rows came."""
        self.seen_s = now_s
        self.rhythm.came(now_s)
        self.pace.came(now_s, rows, _FADE_S)
        self.request_rows += (_GAIN if self.request_rows else 1.0) * (rows - self.request_rows)

    def rate(self, now_s: float) -> float:
        """Rows a second."""
        return self.pace.rate(now_s, _FADE_S)


class Streams:
    """Of one lane, by class and tenant; the one that came longest ago first."""

    __slots__ = ("_paces", "_streams")

    def __init__(self) -> None:
        self._paces: dict[RowClass, Pace] = {"interactive": Pace(), "bulk": Pace()}
        self._streams: dict[tuple[RowClass, str], Stream] = {}

    def came(
        self,
        now_s: float,
        row_class: RowClass,
        tenant: str,
        rows: int,
        waits: Callable[[RowClass, str], object] = lambda row_class, tenant: False,
    ) -> None:
        """Rows came. waits: whether rows of a tenant wait; until none does, it is not forgotten."""
        self._paces[row_class].came(now_s, rows, _FADE_S)
        key = (row_class, tenant)
        stream = self._streams.pop(key, None) or Stream()
        stream.came(now_s, rows)
        self._streams[key] = stream
        for _ in range(2):
            oldest = next(iter(self._streams))
            stream = self._streams[oldest]
            if now_s - stream.seen_s <= _REMEMBERED_S:
                break
            del self._streams[oldest]
            if waits(*oldest):
                stream.seen_s = now_s
                self._streams[oldest] = stream

    def adopt(self, row_class: RowClass, tenant: str, rhythm: Rhythm) -> None:
        """Rows of that tenant, which was alone until now, have come like this."""
        stream = self._streams[row_class, tenant] = Stream(request_rows=1.0)
        stream.rhythm.follow(rhythm)
        stream.seen_s = rhythm.came_s

    def rate(self, now_s: float, row_class: RowClass) -> float:
        """Rows a second of all tenants of that class."""
        return self._paces[row_class].rate(now_s, _FADE_S)

    def of(self, row_class: RowClass) -> Iterator[tuple[str, Stream]]:
        """Of each tenant of that class that came lately."""
        left = _MOST
        for key, stream in reversed(self._streams.items()):
            if key[0] == row_class:
                yield key[1], stream
                left -= 1
                if not left:
                    return
