"""Who comes after whom: the groups' order of visits, learned as rows come.

A visit is what comes for one group until another's rows come. So a group never follows itself: clumps of rows
for one would otherwise hide what comes after them. Pure; costs a microsecond or two a submission.
"""

from __future__ import annotations

from operator import itemgetter

from server.placement.policy import GroupKeys, Visits

__all__ = ["Succession"]

_NEWEST = 0.2  # of what follows a group, and of the rows of a visit
_NEWEST_GAP = 0.05
_LEAST = 0.02  # what follows less often is forgotten, so that no group has more than a dozen successors


class Succession:
    """The visit under way, and what is known of those before."""

    def __init__(self) -> None:
        self._last: GroupKeys = ()
        self._since_s = 0.0
        self._gap_s = 0.0
        self._came = 0  # rows of the visit under way
        self._rows: dict[GroupKeys, float] = {}
        self._after: dict[GroupKeys, dict[GroupKeys, float]] = {}
        self._next: dict[GroupKeys, tuple[GroupKeys, float]] = {}

    def came(self, now_s: float, group: GroupKeys, rows: int) -> None:
        """Rows came for the group."""
        last = self._last
        if group == last:
            self._came += rows
            return
        if last:
            gap_s = now_s - self._since_s
            self._gap_s += (_NEWEST_GAP if self._gap_s else 1.0) * (gap_s - self._gap_s)
            before = self._rows.get(last)
            self._rows[last] = self._came if before is None else before + _NEWEST * (self._came - before)
            after = self._after.setdefault(last, {})
            self._count(after, group)
            self._next[last] = max(after.items(), key=itemgetter(1))
        self._last, self._since_s, self._came = group, now_s, rows

    def forget(self, group: GroupKeys) -> None:
        """The group is served no longer."""
        for kept in (self._rows, self._after, self._next):
            kept.pop(group, None)
        for before, after in self._after.items():
            if after.pop(group, None) is None:
                continue
            self._next.pop(before, None)
            if after:
                self._next[before] = max(after.items(), key=itemgetter(1))
        if self._last == group:
            self._last = ()

    def visits(self) -> Visits:
        """As policies see it."""
        return Visits(self._last, self._since_s, self._gap_s, self._rows, self._next)

    def _count(self, after: dict[GroupKeys, float], group: GroupKeys) -> None:
        kept = 1.0 - _NEWEST
        for other, share in list(after.items()):
            if share * kept < _LEAST:
                del after[other]
            else:
                after[other] = share * kept
        after[group] = after.get(group, 0.0) + _NEWEST
