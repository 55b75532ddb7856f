"""How much of a worker each pool may count on, where several functions share it.

A pool fits its plan to the time it has. Did each of several take a worker for its own, all would follow rich
plans, and together ask for more than there is. So each counts on its share: what functions that have no
choice leave of the worker, divided by what every pool needs at the least, of its cheapest member; and never
less than its part in all that is needed. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

__all__ = ["Need", "Pace", "shares_of"]

Whose = TypeVar("Whose")


class Pace:
    """Rows a second, of late: those of a goal ago count for a third of those that come now.

    goal_s: the goal, or as long as they are to count for; the same each time.
    """

    __slots__ = ("_at_s", "_rate")

    def __init__(self) -> None:
        self._at_s = -math.inf
        self._rate = 0.0

    def came(self, now_s: float, rows: int, goal_s: float) -> None:
        """Rows came."""
        self._rate = self.rate(now_s, goal_s) + rows / goal_s
        self._at_s = now_s

    def rate(self, now_s: float, goal_s: float) -> float:
        """Rows a second by now."""
        return self._rate * math.exp((self._at_s - now_s) / goal_s)


@dataclass(frozen=True, slots=True)
class Need:
    """What a lane needs of the workers that it may use, at the least: seconds of one of them a second.

    has_choice: it could do with less than it would like.
    """

    of_s: float
    workers: Sequence[str]
    has_choice: bool

    @property
    def part_s(self) -> float:
        """Of each of these workers."""
        return self.of_s / len(self.workers)


def shares_of(needs: Iterable[tuple[Whose, Need]]) -> dict[Whose, Mapping[str, float]]:
    """Of each that has a choice, what share of which worker is its own."""
    told = [(whose, need) for whose, need in needs if need.workers]
    firm: dict[str, float] = {}
    loose: dict[str, float] = {}
    for _, need in told:
        of = loose if need.has_choice else firm
        for worker in need.workers:
            of[worker] = of.get(worker, 0.0) + need.part_s
    return {
        whose: {worker: _share(need.part_s, loose[worker], firm.get(worker, 0.0)) for worker in need.workers}
        for whose, need in told
        if need.has_choice
    }


def _share(mine_s: float, loose_s: float, firm_s: float) -> float:
    if not mine_s:
        return 1.0
    return max((1 - firm_s) * mine_s / loose_s, mine_s / (loose_s + firm_s))
