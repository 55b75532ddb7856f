"""What is known of a row once some members have answered it, and what that is worth: counted, not assumed.

A state of evidence is (the members that answered, in which of a few bins their combined top probability
falls). How often the answer is right there, and to which states another member leads, is counted on held-out
rows, so that the correlation of members is contained. Pure; standard library and numpy. Knows neither
devices nor prices (plan.py), nor how members are combined.

Where the answers counted are by weights that were fitted without the row, by folds, each row keeps its fold,
its states and whether they are right (`JudgedRows`): a plan made without a fold is followed on its rows, and
says honestly how often it is right.

Where it is known what all members together hold probable, that counts instead of single labels (belief.py),
and a subset is known by what it loses where it answers otherwise than all.
"""

from __future__ import annotations

import base64
import math
import zlib
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from server.ensemble.belief import believed_right

__all__ = [
    "NOTHING",
    "EvidenceStates",
    "JudgedRows",
    "carried_over",
    "evidence_of_subsets",
    "first_states",
    "fit_evidence",
    "members_of",
    "renewed",
    "subset_of",
]

Floats = NDArray[np.float64]

NOTHING = 0  # the state of a row that nobody has answered
_BINS, _FEW_BINS, _FEW_ROWS = 8, 4, 400
_MOST_MEMBERS = 32
_MOST_JUDGED = 100_000  # rows
_PARTS = 255  # of a probability, that a byte tells apart
_KAPPA = 20.0  # rows that the mean over all bins counts for, beside those of a bin
_BELIEVED_ROWS = 100.0  # that what all hold probable counts for, beside rows that are counted anew


@dataclass(frozen=True, slots=True, eq=False)
class JudgedRows:
    """Held-out rows, each judged by a fit of the other folds.

    fold: [rows], counted from 0 · bins: [subsets, rows], the bin among the states of that subset, in the
    order of `EvidenceStates.subsets` · correct: [subsets, rows] · probable: [subsets, rows], how probable the
    answer is by all members, in 255ths; None where that was not kept
    """

    fold: NDArray[np.uint8]
    bins: NDArray[np.uint8]
    correct: NDArray[np.bool_]
    probable: NDArray[np.uint8] | None = None

    @property
    def folds(self) -> int:
        """How many there are."""
        return int(self.fold.max()) + 1

    def right(self) -> Floats:
        """How probable it is that the answer is right, [subsets, rows]: 0 or 1 where labels alone say so."""
        return self.correct.astype(np.float64) if self.probable is None else self.probable / _PARTS

    def to_json(self) -> dict[str, Any]:
        """As the registry keeps it: a byte a row and subset, less what compressing saves."""
        return {
            "rows": len(self.fold),
            "fold": _packed(self.fold),
            "states": _packed(np.asarray(self.bins << 1 | self.correct, np.uint8)),
            **({} if self.probable is None else {"probable": _packed(self.probable)}),
        }

    @classmethod
    def from_json(cls, state: Mapping[str, Any], subsets: int) -> JudgedRows:
        """What `to_json` wrote, of so many subsets. Raises as `EvidenceStates.from_json`."""
        rows = int(state["rows"])
        if not 0 < rows <= _MOST_JUDGED:
            raise ValueError(f"{rows} rows were judged")
        fold = _unpacked(state["fold"], rows)
        states = _unpacked(state["states"], rows * subsets).reshape(subsets, rows)
        probable = None
        if "probable" in state:
            probable = _unpacked(state["probable"], rows * subsets).reshape(subsets, rows)
        return cls(fold, np.asarray(states >> 1, np.uint8), (states & 1).astype(np.bool_), probable)


def _packed(numbers: NDArray[np.uint8]) -> str:
    return base64.b64encode(zlib.compress(numbers.tobytes(), 6)).decode()


def _unpacked(text: str, count: int) -> NDArray[np.uint8]:
    try:
        raw = zlib.decompressobj().decompress(base64.b64decode(text, validate=True), count + 1)
    except zlib.error as exc:
        raise ValueError(f"what is kept of the rows judged cannot be read: {exc}") from exc
    if len(raw) != count:
        raise ValueError(f"{len(raw)} numbers are kept of the rows judged, and {count} were")
    return np.frombuffer(raw, np.uint8)


@dataclass(frozen=True, slots=True, eq=False)
class EvidenceStates:
    """The states of an ensemble. A subset of members is a bit mask; state 0 is `NOTHING`.

    subsets: those that were counted, smaller ones first · edges: of each subset's bins, ascending
    first: of each subset, the number of its first state · right: by state, how often the answer is right
    rows: by state, how many independent held-out rows were in it
    following: (subset, member) → rows: states of the subset, columns: states with that member's answer too
    judged: the rows one by one; None where they were not judged by folds
    """

    members: int
    subsets: tuple[int, ...]
    edges: Mapping[int, tuple[float, ...]]
    first: Mapping[int, int]
    right: Floats
    rows: Floats
    following: Mapping[tuple[int, int], Floats]
    judged: JudgedRows | None = None
    _without: dict[int, EvidenceStates] = field(default_factory=dict, init=False, repr=False)
    _gains: dict[tuple[int, int], float] = field(default_factory=dict, init=False, repr=False)

    @property
    def states(self) -> int:
        """How many there are, `NOTHING` included."""
        return len(self.right)

    @property
    def is_alone(self) -> bool:
        """Whether members were counted by themselves only: of two together nothing is known."""
        return self.members > 1 and all(subset.bit_count() == 1 for subset in self.subsets)

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
        if self.judged is not None:
            return float(self.judged.correct[self.subsets.index(subset)].mean())
        states = self.states_of(subset)
        return float(np.average(self.right[states], weights=self.rows[states]))

    def expected(self, subset: int) -> float:
        """How often the subset is expected to be right: as often as all members, less what it loses.

        As it was counted where that is not known. KeyError if the subset was not counted.
        """
        if self.judged is None or self.judged.probable is None or not subset:
            return self.accuracy(subset)
        probable = self.judged.probable
        lost = float(probable[-1].mean() - probable[self.subsets.index(subset)].mean()) / _PARTS
        return max(0.0, self.accuracy(self.subsets[-1]) - lost)

    def gain(self, subset: int, member: int) -> float:
        """How much likelier right a row of the subset is with that member too; 0 where it was not counted."""
        known = self._gains.get((subset, member))
        if known is None:
            both = subset | 1 << member
            is_known = both in self.first and subset in self.first
            known = max(0.0, self.expected(both) - self.expected(subset)) if is_known else 0.0
            self._gains[subset, member] = known
        return known

    def without(self, fold: int) -> EvidenceStates:
        """The same states, counted on the rows of the other folds. Only where rows were judged, in two folds
        at least.
        """
        found = self._without.get(fold)
        if found is None:
            assert self.judged is not None, "rows were judged"
            others = self.judged.fold != fold
            number = {0: np.zeros(int(others.sum()), np.intp)}
            number.update(zip(self.subsets, self.judged.bins[:, others].astype(np.intp), strict=True))
            right = dict(zip(self.subsets, self.judged.right()[:, others], strict=True))
            share = float(self.rows[NOTHING]) / len(others)  # of the rows, those that are independent
            found = _counted(self.members, self.subsets, self.edges, number, right, share)
            self._without[fold] = found
        return found

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
            **({} if self.judged is None else {"judged": self.judged.to_json()}),
        }

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> EvidenceStates:
        """What `to_json` wrote. Raises KeyError, TypeError or ValueError for anything else."""
        subsets = tuple(int(subset) for subset in state["subsets"])
        edges = {s: tuple(map(float, e)) for s, e in zip(subsets, state["edges"], strict=True)}
        right = np.asarray(state["right"], np.float64)
        rows = np.asarray(state["rows"], np.float64)
        first = first_states(subsets, edges)
        following = {(int(s), int(m)): np.asarray(table, np.float64) for s, m, table in state["following"]}
        kept = state.get("judged")  # evidence from before has none
        judged = None if kept is None else JudgedRows.from_json(kept, len(subsets))
        found = cls(int(state["members"]), subsets, {0: (), **edges}, first, right, rows, following, judged)
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
        if self.judged is not None:
            widths = np.array([len(self.edges[subset]) for subset in self.subsets])
            if (self.judged.bins.max(axis=1) > widths).any():
                raise ValueError("a row was judged to be in a state that there is not")


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
        members, subsets, edges, first_states(subsets, edges), known, np.ones(len(known)), following
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
    folds: Sequence[int] | NDArray[np.integer[Any]] | None = None,
    believed: Mapping[int, Floats] | None = None,
) -> EvidenceStates:
    """Count the states on held-out rows.

    confidence, correct: by subset, for the same n rows: the combined top probability, and whether the
    combined answer is right. Every single member must be among the subsets. observations: how many of the
    rows are independent (rows of one entity are one), all by default. Bins are quantiles, 8 of them, 4 below
    400 observations; each is shrunk to the mean of its subset as if that were 20 observations more. folds:
    of each row, where its answers are by a fit of the other folds: then the rows are kept (`judged`).
    believed: by subset, of each row so judged, how probable the subset's answer is by all members together,
    who are the largest subset. Raises ValueError for no rows, or different numbers of them, and KeyError for
    a member that is missing.
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
    number: dict[int, NDArray[np.intp]] = {0: np.zeros(rows, np.intp)}  # of each row's bin
    for subset in subsets:
        told = np.nan_to_num(np.asarray(confidence[subset], np.float64), nan=-np.inf)
        edges[subset] = _edges(told, shares)
        number[subset] = np.searchsorted(edges[subset], told, side="right")
    right = np.stack([np.asarray(correct[subset], np.bool_) for subset in subsets])
    judged = None
    if folds is not None:
        states = np.stack([number[subset] for subset in subsets]).astype(np.uint8)
        judged = JudgedRows(np.asarray(folds, np.uint8), states, right)
        if judged.folds < 2:
            judged = None
        elif believed is not None:
            by_all = np.stack([believed[subset] for subset in subsets])
            parts = np.rint(believed_right(by_all, right[-1]) * _PARTS)
            judged = replace(judged, probable=parts.astype(np.uint8))
    worth = right if judged is None else judged.right()
    found = _counted(members, subsets, edges, number, dict(zip(subsets, worth, strict=True)), known / rows)
    return replace(found, judged=judged)


def _counted(
    members: int,
    subsets: tuple[int, ...],
    edges: Mapping[int, tuple[float, ...]],
    number: Mapping[int, NDArray[np.intp]],
    right_of: Mapping[int, NDArray[np.bool_] | Floats],
    share: float,
) -> EvidenceStates:
    """States of these bins.

    number: by subset, of each row its bin · right_of: by subset, of each row how probable it is that the
    answer is right · share: of the rows, those that are independent
    """
    first = first_states(subsets, edges)
    rows = len(number[0])
    right = np.zeros(1 + sum(len(edges[subset]) + 1 for subset in subsets))
    counts = np.full(len(right), rows * share)
    following: dict[tuple[int, int], Floats] = {}
    for subset in (0, *subsets):
        width = len(edges[subset]) + 1
        here = slice(first[subset], first[subset] + width)
        counts[here] = np.bincount(number[subset], minlength=width) * share
        if subset:
            hits = np.asarray(right_of[subset], np.float64)
            right[here] = _means(number[subset], hits, width, _KAPPA / share)
        for member in range(members):
            child = subset | 1 << member
            if child != subset and child in first:
                # Not shrunk: shrunk twice, an answer promises a gain where nothing is learned.
                following[subset, member] = _shares(
                    number[subset], number[child], width, len(edges[child]) + 1
                )
    return EvidenceStates(members, subsets, edges, first, right, counts, following)


def _shares(number: NDArray[np.intp], reached: NDArray[np.intp], width: int, others: int) -> Floats:
    """Of the rows of each bin, the share that is in each of the others; of an empty one, that of all rows."""
    both = np.bincount(number * others + reached, minlength=width * others).reshape(width, others)
    count = both.sum(axis=1, keepdims=True)
    shares: Floats = np.where(count > 0, both / np.maximum(count, 1), both.sum(axis=0) / max(1, len(number)))
    return shares


def renewed(
    known: EvidenceStates,
    anew: Collection[int],
    confidence: Mapping[int, Floats],
    correct: Mapping[int, NDArray[np.bool_]],
    believed: Mapping[int, Floats],
) -> EvidenceStates:
    """The states where some subsets are counted anew, on other rows; of the others what is known holds.

    anew: the subsets, and with each all that contain it. confidence, correct, believed: as for
    `fit_evidence`, of the new rows. How often a subset is right is counted as a difference to its largest
    part of which more is known: few rows say that well, since the parts err on the same rows. The fewer they
    are, the more counts what all members hold probable. Raises KeyError for a subset that is not told of.
    """
    rows = len(confidence[next(iter(known.subsets))])
    by_all = np.stack([believed[subset] for subset in known.subsets])
    probable = dict(zip(known.subsets, believed_right(by_all, correct[known.subsets[-1]]), strict=True))
    share = rows / (rows + _BELIEVED_ROWS)
    bins = _BINS if rows >= _FEW_ROWS else _FEW_BINS
    shares = np.arange(1, bins) / bins
    edges: dict[int, tuple[float, ...]] = {0: ()}
    number: dict[int, NDArray[np.intp]] = {0: np.zeros(rows, np.intp)}
    for subset in known.subsets:
        told = np.nan_to_num(np.asarray(confidence[subset], np.float64), nan=-np.inf)
        edges[subset] = _edges(told, shares) if subset in anew else known.edges[subset]
        number[subset] = np.searchsorted(edges[subset], told, side="right")
    first = first_states(known.subsets, edges)
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
                before = known.right[known.states_of(part)][number[part]]
                hits = hits - np.asarray(correct[part], np.float64) + before
            hits = share * hits + (1 - share) * probable[subset]
            means = _means(number[subset], hits, width, _KAPPA)
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
                following[subset, member] = _shares(
                    number[subset], number[child], width, len(edges[child]) + 1
                )
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


def _means(number: NDArray[np.intp], values: Floats, bins: int, kappa: float) -> Floats:
    """The mean of the rows' `values` in each bin, drawn to that over all bins as by `kappa` rows."""
    sums = np.bincount(number, values, minlength=bins)
    counts = np.bincount(number, minlength=bins)
    means: Floats = (sums + kappa * values.mean()) / (counts + kappa)
    return means


def first_states(subsets: Sequence[int], edges: Mapping[int, Sequence[float]]) -> dict[int, int]:
    """Of each subset, and of nobody, the number of its first state."""
    first, following = {0: NOTHING}, 1
    for subset in subsets:
        first[subset] = following
        following += len(edges[subset]) + 1
    return first
