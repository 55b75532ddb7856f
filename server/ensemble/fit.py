"""What is fitted of a function's members on held-out rows: temperatures, and the weights of every subset.

Pure; numpy alone. The rule of combination `log_pool` answers by it, with and without a server, and plans are
made from it. A fit is a value: JSON both ways, and never changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from server.ensemble.agreement import shares_agreed
from server.ensemble.evidence import EvidenceStates, fit_evidence, subset_of
from server.ensemble.log_pool import (
    Floats,
    Labels,
    calibrated,
    fit_temperature,
    fit_weights,
    log_floored,
    log_softmax,
    shifted,
    unfitted_weight,
)

__all__ = [
    "ACCURACY",
    "LOG_POOL",
    "Fit",
    "HeldOutRows",
    "Judged",
    "Subset",
    "SubsetFit",
    "combined",
    "fit_combination",
    "largest_of",
    "rounded",
    "rows_to_fit",
    "subsets_of",
]

Subset = tuple[int, ...]  # places among the fit's members, ascending

ACCURACY = "accuracy"
LOG_POOL = "log_pool"
_FORMAT = 1
_FOLDS = 5
_EVERY_SUBSET_UP_TO = 6  # members
_MOST_ROWS = 2000
_ENOUGH_ROWS = 400
_MOST_NUMBERS = 200_000  # of each member


@dataclass(frozen=True, slots=True)
class SubsetFit:
    """Some members together. weights: one of each, in their order.

    accuracy, nll: of rows that neither these weights' kind nor the temperatures were fitted on (by folds).
    """

    members: Subset
    weights: tuple[float, ...]
    accuracy: float
    nll: float


@dataclass(frozen=True)
class Fit:
    """What was fitted on `rows` held-out rows of so many classes.

    members: their names · temperatures: of each · subsets: those whose weights were fitted · evidence: how
    often the subsets are right by how sure they are, for plans (plan.py); None where that was not counted
    agreement: of each pair of members, how often both name the same class (agreement.py); () for not counted
    shifts: of each member, in the log of its weight in every subset; not kept: those of a context
    rule: of combination, by which the subsets were judged; `log_pool` alone answers by what was fitted
    measure: what the subsets' `accuracy` is: how often they are right, or a task's `worth` (worths.py)
    """

    members: tuple[str, ...]
    temperatures: tuple[float, ...]
    subsets: tuple[SubsetFit, ...]
    rows: int
    classes: int
    evidence: EvidenceStates | None = field(default=None, compare=False)
    shifts: tuple[float, ...] = ()
    agreement: tuple[float, ...] = field(default=(), compare=False)
    rule: str = LOG_POOL
    measure: str = ACCURACY
    _places: Mapping[str, int] = field(init=False, repr=False, compare=False)
    _subsets: Mapping[Subset, SubsetFit] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        places = {name: place for place, name in enumerate(self.members)}
        if len(places) != len(self.members) or len(self.temperatures) != len(self.members):
            raise ValueError("a fit names a member twice, or not all have one temperature")
        object.__setattr__(self, "_places", places)
        object.__setattr__(self, "_subsets", {each.members: each for each in self.subsets})

    def subset(self, names: Iterable[str]) -> Subset:
        """The places of these members. Raises KeyError for one that is none."""
        return tuple(sorted(self._places[name] for name in names))

    def of(self, subset: Subset) -> SubsetFit | None:
        """What was fitted of a subset; None where nothing was."""
        return self._subsets.get(subset)

    def weights(self, subset: Subset) -> tuple[float, ...]:
        """The fitted weights of a subset, in its order; 1/√|S| each where none were fitted."""
        found = self._subsets.get(subset)
        weights = (unfitted_weight(len(subset)),) * len(subset) if found is None else found.weights
        return shifted(weights, [self.shifts[member] for member in subset]) if self.shifts else weights

    def in_context(self, shifts: tuple[float, ...]) -> Fit:
        """The same, with another weight for each member: see `contexts`. shifts: of all, in their order."""
        return replace(self, shifts=shifts)

    def to_json(self) -> dict[str, Any]:
        """As the registry and a function's file keep it; `from_json` reads it."""
        told = self._to_json()
        return told if self.evidence is None else {**told, "evidence": self.evidence.to_json()}

    def _to_json(self) -> dict[str, Any]:
        return {
            "format": _FORMAT,
            "members": list(self.members),
            "temperatures": list(self.temperatures),
            "rows": self.rows,
            "classes": self.classes,
            **({"agreement": list(self.agreement)} if self.agreement else {}),
            **({} if self.rule == LOG_POOL else {"rule": self.rule, "measure": self.measure}),
            "subsets": [
                {
                    "members": list(each.members),
                    "weights": list(each.weights),
                    "accuracy": each.accuracy,
                    "nll": each.nll,
                }
                for each in self.subsets
            ],
        }

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Fit:
        """Raises ValueError for what is no fit, or one of another format."""
        try:
            if told["format"] != _FORMAT:
                raise ValueError(f"its format is {told['format']!r}, and {_FORMAT} is what can be read here")
            # Fits from before have none.
            evidence = EvidenceStates.from_json(told["evidence"]) if told.get("evidence") else None
            if evidence is not None and evidence.members != len(told["members"]):
                raise ValueError(f"its evidence is of {evidence.members} members")
            return cls(
                tuple(str(name) for name in told["members"]),
                tuple(_positive(value) for value in told["temperatures"]),
                tuple(_subset(each, len(told["members"])) for each in told["subsets"]),
                int(told["rows"]),
                int(told["classes"]),
                evidence,
                agreement=_agreement(told.get("agreement", ()), len(told["members"])),
                rule=str(told.get("rule", LOG_POOL)),
                measure=str(told.get("measure", ACCURACY)),
            )
        except (KeyError, TypeError, OverflowError) as exc:
            raise ValueError(f"{exc!r} is missing or wrong") from exc


def largest_of(subsets: Iterable[Subset]) -> Subset:
    """That of most members, by which all together are known; of several the last in the order of evidence."""
    return max(subsets, key=lambda subset: (len(subset), subset_of(subset)))


def subsets_of(members: int, accuracies: Sequence[float] = ()) -> list[Subset]:
    """The subsets to fit: all of up to 6 members.

    Of more: each alone, the pairs, all but one, all, and where `accuracies` are given the most accurate ones
    (what a request with a goal of its own is answered by).
    """
    places = range(members)
    if members <= _EVERY_SUBSET_UP_TO:
        sizes: Iterable[int] = range(1, members + 1)
    else:
        sizes = (1, 2, members - 1, members)
    found = {subset for size in sizes for subset in combinations(places, size)}
    ranked = sorted(range(len(accuracies)), key=lambda place: -accuracies[place])
    found |= {tuple(sorted(ranked[:count])) for count in range(1, len(ranked) + 1)}
    return sorted(found, key=lambda subset: (len(subset), subset))


def rows_to_fit(rows: int, classes: int) -> NDArray[np.intp]:
    """Which of so many rows to fit on, evenly spread: more than 2,000 add nothing, of many classes 400 do.

    What is fitted are a few numbers; 1,600 rows were as good as any more, and 100 nearly so.
    """
    most = min(_MOST_ROWS, max(_ENOUGH_ROWS, _MOST_NUMBERS // max(1, classes)))
    return np.arange(rows) if rows <= most else np.linspace(0, rows - 1, most).astype(np.intp)


def fit_combination(
    probabilities: ArrayLike,
    labels: Sequence[int] | NDArray[np.integer[Any]],
    subsets: Sequence[Subset] | None = None,
    *,
    members: Sequence[str] | None = None,
    groups: Sequence[int] | NDArray[np.integer[Any]] | None = None,
    temperatures: Mapping[int, float] | None = None,
    evidence: bool = False,
) -> Fit:
    """Fit temperatures and the weights of each subset on held-out rows.

    probabilities: [members, rows, classes], as each member answers, the classes of all in one order; values
    that are no number count as 0. labels: [rows], places among the classes. subsets: of the members, all of
    them or `subsets_of` by default. members: their names, "0", "1", … by default. groups: [rows], rows of
    equal numbers are one observation, and never on both sides. temperatures: of members whose own is known.
    evidence: count also what the subsets' answers are worth, for plans; each member alone is to be a subset.

    Five folds: what is said of a subset's accuracy, and of what its answers are worth, is counted on rows
    that it was not fitted on; what is returned is then fitted on all. The same input gives the same fit.

    Raises ValueError for no rows, a label that is no class, shapes that do not fit, and an empty subset.
    """
    told = np.asarray(probabilities, np.float64)
    truth = np.asarray(labels, np.intp)
    if told.ndim != 3 or 0 in told.shape or truth.shape != told.shape[1:2]:
        raise ValueError(f"probabilities are {list(told.shape)} and labels {list(truth.shape)}: no fit")
    count, rows, classes = told.shape
    if truth.min() < 0 or truth.max() >= classes:
        raise ValueError(f"a label is no place among {classes} classes")
    names = tuple(members) if members is not None else tuple(str(place) for place in range(count))
    if len(names) != count:
        raise ValueError(f"{len(names)} names for {count} members")
    if subsets is None:
        subsets = subsets_of(count, [float((each.argmax(axis=1) == truth).mean()) for each in told])
    known = temperatures or {}
    found, members_told = _calibrated(_logs(told), truth, known)
    weights = fit_weights(members_told, truth, _taking_part(subsets, count))
    judged = HeldOutRows(told, truth, groups, known).judged(subsets)
    right, loss = judged.correct.sum(axis=1), judged.loss
    return Fit(
        names,
        tuple(rounded(t) for t in found),
        tuple(
            SubsetFit(
                tuple(subset),
                tuple(rounded(weights[place, member]) for member in subset),
                rounded(right[place] / rows),
                rounded(loss[place] / rows),
            )
            for place, subset in enumerate(subsets)
        ),
        rows,
        classes,
        _evidence(judged, subsets, count, groups) if evidence else None,
        agreement=tuple(map(rounded, shares_agreed(told.argmax(axis=2)))) if evidence else (),
    )


def _evidence(
    judged: Judged,
    subsets: Sequence[Subset],
    members: int,
    groups: Sequence[int] | NDArray[np.integer[Any]] | None,
) -> EvidenceStates:
    masks = [subset_of(subset) for subset in subsets]
    return fit_evidence(
        members,
        dict(zip(masks, judged.confidence, strict=True)),
        dict(zip(masks, judged.correct, strict=True)),
        None if groups is None else len(np.unique(np.asarray(groups))),
        judged.fold,
        dict(zip(masks, judged.believed, strict=True)),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """What subsets answer to rows that they were not fitted on: [subsets, rows] each; of each row its fold.

    confidence: the combined top probability · believed: how probable the answer is by most of the members
    together, those of the largest subset · loss: [subsets], the sum of the NLL
    """

    confidence: Floats
    correct: NDArray[np.bool_]
    believed: Floats
    loss: Floats
    fold: NDArray[np.intp]


class HeldOutRows:
    """How right subsets are on rows that they were not fitted on: by folds, each judged by the other four.

    probabilities, labels, groups, temperatures: as in `fit_combination`.
    """

    def __init__(
        self,
        probabilities: ArrayLike,
        labels: Sequence[int] | NDArray[np.integer[Any]],
        groups: Sequence[int] | NDArray[np.integer[Any]] | None = None,
        temperatures: Mapping[int, float] | None = None,
    ) -> None:
        logs, truth = _logs(np.asarray(probabilities, np.float64)), np.asarray(labels, np.intp)
        self._members, self._rows = len(logs), len(truth)
        self._folds: list[tuple[Floats, Labels, Floats, Labels]] = []  # fitted on, judged on
        self._fold_of = _folds(len(truth), None if groups is None else np.asarray(groups))
        for fold in range(int(self._fold_of.max()) + 1):
            held_out, rest = self._fold_of == fold, self._fold_of != fold
            part = np.ascontiguousarray(logs[:, :, rest])
            found, fitted = _calibrated(part, truth[rest], temperatures or {})
            pairs = zip(logs[:, :, held_out], found, strict=True)
            judged = np.stack([calibrated(log, t) for log, t in pairs])
            self._folds.append((fitted, truth[rest], judged, truth[held_out]))

    def accuracies(self, subsets: Sequence[Subset]) -> list[float]:
        """Of each of these subsets. Raises ValueError for one that is none."""
        right: list[float] = (self.judged(subsets).correct.mean(axis=1)).tolist()
        return right

    def judged(self, subsets: Sequence[Subset]) -> Judged:
        """What each subset answers."""
        taking_part = _taking_part(subsets, self._members)
        largest = subsets.index(largest_of(subsets))
        sure = np.zeros((len(subsets), self._rows))
        right, believed = np.zeros(sure.shape, np.bool_), np.zeros(sure.shape)
        loss = np.zeros(len(subsets))
        for fold, (fitted, labels, held_out, truth) in enumerate(self._folds):
            if len(labels):
                weights = fit_weights(fitted, labels, taking_part)
            else:
                weights = taking_part / np.sqrt(taking_part.sum(axis=1, keepdims=True))
            rows, here = np.arange(len(truth)), np.flatnonzero(self._fold_of == fold)
            most = np.exp(log_softmax(np.tensordot(weights[largest], held_out, axes=1)))
            for place, each in enumerate(weights):
                pool = log_softmax(np.tensordot(each, held_out, axes=1))
                named = pool.argmax(axis=0)
                right[place, here] = named == truth
                sure[place, here] = np.exp(pool[named, rows])
                believed[place, here] = most[named, rows]
                loss[place] -= pool[truth, rows].sum()
        return Judged(sure, right, believed, loss, self._fold_of)


def combined(fit: Fit | None, subset: Subset, probabilities: ArrayLike) -> NDArray[Any]:
    """What members answer together: [rows, classes], each row of sum 1; float32 of float32, else float64.

    probabilities: [members of the subset, rows, classes], in the subset's order. What was not fitted is taken
    as temperature 1 and, of each of the subset, weight 1/√|S|; fit: None where nothing was.

    Raises ValueError where there are not as many as the subset has.
    """
    logs = log_floored(probabilities)
    if len(logs) != len(subset) or not subset:
        raise ValueError(f"{len(logs)} members answered, and a subset of {len(subset)} was asked for")
    if fit is None:
        scales = [unfitted_weight(len(subset))] * len(subset)
    else:
        # What a temperature adds to every class of a row alike goes with the pool's own sum.
        weights = fit.weights(subset)
        scales = [w / fit.temperatures[member] for w, member in zip(weights, subset, strict=True)]
    pool: Floats = np.tensordot(np.asarray(scales, logs.dtype), logs, axes=1)
    pool -= pool.max(axis=-1, keepdims=True)
    np.exp(pool, out=pool)
    pool /= pool.sum(axis=-1, keepdims=True)
    return pool


def _logs(probabilities: Floats) -> Floats:
    """[members, classes, rows] of [members, rows, classes]."""
    return np.ascontiguousarray(log_floored(probabilities).transpose(0, 2, 1))


def _calibrated(logs: Floats, labels: Labels, known: Mapping[int, float]) -> tuple[Floats, Floats]:
    """The temperature of each member, and its log-probabilities at it; 1 where there are no rows.

    known: those that are known already.
    """
    temperatures = np.array(
        [
            known[member] if member in known else fit_temperature(log, labels) if len(labels) else 1.0
            for member, log in enumerate(logs)
        ]
    )
    return temperatures, np.stack([calibrated(log, t) for log, t in zip(logs, temperatures, strict=True)])


def _folds(rows: int, groups: NDArray[Any] | None) -> NDArray[np.intp]:
    """The fold of each row: groups whole, in a random order that is always the same."""
    group = np.arange(rows) if groups is None else np.unique(groups, return_inverse=True)[1]
    if len(group) != rows:
        raise ValueError(f"groups of {len(group)} rows, and there are {rows}")
    count = int(group.max()) + 1
    fold_of = np.random.default_rng(0).permutation(count) % min(_FOLDS, count)
    fold: NDArray[np.intp] = fold_of[group]
    return fold


def _taking_part(subsets: Sequence[Subset], members: int) -> NDArray[np.bool_]:
    taking_part = np.zeros((len(subsets), members), np.bool_)
    for row, subset in enumerate(subsets):
        if not subset or sorted(set(subset)) != list(subset) or not 0 <= subset[0] <= subset[-1] < members:
            raise ValueError(f"{subset!r} is no subset of {members} members: ascending places, each once")
        taking_part[row, list(subset)] = True
    return taking_part


def _subset(told: Mapping[str, Any], members: int) -> SubsetFit:
    subset = tuple(int(place) for place in told["members"])
    _taking_part([subset], members)
    weights = tuple(_positive(weight) for weight in told["weights"])
    if len(weights) != len(subset):
        raise ValueError(f"{len(weights)} weights for {len(subset)} members")
    accuracy, nll = float(told["accuracy"]), float(told["nll"])
    if not (0 <= accuracy <= 1 and 0 <= nll < np.inf):
        raise ValueError(f"an accuracy is {accuracy} and an NLL {nll}")
    return SubsetFit(subset, weights, accuracy, nll)


def _agreement(told: Sequence[Any], members: int) -> tuple[float, ...]:
    shares = tuple(map(float, told))
    if shares and (len(shares) != members * (members - 1) // 2 or not all(0 <= each <= 1 for each in shares)):
        raise ValueError(f"its agreement is of other pairs than those of {members} members")
    return shares


def _positive(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < np.inf:
        raise ValueError(f"{value!r} is no temperature and no weight: a number above 0")
    return float(value)


def rounded(value: float) -> float:
    """As many digits as mean something: short in JSON, and the same when read back."""
    return float(f"{value:.6g}")
