"""Rows that are being computed, and who else waits for the same ones: each is computed once.

Who asks first for a key leads its *flight*; who asks for it meanwhile waits. When the leader has its answer,
or will never have one, whoever waits is handed back, to be answered or to ask anew. A row with a goal does
not wait for one without: that may take as long as there is other work. It computes its own, and whoever
comes after it waits for that one. Pure; knows neither calls nor answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import repeat
from operator import is_
from typing import Generic, TypeVar

__all__ = ["Flight", "InFlight"]

Who = TypeVar("Who")


@dataclass(slots=True, eq=False)
class Flight(Generic[Who]):
    """Rows that one call has under way, by their keys. is_urgent: whether they have a goal. waiting: by key,
    who waits, and for which of his rows.
    """

    keys: Sequence[bytes | None]
    is_urgent: bool
    waiting: dict[bytes, list[tuple[Who, int]]] = field(default_factory=dict)


class InFlight(Generic[Who]):
    """All flights, by key."""

    def __init__(self) -> None:
        self._flights: dict[bytes, Flight[Who]] = {}

    def __len__(self) -> int:
        return len(self._flights)

    def lead_new(self, keys: Sequence[bytes | None], *, is_urgent: bool) -> Flight[Who] | None:
        """`lead` these; None, and nothing is done, where two are alike, or one is under way or nobody's."""
        flight: Flight[Who] = Flight(keys, is_urgent)  # an alias called is two microseconds more
        mine = dict.fromkeys(keys, flight)
        if len(mine) < len(keys) or None in mine or not self._flights.keys().isdisjoint(mine):
            return None
        self._flights.update(mine)  # type: ignore[arg-type]  # none is None
        return flight

    def may_wait(self, key: bytes, *, is_urgent: bool) -> bool:
        """Whether somebody computes a key for whom such a row can wait."""
        flight = self._flights.get(key)
        return flight is not None and (flight.is_urgent or not is_urgent)

    def wait(self, key: bytes, who: Who, row: int, *, is_urgent: bool) -> bool:
        """Wait for a key that somebody computes; False where nobody does whom this row can wait for."""
        if not self.may_wait(key, is_urgent=is_urgent):
            return False
        self._flights[key].waiting.setdefault(key, []).append((who, row))
        return True

    def lead(self, keys: Sequence[bytes | None], *, is_urgent: bool) -> Flight[Who]:
        """Compute these; whoever asks for one from now on may wait. None is nobody's. `land` it once."""
        flight: Flight[Who] = Flight(keys, is_urgent)  # an alias called is two microseconds more
        if None in keys:
            keys = [key for key in keys if key is not None]
        self._flights.update(dict.fromkeys(keys, flight))  # type: ignore[arg-type]  # none is None
        return flight

    def split(self, flight: Flight[Who], keys: Sequence[bytes]) -> Flight[Who]:
        """Some of its keys as a flight of their own, which is to be landed by itself; the others go on."""
        part: Flight[Who] = Flight(keys, flight.is_urgent)
        for key in keys:
            if self._flights.get(key) is flight:
                self._flights[key] = part
            if key in flight.waiting:
                part.waiting[key] = flight.waiting.pop(key)
        return part

    def land(self, flight: Flight[Who]) -> dict[bytes, list[tuple[Who, int]]]:
        """They are over, one way or another: by key, who waits, in the order of coming."""
        flights, keys = self._flights, flight.keys
        if all(map(is_, map(flights.get, keys), repeat(flight))):  # type: ignore[arg-type]  # None is no key
            deque(map(flights.pop, keys, repeat(None)), 0)  # type: ignore[arg-type]  # nor is it here
        else:
            for key in keys:
                if key is not None and flights.get(key) is flight:
                    del flights[key]
        waiting, flight.waiting, flight.keys = flight.waiting, {}, ()
        return waiting
