"""What `make bench-ensembles` predicts: ensembles trained here, and their answers to rows they never saw.

digits    sklearn's digits with noise, split by base image: three members about as good as one another
images    drawn prototypes of 12x12 pixels, moved and noisy: four members, from weak to good
tables    sklearn's breast cancer table with noise, split by base row: five members

A split's number is the seed of all that is random in it. Rows for training, for fitting and for judging come
from different base rows. Temperatures and weights are fitted on the second part alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.tree import DecisionTreeClassifier

from server.ensemble.evidence import EvidenceStates, fit_evidence, members_of
from server.ensemble.fit import fit_combination
from server.ensemble.subset_answers import SubsetAnswers, answers_of
from server.scheduling.simulation.ensembles import MemberOutcomes
from tests.benchmarks.report import RESULTS

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]

_FORMAT = 2  # of what is kept; to be counted up with whatever changes what is predicted


@dataclass(frozen=True)
class Rows:
    inputs: Floats
    labels: Labels
    bases: Labels  # which base row each was made of


@dataclass(frozen=True)
class Split:
    """Held-out answers, [members, rows, classes]; bases: which base row each row for fitting was made of."""

    family: str
    number: int
    fitting: Floats
    fitting_labels: Labels
    fitting_bases: Labels
    judging: Floats
    judging_labels: Labels

    def accuracies(self) -> list[float]:
        return [float((told.argmax(axis=1) == self.judging_labels).mean()) for told in self.judging]


@dataclass(frozen=True)
class FittedSplit:
    """How every subset answers, by the weights fitted on the first part."""

    split: Split
    fitting: MemberOutcomes
    judging: MemberOutcomes
    accuracies: Sequence[float]  # of the members, on the rows for fitting
    evidence: EvidenceStates  # by the rows for fitting


def split_of(family: str, number: int) -> Split:
    """Trained when it is first asked for; kept among the results."""
    path = Path(RESULTS) / "ensembles" / f"{family}-{number}-{_FORMAT}.npz"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(path, **_predicted(family, number))
    kept = np.load(path)
    return Split(family, number, *(kept[name] for name in _PARTS))


def fitted(split: Split, rows: int | None = None, rule: str = "log_pool") -> FittedSplit:
    """rows: fit on so many only. rule: "log_pool" (fitted weights) or "vote" (Rafiki's)."""
    told, labels, bases = split.fitting[:, :rows], split.fitting_labels[:rows], split.fitting_bases[:rows]
    accuracies = [float((each.argmax(axis=1) == labels).mean()) for each in told]
    if rule == "log_pool":
        fit = fit_combination(told, labels, groups=bases, evidence=True)
        fitting, judging = answers_of(fit, told, labels), answers_of(fit, split.judging, split.judging_labels)
        evidence = fit.evidence
        assert evidence is not None, "it was asked for"
    else:
        fitting = _votes(told, labels, accuracies)
        judging = _votes(split.judging, split.judging_labels, accuracies)
        evidence = fit_evidence(len(told), fitting.confidence, fitting.correct, len(np.unique(bases)))
    return FittedSplit(split, _outcomes(fitting), _outcomes(judging), accuracies, evidence)


def _outcomes(told: SubsetAnswers) -> MemberOutcomes:
    return MemberOutcomes(
        {subset: each.tolist() for subset, each in told.confidence.items()},
        {subset: each.tolist() for subset, each in told.correct.items()},
    )


def _votes(told: Floats, labels: Labels, accuracies: Sequence[float]) -> SubsetAnswers:
    shares = {subset: _voted(told, subset, accuracies) for subset in range(1, 1 << len(told))}
    return SubsetAnswers(
        {subset: each.max(axis=1) for subset, each in shares.items()},
        {subset: each.argmax(axis=1) == labels for subset, each in shares.items()},
        {},
    )


def _voted(told: Floats, subset: int, accuracies: Sequence[float]) -> Floats:
    """Shares of the votes; of a tie the best member that is in it decides."""
    members = members_of(subset)
    shares = np.zeros(told.shape[1:])
    rows = np.arange(told.shape[1])
    best = max(members, key=lambda member: accuracies[member])
    for member in members:
        shares[rows, told[member].argmax(axis=1)] += 1 / len(members)
        tie_break = 1e-3 * accuracies[member] + (1e-3 if member == best else 0.0)
        shares[rows, told[member].argmax(axis=1)] += tie_break / len(members)
    return np.minimum(shares, 1.0)


_PARTS = ("fitting", "fitting_labels", "fitting_bases", "judging", "judging_labels")


def _predicted(family: str, number: int) -> dict[str, Any]:
    training, fitting, judging, members = _FAMILIES[family](np.random.default_rng((number, 11)))
    random = np.random.default_rng((number, 12))
    for member in members:
        member.fit(training, random)
    return {
        "fitting": np.stack([member.probabilities(fitting.inputs) for member in members]),
        "fitting_labels": fitting.labels,
        "fitting_bases": fitting.bases,
        "judging": np.stack([member.probabilities(judging.inputs) for member in members]),
        "judging_labels": judging.labels,
    }


class _Member:
    """An estimator that learns from its own share of the rows and of the columns, so that members differ."""

    def __init__(self, estimator: Any, rows: float = 1.0, columns: float = 1.0) -> None:
        self._estimator, self._rows, self._share = estimator, rows, columns
        self._columns: NDArray[np.int64] = np.zeros(0, np.int64)

    def fit(self, training: Rows, random: np.random.Generator) -> None:
        count, width = training.inputs.shape
        rows = random.permutation(count)[: round(self._rows * count)]
        self._columns = np.sort(random.permutation(width)[: round(self._share * width)])
        self._estimator.fit(training.inputs[rows][:, self._columns], training.labels[rows])

    def probabilities(self, inputs: Floats) -> Floats:
        told: Floats = self._estimator.predict_proba(inputs[:, self._columns])
        return told


_Family = Callable[[np.random.Generator], tuple[Rows, Rows, Rows, list[_Member]]]


def _digits(random: np.random.Generator) -> tuple[Rows, Rows, Rows, list[_Member]]:
    data = load_digits()
    base = _base(data.data / 8 - 1, data.target)
    parts = _copied(random, base, (0.3, 0.35, 0.35), (5, 4, 5), noise=0.6)
    seeds = random.integers(1 << 31, size=3).tolist()
    return *parts, [
        _Member(MLPClassifier((width,), alpha=1e-2, max_iter=50, random_state=seed), 0.75, 0.8)
        for width, seed in zip((40, 44, 48), seeds, strict=True)
    ]


def _images(random: np.random.Generator) -> tuple[Rows, Rows, Rows, list[_Member]]:
    count, side = 6000, 12
    coarse = random.normal(size=(10, 2, 5, 5))
    prototypes = np.repeat(np.repeat(coarse, 3, axis=2), 3, axis=3)[..., :side, :side]
    labels = random.integers(10, size=count)
    images = prototypes[labels, random.integers(2, size=count)]
    moves = random.integers(-1, 2, size=(count, 2))
    moved = [np.roll(image, tuple(move), axis=(0, 1)) for image, move in zip(images, moves, strict=True)]
    noisy = np.stack(moved) + random.normal(scale=1.3, size=(count, side, side))
    rows = _base(noisy.reshape(count, -1) / 2.5, labels)
    seeds = random.integers(1 << 31, size=3).tolist()
    members = [
        _Member(RandomForestClassifier(40, min_samples_leaf=5, random_state=seeds[0])),
        _Member(LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.5)),
        _Member(MLPClassifier((32,), alpha=0.3, max_iter=30, random_state=seeds[1])),
        _Member(MLPClassifier((128, 64), alpha=1.0, max_iter=40, random_state=seeds[2])),
    ]
    return _part(rows, 0, 2000), _part(rows, 2000, 3600), _part(rows, 3600, count), members


def _tables(random: np.random.Generator) -> tuple[Rows, Rows, Rows, list[_Member]]:
    data = load_breast_cancer()
    spread = (data.data - data.data.mean(axis=0)) / data.data.std(axis=0)
    base = _base(spread, data.target)
    parts = _copied(random, base, (0.2, 0.4, 0.4), (6, 6, 12), noise=2.0)
    seeds = random.integers(1 << 31, size=3).tolist()
    return *parts, [
        _Member(DecisionTreeClassifier(max_depth=4, min_samples_leaf=5, random_state=seeds[0])),
        _Member(KNeighborsClassifier(9), columns=0.6),
        _Member(LogisticRegression(C=0.05, max_iter=300), columns=0.6),
        _Member(RandomForestClassifier(60, min_samples_leaf=3, random_state=seeds[1]), columns=0.7),
        _Member(GaussianNB(), columns=0.8),
    ]


_FAMILIES: Mapping[str, _Family] = {"digits": _digits, "images": _images, "tables": _tables}


def _base(inputs: Floats, labels: NDArray[Any]) -> Rows:
    return Rows(inputs, labels.astype(np.int64), np.arange(len(labels)))


def _copied(
    random: np.random.Generator,
    base: Rows,
    shares: tuple[float, float, float],
    copies: tuple[int, int, int],
    noise: float,
) -> tuple[Rows, Rows, Rows]:
    """Three parts of the base rows, each row so many times with other noise."""
    order = random.permutation(len(base.labels))
    ends = np.cumsum([round(share * len(order)) for share in shares[:2]]).tolist()
    parts = []
    for places, count in zip(np.split(order, ends), copies, strict=True):
        repeated = random.permutation(np.repeat(places, count))
        inputs = base.inputs[repeated]
        noisy = inputs + random.normal(scale=noise, size=inputs.shape)
        parts.append(Rows(noisy, base.labels[repeated], repeated))
    return parts[0], parts[1], parts[2]


def _part(rows: Rows, begin: int, end: int) -> Rows:
    return Rows(rows.inputs[begin:end], rows.labels[begin:end], rows.bases[begin:end])
