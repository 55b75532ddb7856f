"""Workers that hold a lane's members between them: they run the same rows at once, each its own members.

A team is read like a worker (`Runner` is either), so that lanes and fillers need not know which they have.
Made anew for each decision; owns nothing.
"""

from __future__ import annotations

from collections.abc import Collection

from server.scheduling.worker_state import WorkerState

__all__ = ["Runner", "Team", "TeamPart"]

TeamPart = tuple[WorkerState, tuple[str, ...]]  # a worker, and the members that it runs


class Team:
    """`parts`: two or more; every member of the lane is in one of them."""

    __slots__ = ("name", "parts")

    def __init__(self, parts: tuple[TeamPart, ...]) -> None:
        self.parts = parts
        self.name = "+".join(worker.name for worker, _ in parts)

    @property
    def is_idle(self) -> bool:
        """Whether no batch is on any of them."""
        return all(worker.is_idle for worker, _ in self.parts)

    def has_room(self, now_s: float) -> bool:
        """Whether all of them may be sent a batch."""
        return all(worker.has_room(now_s) for worker, _ in self.parts)

    def free_at_s(self, now_s: float) -> float:
        """When, by prediction, the last of them has run all that was sent; never in the past."""
        return max(worker.free_at_s(now_s) for worker, _ in self.parts)

    def running(self, members: Collection[str]) -> list[TeamPart]:
        """Which worker runs which of `members`; of all of them if none is named."""
        if not members:
            return list(self.parts)
        found = [(worker, tuple(m for m in part if m in members)) for worker, part in self.parts]
        return [part for part in found if part[1]]


Runner = WorkerState | Team
