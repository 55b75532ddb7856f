"""Whether a member is broken, told without labels: by how often it names the same class as each other one.

    held-out rows → expected share of rows on which each pair agrees
    the last rows that all members answered → pairs that agree less, beyond chance → who is in all of them

A member that breaks takes all of its pairs with it; the others still agree among themselves. So of the
members those are broken that are in every pair that fell, if fewer than half of all explain them, and no
other so few would. Where rows have become harder, all pairs fall, and nobody is blamed: labels would tell. Of
two members nobody knows which one it is. Pure; numpy. Knows neither labels nor weights.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from server.ensemble.breakage import Expected, deviation, is_off

__all__ = ["RECENT_ROWS", "Fall", "agreed", "broken", "is_back", "pairs_of", "shares_agreed"]

RECENT_ROWS = 100
_SURPRISE = 4.5  # z: as of a member that errs

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Fall:
    """members: who is broken, ascending · agrees: of the last `rows` of the first of them, with the others it
    named the same class in this share, and `expected` was expected
    """

    members: tuple[int, ...]
    rows: int
    agrees: float
    expected: float


def pairs_of(members: int) -> list[Pair]:
    """Every two of so many members, in the order in which all that is said of pairs has them."""
    return list(combinations(range(members), 2))


def agreed(named: ArrayLike) -> list[tuple[bool, ...]]:
    """By row, of each pair, whether both name the same class. named: [members, rows]."""
    alike = _alike(named)
    return [tuple(row) for row in np.stack(alike, axis=1).tolist()] if alike else []


def shares_agreed(named: ArrayLike) -> tuple[float, ...]:
    """Of each pair, the share of the rows on which both name the same class. named: [members, rows]."""
    return tuple(float(each.mean()) for each in _alike(named))


def _alike(named: ArrayLike) -> list[NDArray[np.bool_]]:
    told = np.asarray(named)
    return [told[one] == told[other] for one, other in pairs_of(len(told))]


def broken(
    members: int, recent: Sequence[Sequence[bool]], expected: Sequence[float], rows: int
) -> Fall | None:
    """Who of so many members is broken, by the last rows; None for nobody, or where that cannot be told.

    recent: as `agreed`, the newest last · expected: of each pair, the share of `rows` held-out rows.
    """
    pairs = pairs_of(members)
    most = recent[-RECENT_ROWS:]
    fallen: set[Pair] = set()
    for place, pair in enumerate(pairs):
        apart = [not row[place] for row in most]
        told = deviation("", apart, Expected(1 - expected[place], rows))
        if told is not None and told.z >= _SURPRISE:
            fallen.add(pair)
    if not fallen:
        return None
    for size in range(1, (members - 1) // 2 + 1):
        blamed = [
            each
            for each in combinations(range(members), size)
            if all(not set(pair).isdisjoint(each) for pair in fallen)
        ]
        if len(blamed) == 1:
            return _fall(blamed[0], pairs, most, expected)
        if blamed:
            return None
    return None


def is_back(
    member: int,
    off: Collection[int],
    members: int,
    recent: Sequence[Sequence[bool]],
    expected: Sequence[float],
    rows: int,
) -> bool:
    """Whether a member that was broken agrees with those that are not as it did on held-out rows.

    off: all that were broken · members, recent, expected, rows: as for `broken`; of fewer than 100 rows
    nobody is back.
    """
    if len(recent) < RECENT_ROWS:
        return False
    most = recent[-RECENT_ROWS:]
    for place, pair in enumerate(pairs_of(members)):
        if member in pair and set(pair).isdisjoint(set(off) - {member}):
            apart = sum(not row[place] for row in most)
            known = Expected(1 - expected[place], rows)
            if apart > len(most) * known.wrong and is_off(apart, len(most), known):
                return False
    return True


def _fall(
    blamed: tuple[int, ...],
    pairs: Sequence[Pair],
    recent: Sequence[Sequence[bool]],
    expected: Sequence[float],
) -> Fall:
    mine = [
        place for place, pair in enumerate(pairs) if blamed[0] in pair and len(set(pair) & set(blamed)) == 1
    ]
    told = np.asarray(recent)[:, mine]
    return Fall(blamed, len(recent), float(told.mean()), float(np.mean([expected[place] for place in mine])))
