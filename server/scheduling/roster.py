"""The workers there are, and which of them hold what a lane needs: found once, until a worker's view changes.

There may be dozens, and every decision asks. Knows no queue and no clock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from server.scheduling.lanes import Lane
from server.scheduling.terms import WorkerView
from server.scheduling.worker_state import WorkerState

__all__ = ["Roster"]


class Roster:
    """Workers by name, in the order in which they came."""

    def __init__(self) -> None:
        self._workers: dict[str, WorkerState] = {}
        self._holders: dict[Lane, tuple[WorkerState, ...]] = {}
        self._able: dict[Lane, tuple[WorkerState, ...]] = {}

    @property
    def all(self) -> Collection[WorkerState]:
        """All of them."""
        return self._workers.values()

    def __len__(self) -> int:
        return len(self._workers)

    def __iter__(self) -> Iterator[WorkerState]:
        return iter(self._workers.values())

    def show(self, view: WorkerView) -> WorkerState:
        """A worker as it is from now on; one that is not alive is on the roster no more."""
        worker = self._workers.get(view.name)
        if worker is None:
            worker = self._workers[view.name] = WorkerState(view)
            self.forget()
        before, worker.view = worker.view, view
        if not view.alive:
            del self._workers[view.name]
        if replace(view, resident=before.resident) != before:
            self.forget()
        elif moved := before.resident ^ view.resident:
            for found in (self._holders, self._able):
                for lane in [lane for lane in found if not moved.isdisjoint(lane.names)]:
                    del found[lane]
        return worker

    def forget(self) -> None:
        """Lanes are others from now on, or need other members."""
        self._holders.clear()
        self._able.clear()

    def holders(self, lane: Lane) -> Sequence[WorkerState]:
        """Those that hold all members of the lane."""
        found = self._holders.get(lane)
        if found is None:
            found = self._holders[lane] = tuple(each for each in self if lane.can_run_on(each))
        return found

    def able(self, lane: Lane) -> Sequence[WorkerState]:
        """The same, less those that the shell keeps for itself; the near ones first."""
        found = self._able.get(lane)
        if found is None:
            free = (each for each in self.holders(lane) if not each.is_reserved)
            found = self._able[lane] = tuple(sorted(free, key=lambda each: each.view.is_far))
        return found
