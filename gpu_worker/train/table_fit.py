"""What a table's columns are, and what is learnt of them, from training rows alone.

    number, boolean   scaled                      date, time    when, and where in year, week and day
    text              a flag for each of the most frequent ones; of many also the target's mean with each
    free text         what a linear model of its words says

What is learnt with the target in sight is learnt five times more, each time without a fifth of the rows: a
training row is shown what was learnt without it, so that no learner trusts these numbers more than it may
(Wolpert 1992, "Stacked generalization"; scikit-learn's TargetEncoder does the same). Memory does not depend
on how many rows there are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from sklearn.linear_model import Ridge

from gpu_worker.networks.encoders import Encoder, Known, Moment, Rates, Scaled, Words
from gpu_worker.networks.network import Floats
from gpu_worker.networks.table import TIMES, Table, TableColumn
from gpu_worker.zoo.ngrams import NGrams, Ragged, idf_of, tfidf

__all__ = ["ALL_COLUMNS", "FOLDS", "ColumnChoices", "FittedTable", "fit_table", "matrix_of"]

FOLDS = 5
_MOST_KNOWN = 32  # texts of one column that have a flag; the rarer ones are told by rates
_MOST_COUNTED = 100_000  # different texts of one column; what comes after them is not counted
_MOST_RATED = 10_000
_MOST_RATES = 12  # of a target: classes that are told apart
_PRIOR_ROWS = 10.0  # the mean of all rows weighs as much as so many rows of a text
_FREE_WORDS = 2.0  # on average: a text of more is not the name of a category
_OFTEN = 0.5  # share of different texts below which even long ones are categories too
_MOST_WORDS = 64  # outputs of a text's linear model
_SAMPLE = 20_000  # texts that it is fitted on
_WEIGHTS = 1 << 18  # of it, about


@dataclass(frozen=True, slots=True)
class ColumnChoices:
    """What may be made of columns; each can be switched off.

    dates: dates and times are seen at all. categories: of more than 32 texts, the target's mean with each.
    texts: free text is read.
    """

    dates: bool = True
    categories: bool = True
    texts: bool = True


ALL_COLUMNS = ColumnChoices()


@dataclass(frozen=True, slots=True)
class FittedTable:
    """whole: what was learnt of all training rows. without: of all but a fifth, for each fifth."""

    whole: Table
    without: tuple[Table, ...]

    def training_matrix(self, rows: Sequence[Sequence[Any]], first: int) -> Floats:
        """float32 [n, width] of training rows, the first of which is number `first` of all training rows."""
        matrix = np.zeros((len(rows), self.whole.width), np.float32)
        for fold, table in enumerate(self.without):
            mine = range((fold - first) % FOLDS, len(rows), FOLDS)
            matrix[mine] = table.matrix([rows[at] for at in mine])
        return matrix


def fit_table(
    kinds: Sequence[Mapping[str, str]],
    batches: Iterable[tuple[Sequence[Sequence[Any]], Floats]],
    choices: ColumnChoices = ALL_COLUMNS,
) -> FittedTable:
    """The columns as training rows show them.

    kinds: name and kind of each. batches: training rows as `values_of` gives them, and their targets, float32
    [n, k]: a flag for each class (of two classes one), or the number. Raises `ValueError` for too many
    columns.
    """
    learning = [_LEARNS[kind["kind"]]() if kind["kind"] in _LEARNS else _Moments() for kind in kinds]
    first = 0
    for rows, targets in batches:
        folds = (first + np.arange(len(rows))) % FOLDS
        for column, values in zip(learning, zip(*rows, strict=True), strict=True) if rows else ():
            column.see(values, targets, folds)
        first += len(rows)
    fitted = [column.encoders(choices) for column in learning]
    tables = [
        Table(
            [
                TableColumn(kind["name"], kind["kind"], encoders[at])
                for kind, encoders in zip(kinds, fitted, strict=True)
            ]
        )
        for at in range(FOLDS + 1)
    ]
    return FittedTable(tables[0], tuple(tables[1:]))


# Of all rows, then without each fifth of them.
Fitted = list[tuple[Encoder, ...]]


@dataclass(slots=True)
class _Numbers:
    """Mean and spread of the values (Chan, Golub & LeVeque 1983: no sums of squares, which lose small
    spreads around large means).
    """

    count: int = 0
    mean: float = 0.0
    spread: float = 0.0
    largest: float = 0.0  # of the values, whatever their sign

    def see(self, values: Sequence[Any], targets: Floats, folds: NDArray[np.int64]) -> None:
        found = np.array([value for value in values if value is not None], np.float64)
        if not len(found):
            return
        # Halves and quarters are exact: the squares of huge values stay finite.
        mean = float((found / len(found)).sum())
        with np.errstate(over="ignore"):
            spread = float(np.square(found - mean).sum())
        gap, both = mean - self.mean, self.count + len(found)
        self.mean += gap * (len(found) / both)
        self.largest = max(self.largest, float(np.abs(found).max()))
        self.spread += spread + gap * gap * self.count * len(found) / both
        self.count = both

    @property
    def scale(self) -> float:
        scale = math.sqrt(self.spread / self.count) if self.count else 1.0
        if not math.isfinite(scale):
            return self.largest  # the squares of such values are no numbers: they become about 1
        return scale if scale > 0 else 1.0

    def encoders(self, choices: ColumnChoices) -> Fitted:
        return [(Scaled(self.mean, self.scale),)] * (FOLDS + 1)


class _Booleans(_Numbers):
    def encoders(self, choices: ColumnChoices) -> Fitted:
        return [(Scaled(),)] * (FOLDS + 1)


class _Moments(_Numbers):
    def encoders(self, choices: ColumnChoices) -> Fitted:
        return [(Moment(self.mean, self.scale),) if choices.dates else ()] * (FOLDS + 1)


@dataclass(slots=True)
class _Texts:
    """places: of the texts that are counted. seen: [places, folds]; sums: [places, folds, k], of targets."""

    places: dict[str, int] = field(default_factory=dict)
    seen: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, FOLDS)))
    sums: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, FOLDS, 0)))
    # Of the target of all rows: how many, their sum and their squares'.
    rows: int = 0
    total: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    squares: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    present: int = 0
    words: int = 0
    sample: list[str] = field(default_factory=list)
    sampled: list[tuple[Floats, NDArray[np.int64]]] = field(default_factory=list)

    def see(self, values: Sequence[Any], targets: Floats, folds: NDArray[np.int64]) -> None:
        width = targets.shape[1]
        if not self.rows:
            self.total, self.squares = np.zeros(width), np.zeros(width)
        self.rows += len(values)
        self.total += targets.sum(axis=0, dtype=np.float64)
        self.squares += np.square(targets, dtype=np.float64).sum(axis=0)
        rows = [row for row, value in enumerate(values) if value is not None]
        self.present += len(rows)
        self._count([values[row] for row in rows], targets[rows], folds[rows])
        room = _SAMPLE - len(self.sample)
        some = rows[:room]
        if some:
            self.sample += [values[row] for row in some]
            self.sampled.append((targets[some], folds[some]))

    def _count(self, texts: Sequence[str], targets: Floats, folds: NDArray[np.int64]) -> None:
        self.words += sum(text.count(" ") + 1 for text in texts)
        for text in texts:
            if text not in self.places and len(self.places) < _MOST_COUNTED:
                self.places[text] = len(self.places)
        more = len(self.places) - len(self.seen)
        rated = targets.shape[1] if targets.shape[1] <= _MOST_RATES else 0
        self.seen = np.concatenate([self.seen, np.zeros((more, FOLDS))])
        before = self.sums if self.sums.shape[2] == rated else np.zeros((0, FOLDS, rated))
        self.sums = np.concatenate([before, np.zeros((more, FOLDS, rated))])
        at = np.array([self.places.get(text, -1) for text in texts], np.int64)
        counted = at >= 0
        np.add.at(self.seen, (at[counted], folds[counted]), 1)
        if rated:
            np.add.at(self.sums, (at[counted], folds[counted]), targets[counted])

    def encoders(self, choices: ColumnChoices) -> Fitted:
        different = len(self.places)
        is_free = different > _MOST_KNOWN and self.words > _FREE_WORDS * self.present
        reads = choices.texts and is_free and 0 < len(self.total) <= _MOST_WORDS
        if reads and different >= _OFTEN * self.present:
            return [(words,) for words in self._linear()]
        known = Known(self._most_frequent(_MOST_KNOWN))
        fitted: list[list[Encoder]] = [[known] for _ in range(FOLDS + 1)]
        if choices.categories and different > _MOST_KNOWN and self.sums.shape[2]:
            for of_fold, rates in zip(fitted, self._rates(), strict=True):
                of_fold.append(rates)
        if reads:
            for of_fold, words in zip(fitted, self._linear(), strict=True):
                of_fold.append(words)
        return [tuple(of_fold) for of_fold in fitted]

    def _most_frequent(self, most: int, least: int = 1) -> tuple[str, ...]:
        # Of equally frequent ones the first by name: the order of the rows must not matter.
        often = self.seen.sum(axis=1)
        texts = [text for text, at in self.places.items() if often[at] >= least]
        ranked = sorted(texts, key=lambda text: (-often[self.places[text]], text))
        return tuple(sorted(ranked[:most]))

    def _rates(self) -> list[Rates]:
        texts = self._most_frequent(_MOST_RATED, least=2)
        at = [self.places[text] for text in texts]
        mean, scale = self._target
        found = []
        for fold in (None, *range(FOLDS)):
            kept = [other for other in range(FOLDS) if other != fold]
            seen = self.seen[at][:, kept].sum(axis=1)[:, None]
            sums = self.sums[at][:, kept].sum(axis=1)
            rates = (sums + _PRIOR_ROWS * mean) / (seen + _PRIOR_ROWS)
            whole = np.concatenate([rates, mean[None]])
            found.append(Rates(texts, ((whole - mean) / scale).astype(np.float32)))
        return found

    @property
    def _target(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean and scale of each number of the target."""
        mean = self.total / max(1, self.rows)
        spread = np.sqrt(np.maximum(self.squares / max(1, self.rows) - mean * mean, 0))
        return mean, np.where(spread > 0, spread, 1.0)

    def _linear(self) -> list[Words]:
        mean, scale = self._target
        targets = (np.concatenate([each for each, _ in self.sampled]) - mean) / scale
        folds = np.concatenate([each for _, each in self.sampled])
        buckets = 1 << max(12, min(16, int(math.log2(_WEIGHTS / targets.shape[1]))))
        ngrams = NGrams(words=2, buckets=buckets)
        found = ngrams.of(self.sample)
        idf = idf_of(found, buckets)
        matrix = matrix_of(found, tfidf(found, idf), buckets)
        return [
            Words(ngrams, idf, *_ridge(matrix[kept], targets[kept]))
            for kept in (slice(None), *(folds != fold for fold in range(FOLDS)))
        ]


_LEARNS: Mapping[str, type[_Numbers] | type[_Texts]] = {
    "number": _Numbers,
    "boolean": _Booleans,
    "text": _Texts,
    **dict.fromkeys(TIMES, _Moments),
}


def matrix_of(found: Ragged, shares: Floats, buckets: int) -> csr_matrix:
    """[n, buckets] of n texts."""
    starts = np.concatenate([[0], found.ends])
    return csr_matrix((shares, found.places, starts), (len(found.ends), buckets))


def _ridge(matrix: csr_matrix, targets: NDArray[np.float64]) -> tuple[Floats, Floats]:
    """weights [buckets, k], bias [k]."""
    if not matrix.shape[0]:
        width = targets.shape[1]
        return np.zeros((matrix.shape[1], width), np.float32), np.zeros(width, np.float32)
    ridge = Ridge(alpha=1.0, solver="sparse_cg", tol=1e-3).fit(matrix, targets)
    weights = np.asarray(ridge.coef_, np.float32).reshape(targets.shape[1], -1).T
    bias = np.broadcast_to(np.asarray(ridge.intercept_, np.float32), targets.shape[1:])
    return np.ascontiguousarray(weights), bias.copy()
