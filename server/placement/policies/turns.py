"""Whose load a link may begin now without costing another its goal.

Moore and Hodgson's rule, as for batches (server/scheduling/arbitration.py): line up what rows wait for by
when its load must begin; whenever one would begin too late, give up the one of those lined up so far that
brings the fewest rows a second. Of what is left, each may go before its turn if all that it passes still
begin in time. So nothing is lost as long as all can be met, and under overload the link's time goes where it
brings most. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from server.placement.policy import GroupKeys

__all__ = ["Awaited", "spare_s"]


@dataclass(frozen=True, slots=True)
class Awaited:
    """A load that rows wait for: how many, what it takes, and in how many seconds it must have begun."""

    group: GroupKeys
    rows: float
    load_s: float
    slack_s: float


def spare_s(awaited: Iterable[Awaited], links: int) -> tuple[Mapping[GroupKeys, float], float]:
    """How long the load of each may take if it begins now, and how long any other's may; inf = for ever.

    links: how many there are to share the loads.
    """
    kept: list[Awaited] = []
    begins_s = 0.0  # the next one, after those kept
    for one in sorted(awaited, key=lambda one: one.slack_s):
        kept.append(one)
        if begins_s > one.slack_s:
            worst = min(kept, key=lambda other: other.rows / other.load_s)
            kept.remove(worst)
            begins_s -= worst.load_s / links
        begins_s += one.load_s / links
    found: dict[GroupKeys, float] = {}
    spare, begins_s = math.inf, 0.0
    for one in kept:
        found[one.group] = spare * links
        spare = min(spare, one.slack_s - begins_s)
        begins_s += one.load_s / links
    return found, spare * links
