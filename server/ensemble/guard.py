"""Members that are left out because they are broken: of whom nothing is asked, and what answers without them.

Where no labels say so, the fit that answers is that of the deployment, with whatever a broken member says
worth nothing: a subset with it answers as the others of the subset do. Pure; numpy.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from server.ensemble.agreement import Fall
from server.ensemble.breakage import RefitNote
from server.ensemble.evidence import EvidenceStates, JudgedRows, first_states, subset_of
from server.ensemble.feedback import Feedback
from server.ensemble.fit import Fit, SubsetFit
from server.ensemble.log_pool import WEIGHTS

__all__ = ["back", "guarded", "left_out"]

_WORSE = 0.5  # times as often right as the others together: what errs so often is broken, and not just worse
_BY_CHANCE = 4  # labelled rows that it may seem to turn right, counted on the rows that it was fitted on
_MOST = 0.05  # of the rows: what gains more is asked all the same

Floats = NDArray[np.float64]


def guarded(feedback: Feedback, fit: Fit, fall: Fall, at: str) -> tuple[RefitNote, Fit]:
    """What is done about members that fell: the note of it, and the fit to answer by.

    fit: of the deployment, whose members are meant by their numbers. at: now, in ISO 8601.
    """
    off = tuple(fit.members[member] for member in fall.members)
    share = f"{fall.agrees:.0%} of its last {fall.rows} rows that all were asked"
    reason = f"{', '.join(off)} agrees with the others on {share}, expected {fall.expected:.0%}"
    expected = replace(feedback, refit=None).expected(fit)
    note = RefitNote(
        feedback.refits + 1,
        reason,
        off,
        feedback.whole,
        feedback.whole,
        0,
        tuple(None if name in off else expected[name] for name in feedback.members),
        at,
    )
    return note, _without(fit, frozenset(fall.members), fall.agrees)


def back(feedback: Feedback, fit: Fit, at: str) -> RefitNote:
    """The note of members that were left out, and agree with the others again: all is as deployed."""
    before = feedback.refit
    assert before is not None, "somebody was left out"
    expected = replace(feedback, refit=None).expected(fit)
    reason = f"{', '.join(before.off)} agrees with the others again"
    number, taught = before.number + 1, feedback.whole
    return RefitNote(
        number, reason, (), taught, taught, 0, tuple(expected[name] for name in feedback.members), at
    )


def left_out(feedback: Feedback, fit: Fit) -> tuple[str, ...]:
    """The members that are asked no more. fit: that answers.

    Those that fell, and of those that a refit was about such as it found to be of no use to the others.
    """
    note = feedback.refit
    if note is None or not note.off:
        return ()
    evidence, everybody = fit.evidence, (1 << len(fit.members)) - 1
    if not note.rows:
        return note.off
    if evidence is None:
        return ()
    found = []
    for name in note.off:
        mine = 1 << fit.members.index(name)
        others = everybody & ~mine
        if others not in evidence.first or mine not in evidence.first:
            continue
        is_worse = evidence.accuracy(mine) < _WORSE * evidence.accuracy(others)
        if is_worse and evidence.gain(others, fit.members.index(name)) < min(_MOST, _BY_CHANCE / note.rows):
            found.append(name)
    return tuple(found) if len(found) < len(fit.members) else ()


def _without(fit: Fit, off: Collection[int], accuracy: float) -> Fit:
    """The fit, with these members worth nothing. accuracy: of one alone, as far as that is known."""
    subsets: list[SubsetFit] = []
    for each in fit.subsets:
        rest = tuple(member for member in each.members if member not in off)
        known = fit.of(rest)
        if rest == each.members:
            subsets.append(each)
        elif known is None:  # nobody else answered, or nothing was fitted of the others
            subsets.append(replace(each, accuracy=min(each.accuracy, accuracy)))
        else:
            weight = dict(zip(rest, known.weights, strict=True))
            weights = tuple(weight.get(member, WEIGHTS[0]) for member in each.members)
            subsets.append(replace(known, members=each.members, weights=weights))
    evidence = None if fit.evidence is None else _evidence(fit.evidence, subset_of(off), accuracy)
    return replace(fit, subsets=tuple(subsets), evidence=evidence)


def _evidence(known: EvidenceStates, off: int, accuracy: float) -> EvidenceStates:
    """States of subsets with them are those of the others; of them alone, all are right as often."""
    part = {0: 0}
    for subset in known.subsets:
        rest = subset & ~off
        part[subset] = rest if rest and rest in known.first else subset
    edges = {subset: known.edges[part[subset]] for subset in part}
    right: list[float] = [0.0]
    rows: list[float] = [float(known.rows[0])]
    for subset in known.subsets:
        here = known.states_of(part[subset])
        alone = subset == part[subset] and bool(subset & off)
        right += np.minimum(known.right[here], accuracy).tolist() if alone else known.right[here].tolist()
        rows += known.rows[here].tolist()
    following = {}
    for (subset, member), table in known.following.items():
        before, after = part[subset], part[subset | 1 << member]
        if before == subset and after == subset | 1 << member:
            following[subset, member] = table
        elif before == after:
            following[subset, member] = np.eye(len(known.edges[before]) + 1)
        elif not before & ~off:  # what they said tells nothing of what another one will say
            shares = known.following[0, member]
            following[subset, member] = np.repeat(shares, len(edges[subset]) + 1, axis=0)
        else:
            following[subset, member] = known.following[before, member]
    judged = None
    if known.judged is not None:
        order = [known.subsets.index(part[subset]) for subset in known.subsets]
        told = known.judged
        probable = None if told.probable is None else told.probable[order]
        judged = JudgedRows(told.fold, told.bins[order], told.correct[order], probable)
    first = first_states(known.subsets, edges)
    return EvidenceStates(
        known.members, known.subsets, edges, first, np.array(right), np.array(rows), following, judged
    )
