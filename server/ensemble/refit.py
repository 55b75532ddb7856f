"""A fit made anew of the members that are no longer what they were, on the rows whose labels came since.

    refit_due(feedback) → Due, or None    a member errs other than expected, or three times the rows are there
    refit(fit, due, those rows) → what is expected from now on, and the fit to answer by

It is always the deployment's fit that is changed, so that nothing is lost by going back to it: once every
member errs as it did when that was made, it answers again.

What concerns none of them stays as it was fitted on many held-out rows: their temperatures, the weights and
the evidence of subsets without a member that changed. Of the others, temperatures, weights and evidence come
from the new rows; the weights of few rows are drawn to those by which these rows are likeliest, of three: as
deployed, as learned since, or as if the changed members said nothing. Pure; numpy.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from server.ensemble.breakage import LEAST_ROWS, Expected, RefitNote, is_off, most_surprising
from server.ensemble.evidence import EvidenceStates, renewed, subset_of
from server.ensemble.feedback import Feedback, adapted
from server.ensemble.fit import Fit, Subset, fit_combination, rounded
from server.ensemble.log_pool import (
    WEIGHTS,
    Floats,
    Labels,
    calibrated,
    log_floored,
    log_softmax,
    unfitted_weight,
)
from server.ensemble.subset_answers import answers_of

__all__ = ["LEAST_ROWS", "MOST_ROWS", "Due", "refit", "refit_due", "refitted"]

MOST_ROWS = 2000  # more add nothing
_ENOUGH_ROWS = 1000
_AGAIN = 3  # times as many rows
_KAPPA = 30.0  # rows that the weights believed before count for


@dataclass(frozen=True, slots=True)
class Due:
    """That a fit is to be made anew, on the labels after the `since` first ones, and why.

    Of labels of rows that all members answered.
    """

    reason: str
    since: int
    until: int

    @property
    def rows(self) -> int:
        """How many labels that are at most."""
        return min(self.until - self.since, MOST_ROWS)


def refit_due(feedback: Feedback, fit: Fit) -> Due | None:
    """Whether the fit is to be made anew. fit: of the deployment. None for a fit of more than the members."""
    if feedback.weights is None or set(feedback.members) != set(fit.members):
        return None
    found = most_surprising(feedback.was_wrong, feedback.expected(fit))
    if found is not None:
        return Due(str(found), feedback.whole - found.rows, feedback.whole)
    note = feedback.refit
    if note is None or not note.off or note.until - note.since >= _ENOUGH_ROWS:
        return None
    if feedback.whole - note.since < max(LEAST_ROWS, _AGAIN * (note.until - note.since)):
        return None
    return Due(note.reason, note.since, feedback.whole)


def refit(
    feedback: Feedback,
    fit: Fit,
    due: Due,
    probabilities: ArrayLike,
    labels: Sequence[int] | NDArray[np.integer[Any]],
    at: str,
    now: Fit | None = None,
) -> tuple[RefitNote, Fit | None]:
    """What is done about it: the note of it, and the fit to answer by; None for that of the deployment.

    probabilities: [members, rows, classes] of the labelled rows since, as the feedback's members answer,
    uncalibrated. at: now, in ISO 8601. now: the fit that answers, where it is not the deployment's any more.
    Raises as `refitted` does.
    """
    told, truth = np.asarray(probabilities, np.float64), np.asarray(labels, np.intp)
    wrong = dict(zip(feedback.members, (told.argmax(axis=2) != truth).sum(axis=1).tolist(), strict=True))
    as_deployed = replace(feedback, refit=None).expected(fit)
    off = tuple(
        name
        for name, known in as_deployed.items()
        if known is not None and is_off(wrong[name], len(truth), known)
    )
    expected = {
        name: Expected(wrong[name] / len(truth), len(truth)) if name in off else known
        for name, known in as_deployed.items()
    }
    number, rows = feedback.refits + 1, len(truth)
    note = RefitNote(number, due.reason, off, due.since, due.until, rows, tuple(expected.values()), at)
    if not off:
        return note, None
    place_of = {name: place for place, name in enumerate(feedback.members)}
    in_order = told[[place_of[name] for name in fit.members]]
    learned = adapted(now or fit, feedback)
    return note, refitted(fit, in_order, truth, [fit.members.index(name) for name in off], learned)


def refitted(
    fit: Fit,
    probabilities: ArrayLike,
    labels: Sequence[int] | NDArray[np.integer[Any]],
    off: Collection[int],
    learned: Fit | None = None,
) -> Fit:
    """The fit, with all that concerns the members in `off` made anew.

    probabilities: [members, rows, classes], as the fit's members answer, uncalibrated. labels: [rows],
    places among the classes. learned: by what is answered now. Raises ValueError for no rows, and shapes that
    do not fit.
    """
    told, truth = np.asarray(probabilities, np.float64), np.asarray(labels, np.intp)
    if len(told) != len(fit.members):
        raise ValueError(f"{len(told)} members answered, and the fit is of {len(fit.members)}")
    changed = {place for place, each in enumerate(fit.subsets) if not set(off).isdisjoint(each.members)}
    subsets = [fit.subsets[place].members for place in sorted(changed)]
    stays = {place: t for place, t in enumerate(fit.temperatures) if place not in off}
    found = fit_combination(told, truth, subsets, members=fit.members, temperatures=stays)
    logs = log_floored(told).transpose(0, 2, 1)
    members = np.stack([calibrated(log, t) for log, t in zip(logs, found.temperatures, strict=True)])
    anew = list(fit.subsets)
    for place, each in zip(sorted(changed), found.subsets, strict=True):
        if len(each.members) > 1:
            believed = _believed(fit, learned or fit, found.temperatures, each.members, off, members, truth)
            each = replace(each, weights=_drawn(np.asarray(each.weights), believed, len(truth)))
        anew[place] = each
    made = replace(fit, temperatures=found.temperatures, subsets=tuple(anew), rows=len(truth), evidence=None)
    if fit.evidence is None:
        return made
    return replace(made, evidence=_evidence(made, fit.evidence, told, truth, off))


def _believed(
    fit: Fit,
    learned: Fit,
    temperatures: Sequence[float],
    subset: Subset,
    off: Collection[int],
    members: Floats,
    labels: Labels,
) -> NDArray[np.float64]:
    """Of a subset, the weights as deployed, as learned, or those of its others alone: the likeliest.

    members: log-probabilities calibrated by `temperatures`, [members, classes, rows].
    """
    rest = tuple(member for member in subset if member not in off)
    rest_weights = dict(zip(rest, fit.weights(rest), strict=True)) if rest else {}
    alone = unfitted_weight(len(subset))
    without = np.array([rest_weights.get(member, WEIGHTS[0] if rest else alone) for member in subset])
    known = [without]
    for each in (fit, learned):  # at temperatures of their own
        scales = [temperatures[member] / each.temperatures[member] for member in subset]
        known.append(np.array(each.weights(subset)) * scales)
    return min(known, key=lambda weights: _loss(weights, members[list(subset)], labels))


def _loss(weights: NDArray[np.float64], members: Floats, labels: Labels) -> float:
    pool = log_softmax(np.tensordot(weights, members, axes=1))
    return float(-pool[labels, np.arange(len(labels))].mean())


def _drawn(found: NDArray[np.float64], believed: NDArray[np.float64], rows: int) -> tuple[float, ...]:
    """Weights fitted on so many rows, drawn to those that were believed."""
    share = rows / (rows + _KAPPA)
    logs = share * np.log(found) + (1 - share) * np.log(np.clip(believed, *WEIGHTS))
    return tuple(map(rounded, np.exp(logs)))


def _evidence(
    made: Fit, known: EvidenceStates, told: Floats, labels: Labels, off: Collection[int]
) -> EvidenceStates:
    answers = answers_of(made, told, labels)
    changed = subset_of(off)
    anew = frozenset(subset for subset in known.subsets if subset & changed)
    return renewed(known, anew, answers.confidence, answers.correct, answers.believed)
