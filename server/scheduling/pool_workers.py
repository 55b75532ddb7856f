"""Who holds the members of an ensemble, and when they are free.

Knows nothing of rows, but how many of them make a batch take how long.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from server.ensemble.selection import Ensemble

__all__ = ["PoolMember", "PoolWorker", "PoolWorkers"]


@dataclass(slots=True, eq=False)
class PoolWorker:
    """A worker as a pool sees it. free_at_s: now → when it can start a batch, where others know that."""

    name: str
    members: tuple[int, ...]
    devices: frozenset[int]  # of the ensemble, where these are
    cheapest: int  # of them
    free_at_s: Callable[[float], float] | None
    end_s: float = -math.inf  # when what it runs of this pool is predicted to end
    batches: set[int] = field(default_factory=set)
    asleep_s: float = -math.inf  # until when it has nothing to do, if nothing happens

    def starts_s(self, now_s: float) -> float:
        """When it can start a batch; never in the past."""
        return max(now_s, self.end_s) if self.free_at_s is None else max(now_s, self.free_at_s(now_s))


@dataclass(slots=True, eq=False)
class PoolMember:
    """`latency_s`: l̂(b) · batching: the state of the batching policy for it."""

    latency_s: Callable[[int], float]
    batching: dict[str, Any]
    holders: list[PoolWorker] = field(default_factory=list)


class PoolWorkers:
    """The workers by their names, and the members by their numbers."""

    def __init__(self, ensemble: Ensemble, members: Sequence[PoolMember]) -> None:
        self.ensemble = ensemble
        self._device_count = ensemble.devices
        self.members = tuple(members)
        self.by_name: dict[str, PoolWorker] = {}
        self.shares: Mapping[str, float] = {}  # of those that others use too

    def set(
        self,
        name: str,
        members: Collection[int],
        free_at_s: Callable[[float], float] | None = None,
        *,
        lives: bool = False,
    ) -> set[int]:
        """Add or update a worker; with no members it is gone. The batches that are lost with it: none, where
        it lives, and ends what it has.
        """
        known = self.by_name.get(name)
        lost: set[int] = set()
        if not members:
            if self.by_name.pop(name, None) is not None and known is not None and not lives:
                lost = known.batches
        else:
            worker = PoolWorker(
                name, tuple(sorted(members)), self._devices(members), self._cheapest(members), free_at_s
            )
            if known is not None:
                worker.end_s, worker.batches = known.end_s, known.batches
            self.by_name[name] = worker
        for number, member in enumerate(self.members):
            member.holders = [each for each in self.by_name.values() if number in each.members]
        return lost

    def follow(self, ensemble: Ensemble) -> None:
        """Other costs, of the same members."""
        self.ensemble = ensemble
        self._device_count = ensemble.devices
        for worker in self.by_name.values():
            worker.devices, worker.cheapest = self._devices(worker.members), self._cheapest(worker.members)

    def awake(self) -> None:
        """Something has happened: whoever had nothing to do may have."""
        for worker in self.by_name.values():
            worker.asleep_s = -math.inf

    def is_held(self, members: Collection[int]) -> bool:
        """Whether somebody holds one of them."""
        known = self.members
        for member in members:  # noqa: SIM110  # thrice as fast as a generator, and asked of every group
            if known[member].holders:
                return True
        return False

    def finish_s(self, now_s: float, member: int, rows: int) -> float:
        """When the member could have answered so many rows; inf if nobody holds it."""
        known = self.members[member]
        starts_s = min((worker.starts_s(now_s) for worker in known.holders), default=math.inf)
        return starts_s + known.latency_s(rows)

    def busy_s(self, now_s: float) -> tuple[list[float], list[float]]:
        """By device of the ensemble: workers that hold its members, and seconds that they are at it still.

        One that holds members of several counts for each in part, and so does one that others use too.
        """
        workers, busy_s = [0.0] * self._device_count, [0.0] * self._device_count
        for worker in self.by_name.values():
            left_s = worker.starts_s(now_s) - now_s
            share = self.shares.get(worker.name, 1.0) / len(worker.devices)
            for device in worker.devices:
                workers[device] += share
                busy_s[device] += share * left_s
        return workers, busy_s

    def _devices(self, members: Collection[int]) -> frozenset[int]:
        return frozenset(self.ensemble.members[member].device for member in members)

    def _cheapest(self, members: Collection[int]) -> int:
        return min(members, key=lambda member: self.ensemble.members[member].cost_s)
