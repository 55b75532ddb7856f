"""Linear models of texts: classes, labels, numbers. Fitted over sparse n-grams, written as `TfidfLinear`.

    snapshot ─ NGrams, once for each ─→ arrays on disk ─→ sparse matrix ─ an epoch = 25 iterations ─→ weights

The problem is convex: it may begin from any weights, and a paused trial goes on from its own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from scipy.sparse import csr_matrix
from threadpoolctl import threadpool_limits

from gpu_worker.errors import BadRequest
from gpu_worker.model_files.saving import write_tensors
from gpu_worker.networks.network import activated
from gpu_worker.tasks.metrics import Targets
from gpu_worker.train.array_store import ArrayStore, ArrayWriter
from gpu_worker.train.learner import EpochResult, Evaluation, Objective, Spec, row_time
from gpu_worker.train.loop import TrainingStopped
from gpu_worker.train.regressions import regression_for, told_by
from gpu_worker.train.snapshot import NO_CLASS, SPLITS
from gpu_worker.train.table_fit import matrix_of
from gpu_worker.train.targets import learnt_targets
from gpu_worker.zoo.ngrams import NGrams, Ragged, idf_of, joined, tfidf
from gpu_worker.zoo.tfidf_linear import TfidfLinear

__all__ = [
    "LinearSpec",
    "LinearTextLearner",
    "SparseTexts",
    "evaluated",
    "linear_spec",
    "ngrams_of",
    "read_sparse",
]

_TEXTS = 4_096  # hashed at a time
_ITERATIONS = 25
_KNOBS = ("C", "alpha")
_NOT_OURS = ("batch_rows", "cool_from", "epochs", "learning_rate", "schedule", "seed", "size", "augment")


@dataclass(frozen=True, slots=True)
class SparseTexts:
    """The n-grams of each split's texts, mapped from disk, and their targets: see `learnt_targets`."""

    ngrams: NGrams
    parts: dict[str, tuple[Ragged, Targets]]
    nbytes = 0  # of this process's memory: all is mapped

    def rows(self, *splits: str) -> tuple[Ragged, Targets]:
        """Those of train, validation or test; of several, those of one after those of the other.

        Raises `ValueError`.
        """
        for split in splits:
            if split not in self.parts:
                raise ValueError(f"there is no split {split!r}; there are {', '.join(sorted(self.parts))}")
        if len(splits) == 1:
            return self.parts[splits[0]]
        found = [self.parts[split] for split in splits]
        return joined([texts for texts, _ in found]), np.concatenate([labels for _, labels in found])


@dataclass(frozen=True, slots=True)
class LinearSpec:
    """options: of `TfidfLinear`. knobs: of the regression."""

    seed: int
    options: dict[str, Any]
    knobs: dict[str, float]


def linear_spec(raw: Spec) -> LinearSpec:
    """The spec of a message. Raises `BadRequest` for a knob that there is not.

    What a network's schedule needs is passed over: a convex problem has one solution, by whatever way.
    """
    given = {name: value for name, value in raw.items() if name not in _NOT_OURS}
    given.pop("architecture", None)
    options = dict(given.pop("architecture_options", {}))
    unknown = sorted(given.keys() - set(_KNOBS))
    if unknown:
        raise BadRequest(f"a linear model of texts has no knob {unknown[0]!r}; it has {', '.join(_KNOBS)}")
    return LinearSpec(int(raw.get("seed", 0)), options, {name: float(value) for name, value in given.items()})


def read_sparse(
    path: str, objective: Objective, ngrams: NGrams, on_step: Callable[[], None] = lambda: None
) -> SparseTexts:
    """The texts of a snapshot as n-grams: read and hashed once, then mapped from disk. Raises `OSError`."""

    def write(arrays: ArrayWriter) -> None:
        ended = dict.fromkeys(SPLITS, 0)

        def append(split: str, texts: Sequence[str], targets: Sequence[Any]) -> None:
            found = ngrams.of(texts)
            arrays.append(f"{split}.places", found.places.astype(np.int32))
            arrays.append(f"{split}.counts", found.counts.astype(np.int32))
            arrays.append(f"{split}.ends", ended[split] + found.ends)
            arrays.append(f"{split}.labels", learnt_targets(objective, targets))
            ended[split] += len(found.places)

        for split in SPLITS:  # of each, were it empty
            append(split, [], [])
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(_TEXTS, columns=["input", "target", "split"]):
                on_step()
                texts, targets, splits = (column.to_pylist() for column in batch.columns)
                for split in set(splits):
                    rows = [row for row, side in enumerate(splits) if side == split]
                    append(split, [texts[row] for row in rows], [targets[row] for row in rows])

    key = json.dumps(["sparse texts", repr(ngrams), objective.task.name, list(objective.classes)])
    mapped, _ = ArrayStore(path).open(key, write)
    parts = {
        split: (
            Ragged(mapped[f"{split}.places"], mapped[f"{split}.counts"], mapped[f"{split}.ends"]),
            mapped[f"{split}.labels"],
        )
        for split in SPLITS
    }
    return SparseTexts(ngrams, parts)


class LinearTextLearner:
    """See `Learner`. start: a checkpoint from whose weights it begins, or "". Raises `OSError`."""

    suffix = ".safetensors"
    skipped = 0

    def __init__(
        self, spec: LinearSpec, texts: SparseTexts, objective: Objective, *, start: str, start_epoch: int
    ) -> None:
        self.epoch = start_epoch
        self._metric = objective.metric
        self._outputs = _outputs(objective)
        train, self._labels = texts.rows(*objective.taught)
        buckets = texts.ngrams.buckets
        self._idf = idf_of(train, buckets)
        # Of all buckets those that the training rows know: their weights alone are learnt.
        self._known = np.unique(train.places)
        self._train = self._matrix(train)
        if objective.task.picks_one and (self._labels == NO_CLASS).any():
            # Validation rows of a class that no training row shows cannot be taught.
            known = self._labels != NO_CLASS
            self._train, self._labels = self._train[known], self._labels[known]
        validation, self._targets = texts.rows("validation")
        self._validation = self._matrix(validation)
        self._regression = regression_for(
            objective,
            seed=spec.seed,
            iterations=_ITERATIONS,
            knobs=spec.knobs,
            class_weight=objective.class_weight,
        )
        if start:
            self._begin_from(start)
        self._best = (-math.inf, -math.inf)
        self._best_weights: dict[str, torch.Tensor] = {}

    def learn(self, should_stop: Callable[[], bool]) -> EpochResult:
        """See `Learner.learn`; it stops before it begins."""
        if should_stop():
            raise TrainingStopped(f"training stopped after epoch {self.epoch}")
        with threadpool_limits(1):
            self._regression.fit(self._train, self._labels)
            told = told_by(self._regression, self._train)
            answers = told_by(self._regression, self._validation)
        score = self._metric.score(answers, self._targets)
        self.epoch += 1
        known = (score.merit, -(score.loss or 0.0))
        if known > self._best:
            self._best, self._best_weights = known, self._weights()
        loss = self._metric.loss(told, self._labels)
        return EpochResult(loss, score, self._regression.has_converged)

    def write(self, path: str, *, best: bool) -> None:
        """See `Learner.write`."""
        write_tensors(path, self._best_weights if best else self._weights())

    def write_state(self, path: str) -> None:
        """See `Learner.write_state`: the weights are all there is."""

    def _matrix(self, found: Ragged) -> csr_matrix:
        return matrix_of(found, tfidf(found, self._idf), len(self._idf))[:, self._known]

    def _weights(self) -> dict[str, torch.Tensor]:
        """Those of `TfidfLinear`."""
        weight = np.zeros((len(self._idf), self._outputs), np.float32)
        weight[self._known] = self._regression.weights
        return {
            "idf": torch.from_numpy(self._idf),
            "weight": torch.from_numpy(weight),
            "bias": torch.from_numpy(np.asarray(self._regression.bias, np.float32)),
        }

    def _begin_from(self, start: str) -> None:
        stored = load_file(start)
        weight, bias = stored.get("weight"), stored.get("bias")
        if weight is None or bias is None or weight.shape != (len(self._idf), self._outputs):
            return
        self._regression.begin(
            weight.numpy()[self._known].astype(np.float64), bias.numpy().astype(np.float64)
        )


def evaluated(texts: SparseTexts, objective: Objective, split: str, start: str) -> Evaluation:
    """What the checkpoint `start` answers to a split, as it will be served. Raises `BadRequest`."""
    stored = load_file(start)
    found, targets = texts.rows(split)
    idf, weight, bias = (stored.get(name) for name in ("idf", "weight", "bias"))
    wanted = (texts.ngrams.buckets, _outputs(objective))
    if idf is None or weight is None or bias is None or weight.shape != wanted:
        raise BadRequest(f"the checkpoint {start} is not of tfidf_linear with these knobs")
    matrix = matrix_of(found, tfidf(found, idf.numpy()), texts.ngrams.buckets)

    def run(rows: slice) -> NDArray[np.float32]:
        logits = np.asarray(matrix[rows] @ weight.numpy() + bias.numpy(), np.float32)
        return activated(logits, objective.task.activation)

    return Evaluation(run(slice(None)), targets, row_time(run, len(targets)))


def ngrams_of(spec: LinearSpec, objective: Objective) -> NGrams:
    """Those that its module reads. Raises `BadRequest` for options that cannot be."""
    try:
        with torch.device("meta"):
            return TfidfLinear(_outputs(objective), **spec.options).ngrams
    except (TypeError, ValueError) as exc:
        raise BadRequest(f"architecture_options of 'tfidf_linear': {exc}") from exc


def _outputs(objective: Objective) -> int:
    return len(objective.classes) or 1  # a value
