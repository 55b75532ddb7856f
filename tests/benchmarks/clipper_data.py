"""What `make bench-clipper` predicts: members trained here, and their answers to rows they never saw.

failing    Figure 8: five kinds of models on noisy digits, and what the best of them says of garbled images
forests    Figure 9: random forests on noisy digits, each of few trees and few pixels
dialects   Figure 10: digits turned by eight angles; a model for each angle, and one for all

sklearn's digits, split by base image: rows for training, for fitting and for judging are never of the same
image. Each row is a copy of an image with noise of its own. A split's number is the seed of all that is
random in it; answers are kept among the results.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import rotate
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neural_network import MLPClassifier
from sklearn.tree import DecisionTreeClassifier

from tests.benchmarks.report import RESULTS

Floats = NDArray[np.floating[Any]]
Labels = NDArray[np.intp]

ANGLES = (-70, -50, -30, -10, 10, 30, 50, 70)
MOST_FORESTS = 16
_FORMAT = 1  # of what is kept; to be counted up with whatever changes what is predicted
_SIDE = 8
_SHARES = (0.35, 0.25)  # of the base images for training and for fitting; the others are for judging


@dataclass(frozen=True)
class Answers:
    """Of some members to some rows: [members, rows, classes]. groups: the base image of each row."""

    told: Floats
    labels: Labels
    groups: Labels

    @property
    def accuracies(self) -> list[float]:
        return [float((each.argmax(axis=1) == self.labels).mean()) for each in self.told]


@dataclass(frozen=True)
class FailingSplit:
    """garbled: the best member's answers to the rows for judging, their pixels out of order."""

    fitting: Answers
    judging: Answers
    best: int
    garbled: Floats


@dataclass(frozen=True)
class DialectSplit:
    """Rows of all angles in a random order. Members: one of each angle; for_all: the model of all angles.

    dialects: of each row for fitting and for judging, the place among the angles
    """

    fitting: Answers
    fitting_dialects: Labels
    judging: Answers
    dialects: Labels
    for_all: Floats


def failing_split(number: int, queries: int) -> FailingSplit:
    """Five members, of which the best is known by the rows for fitting; so many rows for judging."""
    kept = _kept(f"failing-{number}-{queries}", lambda: _failing(number, queries))
    fitting, judging = _answers(kept, "fitting"), _answers(kept, "judging")
    return FailingSplit(fitting, judging, int(kept["best"]), kept["garbled"])


def forests(number: int, rows: int) -> tuple[Answers, Answers]:
    """The answers of 16 members to the rows for fitting and for judging."""
    kept = _kept(f"forests-{number}-{rows}", lambda: _forests(number, rows))
    return _answers(kept, "fitting"), _answers(kept, "judging")


def dialects(number: int, rows_each: int) -> DialectSplit:
    """So many rows of each angle for judging."""
    kept = _kept(f"dialects-{number}-{rows_each}", lambda: _dialects(number, rows_each))
    return DialectSplit(
        _answers(kept, "fitting"),
        kept["fitting_dialects"],
        _answers(kept, "judging"),
        kept["dialects"],
        kept["for_all"],
    )


def _failing(number: int, queries: int) -> dict[str, Any]:
    random = np.random.default_rng((number, 21))
    training, fitting, judging = _parts(random)
    rows = _Rows(random, noise=0.3)
    inputs, labels, _ = rows.of(training, 5 * len(training))
    seeds = random.integers(1 << 31, size=3).tolist()
    members = [
        DecisionTreeClassifier(max_depth=9, min_samples_leaf=4, random_state=seeds[0]),
        GaussianNB(),
        LogisticRegression(C=0.01, max_iter=200),
        RandomForestClassifier(30, max_depth=8, random_state=seeds[1]),
        MLPClassifier((64,), alpha=1.0, max_iter=60, random_state=seeds[2]),
    ]
    for member in members:
        member.fit(inputs, labels)
    fitted_on, judged_on = rows.of(fitting, 3 * len(fitting)), rows.of(judging, queries)
    told = _told(members, fitted_on[0])
    best = int(np.argmax([(each.argmax(axis=1) == fitted_on[1]).mean() for each in told]))
    out_of_order = random.permutation(_SIDE * _SIDE)
    return {
        **_named("fitting", told, *fitted_on[1:]),
        **_named("judging", _told(members, judged_on[0]), *judged_on[1:]),
        "best": best,
        "garbled": _told([members[best]], judged_on[0][:, out_of_order])[0],
    }


def _forests(number: int, rows: int) -> dict[str, Any]:
    random = np.random.default_rng((number, 22))
    training, fitting, judging = _parts(random)
    drawn = _Rows(random, noise=0.5)
    inputs, labels, _ = drawn.of(training, 5 * len(training))
    members = []
    for seed in random.integers(1 << 31, size=MOST_FORESTS).tolist():
        columns = np.sort(random.permutation(_SIDE * _SIDE)[:32])
        forest = RandomForestClassifier(5, max_depth=8, random_state=seed)
        members.append(_OfColumns(forest.fit(inputs[:, columns], labels), columns))
    told = {}
    for part, images, count in (("fitting", fitting, 3 * len(fitting)), ("judging", judging, rows)):
        inputs, labels, groups = drawn.of(images, count)
        told.update(_named(part, _told(members, inputs), labels, groups))
    return told


def _dialects(number: int, rows_each: int) -> dict[str, Any]:
    random = np.random.default_rng((number, 23))
    training, fitting, judging = _parts(random)
    drawn = _Rows(random, noise=0.35)
    of_angle = np.array_split(random.permutation(training), len(ANGLES))
    parts = [drawn.of(images, 5 * len(images), angle) for images, angle in zip(of_angle, ANGLES, strict=True)]
    seeds = random.integers(1 << 31, size=len(ANGLES) + 1).tolist()
    whole = (np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts]))
    learners = [LogisticRegression(C=0.01, max_iter=200, random_state=seed) for seed in seeds]
    members = [each.fit(*part[:2]) for each, part in zip(learners, [*parts, whole], strict=True)]
    found: dict[str, Any] = {}
    per_angle = {"fitting": len(fitting), "judging": rows_each}
    for name, images in (("fitting", fitting), ("judging", judging)):
        rows = [drawn.of(images, per_angle[name], angle) for angle in ANGLES]
        order = random.permutation(len(ANGLES) * per_angle[name])
        inputs, labels, groups = (np.concatenate(each)[order] for each in zip(*rows, strict=True))
        told = _told(members, inputs)
        found.update(_named(name, told[:-1], labels, groups))
        found["fitting_dialects" if name == "fitting" else "dialects"] = order // per_angle[name]
        found["for_all"] = told[-1]  # in the end, of the rows for judging
    return found


class _Rows:
    """Copies of digits, each with noise of its own; an image comes again only when all others have."""

    def __init__(self, random: np.random.Generator, noise: float) -> None:
        self._random, self._noise = random, noise
        images, labels = load_digits(return_X_y=True)
        self._images: Floats = images.reshape(-1, _SIDE, _SIDE) / 8 - 1
        self._labels: Labels = labels.astype(np.intp)

    def of(self, images: Labels, count: int, angle: float = 0.0) -> tuple[Floats, Labels, Labels]:
        """Inputs, labels, and which image each was made of."""
        rounds = -(-count // len(images))
        places = np.concatenate([self._random.permutation(images) for _ in range(rounds)])[:count]
        drawn = self._images
        if angle:
            drawn = rotate(drawn, angle, axes=(1, 2), reshape=False, order=1, mode="nearest")
        inputs = drawn[places].reshape(count, -1)
        inputs = inputs + self._random.normal(scale=self._noise, size=inputs.shape)
        return inputs, self._labels[places], places


@dataclass(frozen=True)
class _OfColumns:
    """A model that sees some columns."""

    model: Any
    columns: Labels

    def predict_proba(self, inputs: Floats) -> Floats:
        told: Floats = self.model.predict_proba(inputs[:, self.columns])
        return told


def _parts(random: np.random.Generator) -> list[Labels]:
    """The base images for training, for fitting and for judging."""
    order = random.permutation(len(load_digits().target))
    return np.split(order, np.cumsum([round(share * len(order)) for share in _SHARES]))


def _told(members: Sequence[Any], inputs: Floats) -> NDArray[np.float32]:
    return np.stack([member.predict_proba(inputs) for member in members]).astype(np.float32)


def _named(part: str, told: Floats, labels: Labels, groups: Labels) -> dict[str, Any]:
    return {part: told, f"{part}_labels": labels, f"{part}_groups": groups}


def _answers(kept: dict[str, Any], part: str) -> Answers:
    return Answers(kept[part], kept[f"{part}_labels"], kept[f"{part}_groups"])


def _kept(name: str, predicted: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    path = Path(RESULTS) / "clipper" / f"{name}-{_FORMAT}.npz"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # trained enough for what they are to show
            found = predicted()
        np.savez_compressed(path, **found)
    with np.load(path) as kept:
        return dict(kept)
