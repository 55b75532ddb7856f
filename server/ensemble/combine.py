"""How the members' answers become one answer, and how far it can be trusted.

Pure, over columns; standard library and numpy. The server and `ml_udf.local` share it, so that a function
answers the same with and without a server. Knows rows and members, nothing of workers, wires or tasks: which
rules a task's members may have stands in the task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from gpu_worker.tasks.boxes import boxes_of, text_of
from gpu_worker.tasks.label_sets import label_texts
from gpu_worker.wire.columns import BOXES, LABELS, TEXT, Column
from server.ensemble.fit import Fit, combined
from server.ensemble.weighted_boxes import fused_boxes
from server.record import record

__all__ = ["OwnRule", "Vote", "combine", "combine_by", "needs_of", "unconfident_rows"]

Columns = Mapping[str, Column]
OwnRule = Callable[[Mapping[str, Sequence[float]]], tuple[int, float]]  # by member → a class, how sure


@record
class Vote:
    """One member's answers to n rows, by the names of their columns. weight: beside the others, in a mean."""

    member: str
    accuracy: float
    columns: Columns
    weight: float = 1.0

    @property
    def rows(self) -> int:
        """How many rows it answers."""
        return next((column.rows for column in self.columns.values()), 0)


def combine(
    rule: str,
    votes: Sequence[Vote],
    classes: Sequence[str],
    fit: Fit | None = None,
    *,
    value: str = "label",
    thresholds: Sequence[float] = (),
) -> Columns:
    """One answer per row from the members' answers.

    One member alone answers as it does. value: the column that several are combined by: a `label` (of the
    largest of `scores`, where a rule goes by them), `labels` (of all `scores` that are large enough), a
    `value` (with `low` and `high`, where they are there), `boxes`. fit: of members among whom these are, by
    which `log_pool` answers; with one it calibrates a member alone too, where that brings its `scores`.
    thresholds: by class, from where on `labels` and `boxes` are answered, of one member too; () for those
    that members went by themselves. A `label` is that whose score is the largest part of its threshold; by
    scores then, so that members who would vote answer with their mean.

    Raises ValueError if there are no votes, their lengths differ, the rule is none, or a column is missing.
    """
    if not votes:
        raise ValueError("no member has answered")
    rows = votes[0].rows
    if any(column.rows != rows for vote in votes for column in vote.columns.values()):
        raise ValueError("the members answered different numbers of rows")
    is_calibrated = rule == _LOG_POOL and fit is not None and "scores" in votes[0].columns
    if len(votes) == 1 and not is_calibrated and not thresholds:
        return votes[0].columns
    found = _RULES.get((value, _ruled(rule, value, bool(thresholds))))
    if found is None:
        raise ValueError(f"{len(votes)} members answered, and no rule {rule!r} combines their {value}")
    return found.combined(votes, classes, fit, thresholds)


def combine_by(
    rule: OwnRule, votes: Sequence[Vote], classes: Sequence[str], fit: Fit | None = None
) -> Columns:
    """As `combine`, by a rule of somebody's own, row by row: from each member's scores, calibrated.

    Of the answer's scores, those of the other classes share what is left as they do in the members' mean.
    """
    _check_scores("a rule of one's own", votes)
    each = {vote.member: _scores_of(vote, len(classes)) for vote in votes}
    if fit is not None:
        each = {name: combined(fit, fit.subset([name]), [scores]) for name, scores in each.items()}
    places = np.empty(votes[0].rows, np.intp)
    sure = np.empty(votes[0].rows, np.float32)
    for row in range(votes[0].rows):
        places[row], sure[row] = rule({name: scores[row].tolist() for name, scores in each.items()})
    rows = np.arange(votes[0].rows)
    scores = np.mean(list(each.values()), axis=0)
    scores[rows, places] = 0.0
    left = scores.sum(axis=1, keepdims=True)
    scores = np.where(left > 0, scores / np.where(left > 0, left, 1.0), 0.0) * (1 - sure[:, None])
    scores[rows, places] = sure
    return _told(votes, classes, places, sure, scores.astype(np.float32))


def needs_of(
    rule: str,
    members: int,
    *,
    value: str = "label",
    is_fitted: bool = False,
    is_thresholded: bool = False,
) -> tuple[str, ...]:
    """The columns that each of so many members must bring, beyond those that it answers by default.

    is_fitted: whether there is a fit for them. is_thresholded: whether one alone is held against thresholds.
    """
    if members > 1 or (rule == _LOG_POOL and is_fitted) or is_thresholded:
        found = _RULES.get((value, _ruled(rule, value, is_thresholded)))
        return () if found is None else found.needs
    return ()


def _ruled(rule: str, value: str, is_thresholded: bool) -> str:
    """The rule by which members answer: a vote has no scores to hold against thresholds."""
    return _MEAN if is_thresholded and (value, rule) == ("label", _VOTE) else rule


def unconfident_rows(confidences: Sequence[float], min_confidence: float) -> list[int]:
    """The rows whose confidence is below the function's threshold, both as the float32 that is answered."""
    if min_confidence <= 0.0:
        return []
    threshold = float(np.float32(min_confidence))
    return [row for row, confidence in enumerate(confidences) if confidence < threshold]


def _majority_vote(
    votes: Sequence[Vote], classes: Sequence[str], _: Fit | None, _thresholds: Sequence[float]
) -> Columns:
    """Rafiki §5.2: the label that most members name, and as its confidence the share of members that agree.

    "When there is a tie, the prediction from the model with the best accuracy is selected". A member's empty
    label (a row at fault) has no vote.
    """
    labels, confidences = _by_majority(votes)
    columns = _answer(labels, np.asarray(confidences, np.float32))
    if all("scores" in vote.columns for vote in votes):
        columns["scores"] = _scores(_mean_scores(votes, len(classes)))
    return columns


def _mean(
    votes: Sequence[Vote], classes: Sequence[str], _: Fit | None, thresholds: Sequence[float]
) -> Columns:
    """The class of the highest mean probability, and that probability; every member must bring scores."""
    _check_scores("the mean of probabilities", votes)
    return _by_scores(votes, classes, _mean_scores(votes, len(classes)), thresholds)


def _log_pool(
    votes: Sequence[Vote], classes: Sequence[str], fit: Fit | None, thresholds: Sequence[float]
) -> Columns:
    """The class that is most probable in the members' logarithmic pool, and how probable (`log_pool`).

    By the temperatures and the weights that were fitted for exactly these members. Where none were for these:
    by the temperatures, with 1/√|S| for each weight; where there is no fit at all, by temperatures of 1.
    """
    _check_scores("a logarithmic pool", votes)
    if fit is None:
        subset, ordered = tuple(range(len(votes))), list(votes)
    else:
        by_name = {vote.member: vote for vote in votes}
        subset = fit.subset(by_name)
        ordered = [by_name[fit.members[place]] for place in subset]
    pool = combined(fit, subset, [_scores_of(vote, len(classes)) for vote in ordered])
    return _by_scores(votes, classes, pool.astype(np.float32, copy=False), thresholds)


def _mean_labels(
    votes: Sequence[Vote], classes: Sequence[str], _: Fit | None, thresholds: Sequence[float]
) -> Columns:
    """The classes whose mean probability is not below their threshold; every member must bring scores."""
    _check_scores("the mean of probabilities", votes)
    scores = _mean_scores(votes, len(classes))
    texts = label_texts(scores, classes, thresholds)
    told = [vote.columns["labels"].values for vote in votes]
    for row, text in enumerate(told[0]):
        if not text and not any(texts_of[row] for texts_of in told):  # it is at fault for every member
            texts[row] = ""
    return {"labels": Column("labels", TEXT, (), texts, LABELS), "scores": _scores(scores)}


def _mean_values(
    votes: Sequence[Vote], classes: Sequence[str], fit: Fit | None, thresholds: Sequence[float]
) -> Columns:
    """As `_weighted_mean_values`, all weights being equal."""
    return _weighted_mean_values([replace(vote, weight=1.0) for vote in votes], classes, fit, thresholds)


def _weighted_mean_values(
    votes: Sequence[Vote], _: Sequence[str], _fit: Fit | None, _thresholds: Sequence[float]
) -> Columns:
    """The members' weighted mean, of those that have a value; of the distances to `low` and `high` likewise.

    Weights: of each vote. So an interval lies around the mean, also where not all members give one.
    """
    weights = np.array([[vote.weight] for vote in votes])
    values = _numbers(votes, "value")
    mean = _weighted_mean(values, weights)
    columns = {"value": _float64("value", mean)}
    for end in ("low", "high"):
        if all(end in vote.columns for vote in votes):
            columns[end] = _float64(end, mean + _weighted_mean(_numbers(votes, end) - values, weights))
    return columns


def _weighted_boxes(
    votes: Sequence[Vote], classes: Sequence[str], _: Fit | None, thresholds: Sequence[float]
) -> Columns:
    """The members' boxes, those of one thing fused (`weighted_boxes`), that reach their class's threshold."""
    least = dict(zip(classes, thresholds, strict=False))
    texts = []
    for told in zip(*(vote.columns["boxes"].values for vote in votes), strict=True):
        members = [boxes_of(text) for text in told]
        fused = fused_boxes(members) if len(members) > 1 else members[0]
        kept = [box for box in fused if box.score >= least.get(box.label, 0.0)]
        texts.append(text_of(kept) if any(told) else "")
    return {"boxes": Column("boxes", TEXT, (), texts, BOXES)}


def _numbers(votes: Sequence[Vote], name: str) -> NDArray[np.float64]:
    """A column of numbers of each vote: [members, n]."""
    return np.array([vote.columns[name].values for vote in votes], np.float64)


def _weighted_mean(numbers: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Over the members, of the numbers that are known; not a number where none is."""
    known = np.where(np.isnan(numbers), 0.0, weights)
    total = known.sum(axis=0)
    found = (known * np.nan_to_num(numbers)).sum(axis=0)
    mean: NDArray[np.float64] = np.divide(found, total, out=np.full(len(total), np.nan), where=total > 0)
    return mean


def _float64(name: str, numbers: NDArray[np.float64]) -> Column:
    return Column(name, "FP64", (), numbers.tobytes())


def _check_scores(what: str, votes: Sequence[Vote]) -> None:
    if not all("scores" in vote.columns for vote in votes):
        raise ValueError(f"{what} needs every member's scores")


def _by_scores(
    votes: Sequence[Vote],
    classes: Sequence[str],
    scores: NDArray[np.float32],
    thresholds: Sequence[float],
) -> Columns:
    winners = (scores / np.asarray(thresholds) if thresholds else scores).argmax(axis=1)
    return _told(votes, classes, winners, scores[np.arange(len(scores)), winners], scores)


def _told(
    votes: Sequence[Vote],
    classes: Sequence[str],
    winners: NDArray[np.intp],
    confidences: NDArray[np.float32],
    scores: NDArray[np.float32],
) -> Columns:
    labels = [classes[winner] for winner in winners.tolist()]
    told = [vote.columns["label"].values for vote in votes]
    for row, label in enumerate(told[0]):
        if not label and not any(labels_of[row] for labels_of in told):  # it is at fault for every member
            labels[row], confidences[row] = "", 0.0
    return {**_answer(labels, confidences), "scores": _scores(scores)}


@dataclass(frozen=True, slots=True)
class _Rule:
    """needs: columns beyond those that a member answers by default."""

    combined: Callable[[Sequence[Vote], Sequence[str], Fit | None, Sequence[float]], Columns]
    needs: tuple[str, ...] = ()


_LOG_POOL, _MEAN, _VOTE = "log_pool", "mean", "majority_vote"
_RULES: Mapping[tuple[str, str], _Rule] = MappingProxyType(
    {
        ("label", "majority_vote"): _Rule(_majority_vote),
        ("label", "mean"): _Rule(_mean, ("scores",)),
        ("label", _LOG_POOL): _Rule(_log_pool, ("scores",)),
        ("labels", "mean"): _Rule(_mean_labels, ("scores",)),
        ("value", "mean"): _Rule(_mean_values),
        ("value", "weighted_mean"): _Rule(_weighted_mean_values),
        ("boxes", "weighted_boxes"): _Rule(_weighted_boxes),
    }
)


def _answer(labels: list[str], confidences: NDArray[np.float32]) -> dict[str, Column]:
    return {
        "label": Column("label", "BYTES", (), labels),
        "confidence": Column("confidence", "FP32", (), confidences.tobytes()),
    }


def _scores(scores: NDArray[np.float32]) -> Column:
    return Column("scores", "FP32", scores.shape[1:], scores.tobytes())


def _by_majority(votes: Sequence[Vote]) -> tuple[list[str], list[float]]:
    # The best model first: `max` keeps the first of equals, which makes it win the ties.
    ranked = sorted(votes, key=lambda vote: -vote.accuracy)
    labels: list[str] = []
    confidences: list[float] = []
    members = len(ranked)
    told: list[list[str]] = [vote.columns["label"].data for vote in ranked]  # type: ignore[misc]  # texts
    for ballot in zip(*told, strict=True):
        first = ballot[0]
        agreeing = ballot.count(first)
        if agreeing * 2 <= members or not first:
            first = max(ballot, key=lambda label: ballot.count(label) if label else 0)
            agreeing = ballot.count(first)
        labels.append(first)
        confidences.append(agreeing / members if first else 0.0)
    return labels, confidences


def _mean_scores(votes: Sequence[Vote], classes: int) -> NDArray[np.float32]:
    total = np.zeros((votes[0].rows, classes), np.float32)
    for vote in votes:
        total += _scores_of(vote, classes)
    total /= np.float32(len(votes))
    return total


def _scores_of(vote: Vote, classes: int) -> NDArray[np.float32]:
    scores: bytes = vote.columns["scores"].data  # type: ignore[assignment]  # numbers
    return np.frombuffer(scores, "<f4").reshape(vote.rows, classes)
