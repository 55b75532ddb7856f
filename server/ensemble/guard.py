"""Members that are left out: broken, and of no use to the others, so that nothing is asked of them. Pure."""

from __future__ import annotations

from server.ensemble.feedback import Feedback
from server.ensemble.fit import Fit

__all__ = ["left_out"]

_WORSE = 0.5  # times as often right as the others together: what errs so often is broken, and not just worse
_BY_CHANCE = 4  # labelled rows that it may seem to turn right, counted on the rows that it was fitted on
_MOST = 0.05  # of the rows: what gains more is asked all the same


def left_out(feedback: Feedback, fit: Fit) -> tuple[str, ...]:
    """The members that are asked no more: such as a refit found to be of no use. fit: that answers."""
    note = feedback.refit
    if note is None or not note.off or fit.evidence is None:
        return ()
    evidence, everybody = fit.evidence, (1 << len(fit.members)) - 1
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
