"""Clipper's Figure 10: digits turned by eight angles, a member for each; labels tell which one suits whom.

Rows of all angles come in a random order; each is answered, then its label teaches. A row's angle is its
context. The function was fitted on rows of all angles together.

per context        what ships: a context's weights lie beside the slow mean of everybody's (contexts.py)
a state each       a context's weights learn from its own labels alone, as Clipper keeps a state for each
exp4 each          the same with the paper's own policy, at the best of its rates in hindsight
global weights     one set of weights learns from all labels
fixed weights      as fitted; nothing learns
its own model      the member that was trained for the row's angle (the users' reported dialect)
one for all        a model of the same kind, trained on the training rows of all angles (dialect-oblivious)
fitted apart       weights that were fitted on held-out rows of the row's angle alone, known beforehand
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from server.ensemble.contexts import Context
from server.ensemble.feedback import adapted, begun, learned, learned_in
from server.ensemble.fit import Fit, combined, fit_combination
from server.ensemble.log_pool import at_temperatures
from tests.benchmarks.clipper_data import (
    ANGLES,
    Answers,
    DialectSplit,
    dialects,
)
from tests.benchmarks.clipper_failure import RATES, Stream, exp4

OURS, EACH, PAPERS = "per context", "a state each", "exp4 each"
GLOBAL, STILL = "global weights", "fixed weights"
OWN, FOR_ALL, APART = "its own model", "one for all", "fitted apart"
CONTENDERS = (OURS, EACH, PAPERS, GLOBAL, STILL, OWN, FOR_ALL, APART)
ROWS_EACH = 800
WINDOW = 40  # rows of one context, over which a curve's error is counted

Wrong = NDArray[np.bool_]
_EVERYBODY = tuple(range(len(ANGLES)))


@dataclass(frozen=True)
class Curve:
    """Shares of wrong answers, %: of all rows, of the last half, and by windows of a context's own rows."""

    whole: float
    last_half: float
    windows: list[float]


def curves(number: int, rows_each: int = ROWS_EACH) -> dict[str, Curve]:
    """Every contender on the same rows in the same order."""
    split = dialects(number, rows_each)
    fit = _fitted(split.fitting)
    told, labels = split.judging.told, split.judging.labels
    rows = np.arange(len(labels))
    wrong = {
        OURS: _in_contexts(fit, split),
        EACH: _apart(split, lambda rows: _learning(fit, split.judging, rows)),
        PAPERS: min((_apart(split, partial(_exp4, fit, split.judging, rate)) for rate in RATES), key=np.mean),
        GLOBAL: _learning(fit, split.judging, rows),
        STILL: combined(fit, _EVERYBODY, told).argmax(axis=1) != labels,
        OWN: told[split.dialects, rows].argmax(axis=1) != labels,
        FOR_ALL: split.for_all.argmax(axis=1) != labels,
        APART: _fitted_apart(split),
    }
    seen = _seen(split)
    return {name: _curve(each, seen, rows_each) for name, each in wrong.items()}


def _fitted(answers: Answers) -> Fit:
    alone = [(member,) for member in _EVERYBODY]
    groups = answers.groups.tolist()
    return fit_combination(answers.told, answers.labels, [*alone, _EVERYBODY], groups=groups)


def _learning(fit: Fit, answers: Answers, rows: NDArray[np.intp]) -> Wrong:
    """Whether each of these rows is answered wrongly by the weights of its time, which its label moves."""
    known = at_temperatures(answers.told[:, rows], fit.temperatures)
    feedback, wrong = begun(fit.members, fit), np.zeros(len(rows), np.bool_)
    for place, row in enumerate(rows.tolist()):
        answer = combined(adapted(fit, feedback), _EVERYBODY, answers.told[:, row : row + 1])
        wrong[place] = int(answer.argmax()) != answers.labels[row]
        feedback = learned(feedback, fit, known[:, place : place + 1], [int(answers.labels[row])])
    return wrong


def _in_contexts(fit: Fit, split: DialectSplit) -> Wrong:
    """As `_learning`, of all rows, each in its context."""
    known = at_temperatures(split.judging.told, fit.temperatures)
    feedback, contexts = begun(fit.members, fit), dict[int, Context]()
    wrong = np.zeros(len(split.dialects), np.bool_)
    for row, (dialect, label) in enumerate(zip(split.dialects.tolist(), split.judging.labels, strict=True)):
        context = contexts.get(dialect)
        answered_by = adapted(fit, feedback, context)
        answer = combined(answered_by, _EVERYBODY, split.judging.told[:, row : row + 1])
        wrong[row] = int(answer.argmax()) != label
        feedback, contexts[dialect] = learned_in(
            context, feedback, fit, known[:, row : row + 1], [int(label)]
        )
    return wrong


def _apart(split: DialectSplit, answered: Callable[[NDArray[np.intp]], Wrong]) -> Wrong:
    """The rows of each context by themselves."""
    wrong = np.zeros(len(split.dialects), np.bool_)
    for dialect in range(len(ANGLES)):
        rows = np.flatnonzero(split.dialects == dialect)
        wrong[rows] = answered(rows)
    return wrong


def _exp4(fit: Fit, answers: Answers, rate: float, rows: NDArray[np.intp]) -> Wrong:
    labelled = np.ones(len(rows), np.bool_)
    return exp4(Stream(fit, answers.told[:, rows], answers.labels[rows], labelled, best=0, seed=0), rate)


def _fitted_apart(split: DialectSplit) -> Wrong:
    wrong = np.zeros(len(split.dialects), np.bool_)
    for dialect in range(len(ANGLES)):
        part, mine = split.fitting, split.fitting_dialects == dialect
        fit = _fitted(Answers(part.told[:, mine], part.labels[mine], part.groups[mine]))
        rows = np.flatnonzero(split.dialects == dialect)
        answers = combined(fit, _EVERYBODY, split.judging.told[:, rows])
        wrong[rows] = answers.argmax(axis=1) != split.judging.labels[rows]
    return wrong


def _seen(split: DialectSplit) -> NDArray[np.intp]:
    """How many rows of its own context came before each row."""
    seen = np.zeros(len(split.dialects), np.intp)
    for dialect in range(len(ANGLES)):
        rows = np.flatnonzero(split.dialects == dialect)
        seen[rows] = np.arange(len(rows))
    return seen


def _curve(wrong: Wrong, seen: NDArray[np.intp], rows_each: int) -> Curve:
    windows = [
        100 * float(wrong[(seen >= first) & (seen < first + WINDOW)].mean())
        for first in range(0, rows_each, WINDOW)
    ]
    half = wrong[seen >= rows_each // 2]
    return Curve(100 * float(wrong.mean()), 100 * float(half.mean()), [round(each, 3) for each in windows])
