"""What is known of a row once some members have answered it, and what that is worth: counted, not assumed.

A state of evidence is (the members that answered, in which of a few bins their combined top probability
falls). How often the answer is right there, and to which states another member leads, is counted on held-out
rows, so that the correlation of members is contained. Pure; standard library and numpy. Knows neither
devices nor prices (plan.py), nor how members are combined.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "NOTHING",
    "EvidenceStates",
    "carried_over",
    "evidence_of_subsets",
    "fit_evidence",
    "members_of",
    "renewed",
    "subset_of",
]

Floats = NDArray[np.float64]

NOTHING = 0  # the state of a row that nobody has answered
_BINS, _FEW_BINS, _FEW_ROWS = 8, 4, 400
_MOST_MEMBERS = 32
_KAPPA = 20.0  # rows that the mean over all bins counts for, beside those of a bin


@dataclass(frozen=True, slots=True, eq=False)
class EvidenceStates:
    """The states of an ensemble. A subset of members is a bit mask; state 0 is `NOTHING`.

    subsets: those that were counted, smaller ones first · edges: of each subset's bins, ascending
    first: of each subset, the number of its first state · right: by state, how often the answer is right
    rows: by state, how many independent held-out rows were in it
    following: (subset, member) → rows: states of the subset, columns: states with that member's answer too
    """

    members: int
    subsets: tuple[int, ...]
    edges: Mapping[int, tuple[float, ...]]
    first: Mapping[int, int]
    right: Floats
    rows: Floats
    following: Mapping[tuple[int, int], Floats]
    _gains: dict[tuple[int, int], float] = field(default_factory=dict, init=False, repr=False)

    @property
    def states(self) -> int:
        """How many there are, `NOTHING` included."""
        return len(self.right)

    def state_of(self, subset: int, confidence: float) -> int:
        """The state of a row that `subset` answered with that combined top probability.

        Of a subset that was not counted nothing is known: `NOTHING`.
        """
        if subset not in self.edges:
            return NOTHING
        if confidence != confidence:  # no number: it is trusted least
            return self.first[subset]
        return self.first[subset] + bisect_right(self.edges[subset], confidence)

    def states_each(self, subset: int, confidences: Sequence[float]) -> list[int]:
        """As `state_of`, of many rows that the same subset answered."""
        total = sum(confidences)
        if subset not in self.edges or total != total:  # one is no number
            return [self.state_of(subset, each) for each in confidences]
        first, bin_of = self.first[subset], partial(bisect_right, self.edges[subset])
        return [first + number for number in map(bin_of, confidences)]

    def states_of(self, subset: int) -> slice:
        """The states of a subset."""
        first = self.first[subset]
        return slice(first, first + (len(self.edges[subset]) + 1 if subset else 1))

    def accuracy(self, subset: int) -> float:
        """How often the subset is right over all rows; 0 for nobody. KeyError if it was not counted."""
        if not subset:
            return 0.0
        states = self.states_of(subset)
        return float(np.average(self.right[states], weights=self.rows[states]))

    def gain(self, subset: int, member: int) -> float:
        """How much likelier right a row of the subset is with that member too; 0 where it was not counted."""
        known = self._gains.get((subset, member))
        if known is None:
            both = subset | 1 << member
            is_known = both in self.first and subset in self.first
            known = max(0.0, self.accuracy(both) - self.accuracy(subset)) if is_known else 0.0
            self._gains[subset, member] = known
        return known

    def to_json(self) -> dict[str, Any]:
        """All of it, as plain values."""
        return {
            "members": self.members,
            "subsets": list(self.subsets),
            "edges": [list(self.edges[subset]) for subset in self.subsets],
            "right": self.right.tolist(),
            "rows": self.rows.tolist(),
            "following": [
                [subset, member, table.tolist()] for (subset, member), table in self.following.items()
            ],
        }

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> EvidenceStates:
        """What `to_json` wrote. Raises KeyError, TypeError or ValueError for anything else."""
        subsets = tuple(int(subset) for subset in state["subsets"])
        edges = {s: tuple(map(float, e)) for s, e in zip(subsets, state["edges"], strict=True)}
        right = np.asarray(state["right"], np.float64)
        rows = np.asarray(state["rows"], np.float64)
        first = _numbered(subsets, edges)
        following = {(int(s), int(m)): np.asarray(table, np.float64) for s, m, table in state["following"]}
        found = cls(int(state["members"]), subsets, {0: (), **edges}, first, right, rows, following)
        found._check()
        return found

    def _check(self) -> None:
        """Raises ValueError where the parts do not fit one another: rows would be looked up beyond them."""
        everybody = (1 << self.members) - 1 if 0 < self.members <= _MOST_MEMBERS else 0
        if not everybody or not self.subsets or len(set(self.subsets)) != len(self.subsets):
            raise ValueError(f"its evidence is of {self.members} members and {len(self.subsets)} subsets")
        if not all(0 < subset <= everybody for subset in self.subsets):
            raise ValueError(f"its evidence names subsets of more than {self.members} members")
        for subset, edges in self.edges.items():
            if not all(map(math.isfinite, edges)) or list(edges) != sorted(edges):
                raise ValueError(f"the edges of subset {subset} do not ascend")
        states = 1 + sum(len(self.edges[subset]) + 1 for subset in self.subsets)
        for name, numbers in (("right", self.right), ("rows", self.rows)):
            if numbers.shape != (states,) or not np.isfinite(numbers).all() or (numbers < 0).any():
                raise ValueError(f"its {name} are not {states} numbers, one for each state")
        for (subset, member), table in self.following.items():
            child = subset | 1 << member if 0 <= member < self.members else subset
            if child == subset or subset not in self.edges or child not in self.edges:
                raise ValueError(f"what follows on subset {subset} and member {member} is of no states")
            shape = len(self.edges[subset]) + 1, len(self.edges[child]) + 1
            if table.shape != shape or not np.isfinite(table).all():
                raise ValueError(f"what follows on subset {subset} and member {member} is no table of shares")


def evidence_of_subsets(members: int, right: Mapping[int, float]) -> EvidenceStates:
    """States that tell subsets apart, and nothing of how sure they are. right: how often each one is.

    Raises ValueError where a subset is missing.
    """
    subsets = tuple(sorted(right, key=lambda subset: (subset.bit_count(), subset)))
    if sorted(subsets) != list(range(1, 1 << members)):
        raise ValueError(f"it is not known how often every subset of {members} members is right")
    edges: dict[int, tuple[float, ...]] = {0: (), **dict.fromkeys(subsets, ())}
    following = {
        (subset, member): np.ones((1, 1))
        for subset in (0, *subsets)
        for member in range(members)
        if not subset >> member & 1
    }
    known = np.array([0.0, *(right[subset] for subset in subsets)])
    return EvidenceStates(
        members, subsets, edges, _numbered(subsets, edges), known, np.ones(len(known)), following
    )


def members_of(subset: int) -> tuple[int, ...]:
    """The numbers of its members, ascending."""
    return tuple(member for member in range(subset.bit_length()) if subset >> member & 1)


def subset_of(members: Iterable[int]) -> int:
    """The bit mask of these members, each named once."""
    return sum(1 << member for member in members)


def fit_evidence(
    members: int,
    confidence: Mapping[int, Sequence[float] | Floats],
    correct: Mapping[int, Sequence[bool] | NDArray[np.bool_]],
    observations: int | None = None,
) -> EvidenceStates:
    """Count the states on held-out rows.

    confidence, correct: by subset, for the same n rows: the combined top probability, and whether the
    combined answer is right. Every single member must be among the subsets. observations: how many of the
    rows are independent (rows of one entity are one), all by default. Bins are quantiles, 8 of them, 4 below
    400 observations; each is shrunk to the mean of its subset as if that were 20 observations more. Raises
    ValueError for no rows, or different numbers of them, and KeyError for a member that is missing.
    """
    sizes = {len(confidence[1 << member]) for member in range(members)}
    sizes.update(len(table[subset]) for table in (confidence, correct) for subset in confidence)
    if len(sizes) != 1 or 0 in sizes:
        raise ValueError(f"evidence needs the same rows, at least one, for every subset, not {sorted(sizes)}")
    rows = sizes.pop()
    known = rows if observations is None else min(rows, observations)
    subsets = tuple(sorted(confidence, key=lambda subset: (subset.bit_count(), subset)))
    shares = np.arange(1, bins := _BINS if known >= _FEW_ROWS else _FEW_BINS) / bins
    edges: dict[int, tuple[float, ...]] = {0: ()}
    number: dict[int, NDArray[np.int64]] = {0: np.zeros(rows, np.int64)}  # of each row's bin
    for subset in subsets:
        told = np.nan_to_num(np.asarray(confidence[subset], np.float64), nan=-np.inf)
        edges[subset] = _edges(told, shares)
        number[subset] = np.searchsorted(edges[subset], told, side="right")
    first = _numbered(subsets, edges)
    right = np.zeros(1 + sum(len(edges[subset]) + 1 for subset in subsets))
    counts = np.full(len(right), float(known))
    following: dict[tuple[int, int], Floats] = {}
    for subset in (0, *subsets):
        width = len(edges[subset]) + 1
        counts[first[subset] : first[subset] + width] = (
            np.bincount(number[subset], minlength=width) * known / rows
        )
        if subset:
            hits = np.asarray(correct[subset], np.float64)
            right[first[subset] : first[subset] + width] = _means(
                number[subset], hits[:, None], width, _KAPPA * rows / known
            )[:, 0]
        for member in range(members):
            child = subset | 1 << member
            if child != subset and child in first:
                reached = np.eye(len(edges[child]) + 1)[number[child]]
                # Not shrunk: shrunk twice, an answer promises a gain where nothing is learned.
                following[subset, member] = _means(number[subset], reached, width)
    return EvidenceStates(members, subsets, edges, first, right, counts, following)


def renewed(
    known: EvidenceStates,
    anew: Collection[int],
    confidence: Mapping[int, Floats],
    correct: Mapping[int, NDArray[np.bool_]],
) -> EvidenceStates:
    """The states where some subsets are counted anew, on other rows; of the others what is known holds.

    anew: the subsets, and with each all that contain it. confidence, correct: as for `fit_evidence`, of the
    new rows. How often a subset is right is counted as a difference to its largest part of which more is
    known: few rows say that well, since the parts err on the same rows. Raises KeyError for a subset that is
    not told of.
    """
    rows = len(confidence[next(iter(known.subsets))])
    bins = _BINS if rows >= _FEW_ROWS else _FEW_BINS
    shares = np.arange(1, bins) / bins
    edges: dict[int, tuple[float, ...]] = {0: ()}
    number: dict[int, NDArray[np.int64]] = {0: np.zeros(rows, np.int64)}
    for subset in known.subsets:
        told = np.nan_to_num(np.asarray(confidence[subset], np.float64), nan=-np.inf)
        edges[subset] = _edges(told, shares) if subset in anew else known.edges[subset]
        number[subset] = np.searchsorted(edges[subset], told, side="right")
    first = _numbered(known.subsets, edges)
    states = 1 + sum(len(edges[subset]) + 1 for subset in known.subsets)
    right, counts = np.zeros(states), np.full(states, known.rows[NOTHING])
    following = dict(known.following)
    for subset in (0, *known.subsets):
        width = len(edges[subset]) + 1
        here = slice(first[subset], first[subset] + width)
        if subset in anew:
            hits = np.asarray(correct[subset], np.float64)
            part = _largest_part(known, subset, anew)
            if part:
                believed = known.right[known.states_of(part)][number[part]]
                hits = hits - np.asarray(correct[part], np.float64) + believed
            means = _means(number[subset], hits[:, None], width, _KAPPA)[:, 0]
            right[here] = np.clip(means, 0.0, 1.0)
            counts[here] = np.bincount(number[subset], minlength=width)
        else:
            right[here], counts[here] = (
                known.right[known.states_of(subset)],
                known.rows[known.states_of(subset)],
            )
        for member in range(known.members):
            child = subset | 1 << member
            if child != subset and child in anew:
                reached = np.eye(len(edges[child]) + 1)[number[child]]
                following[subset, member] = _means(number[subset], reached, width)
    return EvidenceStates(known.members, known.subsets, edges, first, right, counts, following)


def carried_over(before: EvidenceStates, after: EvidenceStates) -> list[int]:
    """By state of `before`, the state of `after` that a row is in then: of the same subset, and as sure.

    As sure among the rows of its subset: confidences themselves may mean something else by now. `NOTHING`
    where `after` does not know the subset.
    """
    states = [NOTHING] * before.states
    for subset in before.subsets:
        if subset not in after.first:
            continue
        old, new = before.states_of(subset), after.states_of(subset)
        bins, others = old.stop - old.start, new.stop - new.start
        for number in range(bins):
            states[old.start + number] = new.start + (2 * number + 1) * others // (2 * bins)
    return states


def _largest_part(known: EvidenceStates, subset: int, anew: Collection[int]) -> int:
    """The largest part of a subset that is not counted anew; 0 where there is none."""
    parts = [each for each in known.subsets if each & subset == each and each not in anew]
    return max(parts, key=lambda each: each.bit_count(), default=0)


def _edges(told: Floats, shares: Floats) -> tuple[float, ...]:
    """Where the bins of these confidences end: at the quantiles."""
    finite = told[np.isfinite(told)]
    return tuple(np.unique(np.quantile(finite, shares)).tolist()) if len(finite) else ()


def _means(number: NDArray[np.int64], values: Floats, bins: int, kappa: float = 1e-9) -> Floats:
    """The mean of `values` (rows by columns) in each bin, drawn to that over all bins as by `kappa` rows."""
    sums = np.zeros((bins, values.shape[1]))
    np.add.at(sums, number, values)
    counts = np.bincount(number, minlength=bins)[:, None]
    means: Floats = (sums + kappa * values.mean(axis=0)) / (counts + kappa)
    return means


def _numbered(subsets: Sequence[int], edges: Mapping[int, Sequence[float]]) -> dict[int, int]:
    first, following = {0: NOTHING}, 1
    for subset in subsets:
        first[subset] = following
        following += len(edges[subset]) + 1
    return first
