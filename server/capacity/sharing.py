"""What functions take of workers that they share, and the rows that wait too long for each other's passes.

A worker runs one pass at a time and breaks none off. A row that comes during another's pass, and may wait for
less than what is left of it, is too late on that worker; it is late where that is so on each worker that
could answer it. Rows come at any moment alike, and workers are taken to be busy independently of each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

__all__ = ["Place", "Sharing", "too_late_share"]


@dataclass(frozen=True, slots=True)
class Place:
    """A copy. rows_per_s: of one that has its worker for itself; pass_s: of the passes that give them."""

    worker: str
    rows_per_s: float
    pass_s: float


@dataclass(frozen=True, slots=True)
class _Taken:
    """Of a worker's time, the share that a function's passes take; seconds of its longest."""

    share: float
    pass_s: float

    def too_late(self, slack_s: float) -> float:
        """The share of the time in which a row that may wait so long comes too late for these passes."""
        return self.share * too_late_share(self.pass_s, slack_s)


_NOTHING = _Taken(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class _Booked:
    rows_per_s: float
    goal_s: float
    places: tuple[Place, ...]


class Sharing:
    """What each function takes of each worker, as it was booked last."""

    def __init__(self, workers: Iterable[str]) -> None:
        self._by_worker: dict[str, dict[str, _Taken]] = {name: {} for name in workers}
        self._booked: dict[str, _Booked] = {}
        # Function → of each of its copies the worker, how long a row may wait, the share too late then.
        self._waits: dict[str, list[tuple[str, float, float]]] = {}

    def book(self, function: str, rows_per_s: float, goal_s: float, places: Iterable[Place]) -> None:
        """So many rows of it come, and are spread over these copies; what was booked before is over."""
        if function in self._booked:
            for place in self._booked[function].places:
                self._by_worker[place.worker].pop(function, None)
        booked = _Booked(rows_per_s, goal_s, tuple(places))
        self._booked[function] = booked
        for worker, taken in _taken(rows_per_s, booked.places).items():
            self._by_worker[worker][function] = taken
        self._waits.clear()

    @property
    def is_shared(self) -> bool:
        """Whether any worker has copies of more than one function."""
        return any(len(there) > 1 for there in self._by_worker.values())

    def taken(self, worker: str, without: str = "") -> float:
        """The share of its time that functions take, but that one."""
        return sum(one.share for name, one in self._by_worker[worker].items() if name != without)

    def blocked(self, function: str, worker: str, slack_s: float) -> float:
        """The share of the time in which a row that may wait so long comes too late for others' passes."""
        others = self._by_worker[worker].items()
        return min(1.0, sum(one.too_late(slack_s) for name, one in others if name != function))

    def late_beside(self, function: str, places: Iterable[Place]) -> Mapping[str, float]:
        """Other function → by how much more of its rows a second are late if this one's copies are these.

        Beside what is booked: less than 0, where its passes leave their workers.
        """
        booked = self._booked[function]
        after = _taken(booked.rows_per_s, places)
        workers = {*after, *(place.worker for place in booked.places)}
        changed = {
            worker: (self._by_worker[worker].get(function, _NOTHING), after.get(worker, _NOTHING))
            for worker in workers
        }
        return self._late_by(function, {worker: one for worker, one in changed.items() if one[0] != one[1]})

    def late_by_one_more(self, function: str, place: Place) -> Mapping[str, float]:
        """The same of one copy more, which takes its part of the rows; of its own, those late there."""
        booked = self._booked[function]
        rows_per_s = min(booked.rows_per_s, place.rows_per_s) / (1 + len(booked.places))
        taken = _Taken(rows_per_s / place.rows_per_s, place.pass_s)
        late = dict(self._late_by(function, {place.worker: (_NOTHING, taken)}))
        slack_s = booked.goal_s - place.pass_s
        late[function] = booked.rows_per_s * self.blocked(function, place.worker, slack_s)
        return late

    def _late_by(self, function: str, changed: Mapping[str, tuple[_Taken, _Taken]]) -> Mapping[str, float]:
        others = {name for worker in changed for name in self._by_worker[worker]} - {function}
        return {name: self._booked[name].rows_per_s * self._more_late(name, changed) for name in others}

    def _more_late(self, function: str, changed: Mapping[str, tuple[_Taken, _Taken]]) -> float:
        """changed: worker → what another function takes of it, before and after."""
        before = after = 1.0
        for worker, slack_s, too_late in self._waits_of(function):
            before *= min(1.0, too_late)
            if worker in changed:
                was, will_be = changed[worker]
                too_late += will_be.too_late(slack_s) - was.too_late(slack_s)
            after *= min(1.0, max(0.0, too_late))
        return after - before

    def _waits_of(self, function: str) -> list[tuple[str, float, float]]:
        if function not in self._waits:
            booked = self._booked[function]
            self._waits[function] = [
                (place.worker, slack_s, sum(one.too_late(slack_s) for one in there.values()))
                for place in booked.places
                for slack_s, there in [(booked.goal_s - place.pass_s, self._by_worker[place.worker])]
            ]
        return self._waits[function]


def too_late_share(pass_s: float, slack_s: float) -> float:
    """Of a pass's time, the share in which a row that comes, and may wait so long, would wait too long."""
    return min(1.0, max(0.0, 1 - slack_s / pass_s)) if pass_s > 0 else 0.0


def _taken(rows_per_s: float, places: Iterable[Place]) -> Mapping[str, _Taken]:
    """By worker; a copy takes rows by what it gives."""
    there = list(places)
    gives = math.fsum(place.rows_per_s for place in there)
    found: dict[str, _Taken] = {}
    for place in there:
        before = found.get(place.worker, _NOTHING)
        share = before.share + rows_per_s / gives
        found[place.worker] = _Taken(share, max(before.pass_s, place.pass_s))
    return found
