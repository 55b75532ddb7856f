"""What labelled rows teach a function's members: weights that follow who is right, and how right each was.

    log w_m ← log w_m − η·∂NLL/∂w_m, clipped;    log w_m ← log w_m + pull·(log fitted_m − log w_m)

Exponentiated gradient on one labelled row after another (Kivinen & Warmuth 1997), for every subset that was
fitted and whose members all answered. A row that some members answered, asked by what the others had said,
tells nothing of how often these err: whether a member is broken is judged without it. The pull brings a
weight back once nothing speaks against its fit any more. Rows of a context teach everybody's weights, and by
the same rule its own, which are pulled to those.
Pure: state in, state out, JSON both ways; numpy alone. Knows no row, no label's name and no registry.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from server.ensemble.breakage import Expected, RefitNote
from server.ensemble.contexts import Context
from server.ensemble.fit import Fit, rounded
from server.ensemble.log_pool import LARGEST_STEP, WEIGHTS, Floats

__all__ = [
    "RECENT_ROWS",
    "Feedback",
    "adapted",
    "begun",
    "begun_anew",
    "learned",
    "learned_in",
    "learned_numbers",
    "shifts_in",
]

RECENT_ROWS = 100  # of which it is known who was right

_FORMAT = 1
_RATE = 0.2
_PULL = 0.01  # a labelled row
_RATE_IN_CONTEXT = 0.1  # a context has few labels, and each is noise too
_PULL_IN_CONTEXT = 0.003  # it differs to stay
_SLOWLY = 0.02  # of the way to everybody's weights, a labelled row
_ALIKE = 20  # rows: a context that gives several of so many counts for one of them
_LEAST = 1e-30  # of a probability: a member that rules the label out counts as very wrong, not as infinitely

_LARGEST_SQUARE = 1e300

Weights = tuple[float, ...]
Squares = tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Feedback:
    """Of one deployment. members: the names of those that answer, in their order.

    rows: inputs that have been labelled, each once · recent: of the last 100 labels, bit 0 where the
    function's answer was right, bit 1 + m where member m's was, and, of n members, bit 1 + n + m where member
    m was not asked · weights: of the fit's subsets, in the fit's order; None where nothing is learned
    taught: labels that have taught, of inputs that had one too · in_part: of them, those of rows that only
    some members answered · fresh: of the others, those since the fit was last made anew · refit: when and why
    that was; None for never
    selection: the `state` that the selection `policy` of that name has learned; None where it learns nothing
    squares: where answers are numbers, of the last 100 labels the squared error of the function's answer and
    of each member's, None of one that did not answer; `recent` is empty then, as nobody is right or wrong
    """

    members: tuple[str, ...]
    rows: int = 0
    recent: tuple[int, ...] = ()
    weights: tuple[Weights, ...] | None = None
    slow: tuple[float, ...] | None = None  # of all members together, the slow mean of their weights' logs
    taught: int = 0  # labels that were learned from, also those that took the place of others
    fresh: int = 0
    refit: RefitNote | None = None
    selection: Mapping[str, Any] | None = None
    squares: tuple[Squares, ...] = ()
    in_part: int = 0

    @property
    def whole(self) -> int:
        """Labels that have taught of rows that all members answered: by these members are judged."""
        return self.taught - self.in_part

    @property
    def refits(self) -> int:
        """How many times the fit was made anew."""
        return 0 if self.refit is None else self.refit.number

    @property
    def was_wrong(self) -> dict[str, list[bool]]:
        """Of each member, whether it was wrong on the last labels since the fit was made, the newest last: of
        rows that all members answered.
        """
        by_all = [each for each in self.recent if not each >> 1 + len(self.members)]
        recent = by_all[len(by_all) - min(len(by_all), self.fresh) :]
        return {
            name: [not each >> 1 + place & 1 for each in recent] for place, name in enumerate(self.members)
        }

    def expected(self, fit: Fit) -> dict[str, Expected | None]:
        """Of each member, how often it was to be wrong; fit: as deployed, or as made anew since."""
        if self.refit is not None:
            return dict(zip(self.members, self.refit.expected, strict=True))
        found: dict[str, Expected | None] = {}
        for name in self.members:
            alone = fit.of(fit.subset([name])) if name in fit.members else None
            found[name] = None if alone is None else Expected(1 - alone.accuracy, fit.rows)
        return found

    @property
    def accuracy(self) -> float | None:
        """The share of the last 100 labels that the function's answer was; None where there are none."""
        return _share([bool(each & 1) for each in self.recent])

    @property
    def by_member(self) -> dict[str, float | None]:
        """The same of each member, of those that it answered."""
        unasked = 1 + len(self.members)
        return {
            name: _share(
                [bool(each >> 1 + place & 1) for each in self.recent if not each >> unasked + place & 1]
            )
            for place, name in enumerate(self.members)
        }

    @property
    def errors(self) -> tuple[float | None, ...]:
        """Where answers are numbers, the RMSE over the last 100 labels: the function's, and each member's.

        None of a member that answered none of them; () where there are none.
        """
        columns = [
            [each for each in column if each is not None] for column in zip(*self.squares, strict=True)
        ]
        return tuple(math.sqrt(sum(column) / len(column)) if column else None for column in columns)

    @property
    def squares_of_members(self) -> dict[str, tuple[float, ...]]:
        """By member, where answers are numbers, its squared errors on the last labels of what it answered."""
        return {
            name: tuple(each for row in self.squares if (each := row[place]) is not None)
            for place, name in enumerate(self.members, 1)
        }

    def to_json(self) -> dict[str, Any]:
        """As the registry keeps it; `from_json` reads it."""
        return {
            "format": _FORMAT,
            "members": list(self.members),
            "rows": self.rows,
            "recent": list(self.recent),
            "weights": None if self.weights is None else [list(each) for each in self.weights],
            "slow": None if self.slow is None else list(self.slow),
            "taught": self.taught,
            "fresh": self.fresh,
            "refit": None if self.refit is None else self.refit.to_json(),
            **({} if self.selection is None else {"selection": dict(self.selection)}),
            **({} if not self.squares else {"squares": [list(each) for each in self.squares]}),
            **({} if not self.in_part else {"in_part": self.in_part}),
        }

    @classmethod
    def from_json(cls, kept: Mapping[str, Any], fit: Fit | None) -> Feedback:
        """Raises ValueError for what is none, or is of another fit."""
        try:
            if kept["format"] != _FORMAT:
                raise ValueError(f"its format is {kept['format']!r}, and {_FORMAT} is what can be read here")
            members = tuple(str(name) for name in kept["members"])
            weights = kept["weights"]
            found = cls(
                members,
                int(kept["rows"]),
                tuple(int(each) for each in kept["recent"][-RECENT_ROWS:]),
                None if weights is None else tuple(tuple(map(_weight, each)) for each in weights),
                None if kept.get("slow") is None else tuple(map(float, kept["slow"])),
                # Feedback from before counted none of these: all that is known is of the fit as deployed.
                int(kept.get("taught", kept["rows"])),
                int(kept.get("fresh", kept["rows"])),
                None if (note := kept.get("refit")) is None else RefitNote.from_json(note),
                _selection(kept.get("selection")),
                tuple(
                    tuple(None if one is None else _square(one) for one in each)
                    for each in kept.get("squares", ())[-RECENT_ROWS:]
                ),
                int(kept.get("in_part", 0)),
            )
        except (KeyError, TypeError) as exc:
            raise ValueError(f"{exc!r} is missing or wrong") from exc
        sizes = None if fit is None else [len(each.members) for each in fit.subsets]
        if (None if found.weights is None else [len(each) for each in found.weights]) != sizes:
            raise ValueError("its weights are those of other subsets than were fitted")
        if found.slow is not None and len(found.slow) != len(members):
            raise ValueError("its slow mean is that of other members")
        if any(len(each) != 1 + len(members) or each[0] is None for each in found.squares):
            raise ValueError("its errors are those of other members")
        if found.refit is not None and len(found.refit.expected) != len(members):
            raise ValueError("what is expected is of other members")
        return found


def begun(members: Sequence[str], fit: Fit | None) -> Feedback:
    """Before the first label: the weights as they were fitted."""
    weights = None if fit is None else tuple(each.weights for each in fit.subsets)
    return Feedback(tuple(members), weights=weights)


def begun_anew(feedback: Feedback, fit: Fit, note: RefitNote) -> Feedback:
    """The weights as they were fitted just now; what was counted stays, and who was right is counted anew.

    The slow mean goes on from where it was: contexts stay where they are, and follow.
    """
    weights = tuple(each.weights for each in fit.subsets)
    return replace(feedback, weights=weights, fresh=0, refit=note)


def adapted(fit: Fit, feedback: Feedback | None, context: Context | None = None) -> Fit:
    """The fit with the weights that feedback has taught; those of a context, where one is given."""
    if feedback is None or feedback.weights is None:
        return fit
    subsets = zip(fit.subsets, feedback.weights, strict=True)
    everybody = replace(fit, subsets=tuple(replace(each, weights=weights) for each, weights in subsets))
    return everybody if context is None else everybody.in_context(shifts_in(context, feedback, everybody))


def shifts_in(context: Context, feedback: Feedback, fit: Fit) -> tuple[float, ...]:
    """How far, in the log, a context's weights lie from everybody's, for `Fit.in_context`.

    fit: everybody's, `adapted`. Raises KeyError for a member that was not fitted.
    """
    place_of = {name: place for place, name in enumerate(feedback.members)}
    everybody = fit.subset(feedback.members)
    shifts = [0.0] * len(fit.members)
    for member, weight in zip(everybody, fit.weights(everybody), strict=True):
        place, now = place_of[fit.members[member]], math.log(weight)
        slow = now if feedback.slow is None else feedback.slow[place]
        shifts[member] = slow - now + context.shifts[place]
    return tuple(shifts)


def learned(
    feedback: Feedback,
    fit: Fit | None,
    probabilities: ArrayLike,
    labels: Sequence[int],
    answered: Sequence[bool] | None = None,
    *,
    new: int | None = None,
    by: Collection[int] | None = None,
) -> Feedback:
    """What is known after these labelled rows, one after the other.

    probabilities: [members, rows, classes], of each of the feedback's members at its temperature. labels:
    [rows], places among the classes. answered: whether the function's answer to each row was right; None
    where it follows from the weights of all members together, before each row taught them; not where only
    some members answered. new: how many of the rows are of inputs that had no label yet; None for all.
    by: the places of the members that answered these rows; None for all.

    Raises ValueError for shapes that do not fit and a label that is no class.
    """
    return _learned(feedback, None, fit, probabilities, labels, answered, new, by)[0]


def learned_numbers(
    feedback: Feedback,
    values: ArrayLike,
    targets: Sequence[float],
    *,
    new: int | None = None,
    by: Collection[int] | None = None,
) -> Feedback:
    """What is known after these rows of numbers.

    values: [1 + members, rows], the function's answers and those of each of the feedback's members. targets:
    [rows], what was right. new, by: as in `learned`. A value that is no number errs as far as can be.

    Raises ValueError for shapes that do not fit.
    """
    told, truth = np.asarray(values, np.float64), np.asarray(targets, np.float64)
    if told.shape != (1 + len(feedback.members), *truth.shape) or truth.ndim != 1:
        raise ValueError(f"values are {list(told.shape)} and targets {list(truth.shape)}: no feedback")
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.nan_to_num((told - truth) ** 2, nan=_LARGEST_SQUARE, posinf=_LARGEST_SQUARE)
    least = np.minimum(squares, _LARGEST_SQUARE).T[-RECENT_ROWS:].tolist()
    unasked = _others(feedback, by)
    rows = [
        tuple(None if place in unasked else rounded(each) for place, each in enumerate(row, -1))
        for row in least
    ]
    return replace(
        feedback,
        rows=feedback.rows + (len(truth) if new is None else new),
        squares=(*feedback.squares, *rows)[-RECENT_ROWS:],
        taught=feedback.taught + len(truth),
        fresh=feedback.fresh + len(truth),
    )


def learned_in(
    context: Context | None,
    feedback: Feedback,
    fit: Fit | None,
    probabilities: ArrayLike,
    labels: Sequence[int],
    answered: Sequence[bool] | None = None,
    *,
    new: int | None = None,
    by: Collection[int] | None = None,
) -> tuple[Feedback, Context]:
    """As `learned`, of rows of one context: what is known of everybody's then, and of the context.

    context: None for one that was taught nothing yet. By its weights the function's answers are judged where
    `answered` is None. Where no weights are learned, or none of all members together, or only some of them
    answered, it learns nothing.
    """
    context = context or Context((0.0,) * len(feedback.members))
    if len(context.shifts) != len(feedback.members):
        raise ValueError(f"a context of {len(context.shifts)} members, and {len(feedback.members)} answer")
    known, shifts = _learned(feedback, context, fit, probabilities, labels, answered, new, by)
    return known, Context(shifts or context.shifts, context.rows + len(labels), known.taught)


def _learned(
    feedback: Feedback,
    context: Context | None,
    fit: Fit | None,
    probabilities: ArrayLike,
    labels: Sequence[int],
    answered: Sequence[bool] | None,
    new: int | None,
    by: Collection[int] | None,
) -> tuple[Feedback, tuple[float, ...] | None]:
    given = np.asarray(probabilities, np.float64)
    truth = np.asarray(labels, np.intp)
    if given.ndim != 3 or len(given) != len(feedback.members) or truth.shape != given.shape[1:2]:
        raise ValueError(f"probabilities are {list(given.shape)} and labels {list(truth.shape)}: no feedback")
    if len(truth) and not 0 <= truth.min() <= truth.max() < given.shape[2]:
        raise ValueError(f"a label is no place among {given.shape[2]} classes")
    unasked = _others(feedback, by)
    right = given.argmax(axis=2) == truth
    right[list(unasked)] = False
    weights, slow, shifts = feedback.weights, feedback.slow, None
    if fit is not None and weights is not None:
        logs = np.log(np.clip(np.nan_to_num(given, nan=0.0), _LEAST, 1.0))
        weights, slow, together, shifts = _descended(feedback, fit, logs, truth, context, unasked)
        answered = together if answered is None and not unasked else answered
    if answered is None or len(answered) != len(truth):
        raise ValueError("whether the function's answers were right is not given for each row")
    unknown = sum(1 << 1 + len(feedback.members) + place for place in unasked)
    bits = [
        int(function) | sum(int(member) << place for place, member in enumerate(of_members, 1)) | unknown
        for function, of_members in zip(answered, right.T.tolist(), strict=True)
    ]
    in_part = len(truth) if unasked else 0
    known = replace(
        feedback,
        rows=feedback.rows + (len(truth) if new is None else new),
        recent=(*feedback.recent, *bits)[-RECENT_ROWS:],
        weights=weights,
        slow=slow,
        taught=feedback.taught + len(truth),
        fresh=feedback.fresh + len(truth) - in_part,
        in_part=feedback.in_part + in_part,
    )
    return known, shifts


def _descended(
    feedback: Feedback,
    fit: Fit,
    logs: Floats,
    labels: NDArray[np.intp],
    context: Context | None,
    unasked: Collection[int],
) -> tuple[tuple[Weights, ...], tuple[float, ...] | None, list[bool], tuple[float, ...] | None]:
    """The weights after these rows, their slow mean, whether all members together answered each rightly
    before it, and the shifts of the rows' context.

    logs: [members, rows, classes]. context: as it was before; None for none. unasked: the places of the
    members that did not answer these rows.
    """
    assert feedback.weights is not None
    place_of = {name: place for place, name in enumerate(feedback.members) if place not in unasked}
    names = [[fit.members[member] for member in each.members] for each in fit.subsets]
    # A member alone has nobody to be weighed against.
    learning = [s for s, each in enumerate(names) if len(each) > 1 and place_of.keys() >= set(each)]
    columns = {s: [place_of[name] for name in names[s]] for s in learning}
    taking_part = np.zeros((len(learning), len(feedback.members)), np.bool_)
    log_w, aim = np.zeros(taking_part.shape), np.zeros(taking_part.shape)
    for row, s in enumerate(learning):
        taking_part[row, columns[s]] = True
        log_w[row, columns[s]] = np.log(np.clip(feedback.weights[s], *WEIGHTS))
        aim[row, columns[s]] = np.log(np.clip(fit.subsets[s].weights, *WEIGHTS))
    whole = next((row for row, part in enumerate(taking_part) if part.all()), None)
    low, high = np.log(WEIGHTS)
    answering, rate, pull = whole, np.full((len(learning), 1), _RATE), np.full((len(learning), 1), _PULL)
    slow = None if whole is None else np.asarray(feedback.slow or log_w[whole])
    shifts, since = None, _ALIKE
    if context is not None and slow is not None:  # a context's own weights, which aim at everybody's
        answering = len(learning)
        taking_part = np.vstack([taking_part, taking_part[whole]])
        log_w = np.vstack([log_w, np.clip(slow + context.shifts, low, high)])
        aim = np.vstack([aim, slow])
        rate, pull = np.vstack([rate, [_RATE_IN_CONTEXT]]), np.vstack([pull, [_PULL_IN_CONTEXT]])
        if context.rows:
            since = min(_ALIKE, 1 + feedback.taught - context.at)
    right: list[bool] = []
    for row, label in enumerate(labels.tolist()):
        log = logs[:, row]
        if answering is None:  # nothing was fitted of all together: each counts alike
            right.append(int(log.sum(axis=0).argmax()) == label)
        q = np.where(taking_part, np.exp(log_w), 0.0) @ log
        if answering is not None:
            right.append(int(q[answering].argmax()) == label)
        q -= q.max(axis=1, keepdims=True)
        np.exp(q, out=q)
        q /= q.sum(axis=1, keepdims=True)
        slope = q @ log.T - log[:, label]
        # The gradient in log w would carry a factor w: without it a weight that has fallen can rise again.
        # Not `np.clip`, which takes as long as all the rest.
        log_w = log_w - np.minimum(np.maximum(rate * slope, -LARGEST_STEP), LARGEST_STEP)
        if slow is not None:
            slow = slow + _SLOWLY * since / _ALIKE * (log_w[whole] - slow)
        if answering != whole:
            aim[answering], since = slow, 1
        log_w = np.minimum(np.maximum(log_w + pull * (aim - log_w), low), high)
    if slow is not None and answering != whole:
        shifts = tuple((log_w[answering] - slow).tolist())
    found = list(feedback.weights)
    for row, s in enumerate(learning):
        found[s] = tuple(map(rounded, np.exp(log_w[row, columns[s]])))
    after = feedback.slow if slow is None else tuple(map(rounded, slow))
    return tuple(found), after, right, shifts


def _others(feedback: Feedback, by: Collection[int] | None) -> frozenset[int]:
    """The places of the members that are not among these."""
    return frozenset() if by is None else frozenset(range(len(feedback.members))).difference(by)


def _share(right: Sequence[bool]) -> float | None:
    return sum(right) / len(right) if right else None


def _selection(kept: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if kept is None else {"policy": str(kept["policy"]), "state": dict(kept["state"])}


def _square(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LARGEST_SQUARE:
        raise ValueError(f"{value!r} is no squared error")
    return float(value)


def _weight(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < np.inf:
        raise ValueError(f"{value!r} is no weight: a number above 0")
    return float(value)
