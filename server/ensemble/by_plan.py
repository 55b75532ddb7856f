"""Rows answered by a plan where nobody waits: asked of one member after the other until that is enough.

The richest plan, since a device's time costs nothing then. Pure: who asks the members is the caller.
`ml_udf.local` answers so; a server's rows wait in a pool (server/scheduling/pool.py), by a plan that follows
the load.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpu_worker.wire.protocol import Answer, Column, MemberAnswer, RowError
from server.ensemble.answer import AnswerRule, FunctionAnswer
from server.ensemble.ask_steps import shares_asked
from server.ensemble.evidence import NOTHING, EvidenceStates, members_of
from server.ensemble.one_by_one import CHANCE
from server.ensemble.plan import MANY_ROWS, drawn_together
from server.record import record

__all__ = [
    "AnsweredRows",
    "answer_apart",
    "answer_by_plan",
    "answered_rows",
    "check_plan",
    "expected_accuracies",
    "members_asked",
    "richest_plan",
]

_ENOUGH = -1  # in place of a member

Rows = NDArray[np.intp]


@record
class AnsweredRows:
    """columns: by name · errors: by row · answered_by: of each row · defaulted: rows so answered."""

    columns: dict[str, Column]
    errors: dict[int, RowError]
    answered_by: list[str]
    defaulted: set[int]


def richest_plan(evidence: EvidenceStates) -> list[int]:
    """From each state, the number of the member that is asked next, or −1 where it is enough.

    A row is answered where no further member is worth more than chance would have it: the answer gains less
    than 0.01 by it, where labels were counted, or few rows, even if that is off by its standard error. So few
    rows make nobody stop, and what was counted too well costs no accuracy.
    """
    judged = evidence.judged
    is_rough = judged is None or judged.probable is None or evidence.rows[NOTHING] < MANY_ROWS
    worth = evidence.right.copy()  # of a state, followed to its end
    plan = [_ENOUGH] * evidence.states
    for subset in (*reversed(evidence.subsets), 0):
        here = evidence.states_of(subset)
        right, rows = evidence.right[here], evidence.rows[here]
        gains = np.full((evidence.members, len(right)), -np.inf)
        for member in range(evidence.members):
            following = evidence.following.get((subset, member))
            if following is not None:
                after = following @ worth[evidence.states_of(subset | 1 << member)]
                gains[member] = drawn_together(after - right, rows)
        best = gains.max(axis=0)
        # At most all that is wrong turns right.
        error = np.sqrt(np.maximum(1 - right, 0) / np.maximum(rows, 1)) if is_rough else 0.0
        for place in np.flatnonzero(np.isfinite(best) & ((best + error > CHANCE) | (subset == 0))):
            plan[here.start + place] = int(gains[:, place].argmax())
        worth[here] = right + (best if subset == 0 else np.maximum(best, 0))
    return plan


def members_asked(evidence: EvidenceStates, plan: Sequence[int]) -> float:
    """How many members a row is asked of by the plan, in expectation."""
    return float(shares_asked(plan, evidence).sum())


def check_plan(plan: Sequence[int], evidence: EvidenceStates | None) -> None:
    """Raises ValueError for a plan of other evidence, or one that asks nobody, or the same member twice."""
    states = 0 if evidence is None else evidence.states
    if evidence is None or len(plan) != states:
        raise ValueError(f"its plan is of {len(plan)} states, and there are {states}")
    for subset in (0, *evidence.subsets):
        for member in plan[evidence.states_of(subset)]:
            if member == _ENOUGH and subset:
                continue
            asked = subset | 1 << member if 0 <= member < evidence.members else subset
            if asked == subset or asked not in evidence.edges:
                raise ValueError(f"its plan asks {member} of rows that {subset:#b} have answered")


def answered_rows(answer: FunctionAnswer) -> AnsweredRows:
    """The answers of all members to all rows, in that form."""
    errors = {error.index: error for error in answer.errors}
    who = [answer.answered_by] * answer.rows
    return AnsweredRows(dict(answer.columns), errors, who, set(answer.defaulted))


def expected_accuracies(rule: AnswerRule, found: AnsweredRows) -> list[float]:
    """By row, how often such an answer is right; nan where that is not known, as of a default answer."""
    rows_of: dict[str, list[int]] = {}  # by the members that answered them
    for row, members in enumerate(found.answered_by):
        rows_of.setdefault(members, []).append(row)
    answered_by = ((rows, members) for members, rows in rows_of.items())
    unknown = (*found.errors, *found.defaulted)
    return rule.expected_by_row(len(found.answered_by), found.columns, answered_by, unknown)


def answer_by_plan(
    rule: AnswerRule, plan: Sequence[int], rows: int, ask: Callable[[str, Sequence[int]], Answer]
) -> AnsweredRows:
    """Answer rows 0 to `rows` by a plan of the rule's fit. `ask(key, rows)`: what a member says of rows.

    A row that a member finds faulty is asked of no other. Raises what `ask` raises, and as
    `AnswerRule.answer` does; ValueError for a plan of other evidence than the rule's.
    """
    fit = rule.fit
    if fit is None:
        raise ValueError(f"nothing was fitted of {rule.function}, by which a plan could be followed")
    check_plan(plan, fit.evidence)
    key_of = {name: key for key, (name, _) in rule.members.items()}
    keys = [key_of[name] for name in fit.members]
    answered: list[tuple[Rows, FunctionAnswer]] = []
    groups = [_Group(0, np.arange(rows), (), np.full(rows, plan[0]))]
    while groups:
        groups = [
            group
            for member, key in enumerate(keys)
            for group in _asked(rule, plan, groups, member, key, ask, answered)
        ]
    return _joined(answered, rows)


def answer_apart(rule: AnswerRule, told: Answer, rows: int) -> FunctionAnswer:
    """The function's answer to rows of which a worker asked whom it was told to ask (`told.answered`).

    Raises what `AnswerRule.answer` does; ValueError where it is not said of every row who answered.
    """
    everybody = (1 << len(told.members)) - 1
    answered = np.array(told.answered, np.intp)
    if len(answered) != rows or (answered < 0).any() or (answered > everybody).any():
        raise ValueError(f"which of {len(told.members)} models answered is not said of each of {rows} rows")
    answered[answered == 0] = everybody  # they are at fault, and nobody was asked
    parts: list[tuple[Rows, FunctionAnswer]] = []
    for subset in np.unique(answered).tolist():
        places = np.flatnonzero(answered == subset)
        at = {row: number for number, row in enumerate(places.tolist())}
        members = [_taken(told.members[member], places) for member in members_of(subset)]
        errors = [RowError(at[each.index], *_said(each)) for each in told.errors if each.index in at]
        parts.append((places, rule.answer(Answer(0, members, errors))))
    found = _joined(parts, rows)
    errors = [found.errors[row] for row in sorted(found.errors)]
    return FunctionAnswer(rows, found.columns, errors, "", frozenset(found.defaulted), found.answered_by)


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows that the same members have answered. next: of each row, the member to ask."""

    subset: int
    rows: Rows
    members: tuple[MemberAnswer, ...]
    next: Rows


def _asked(
    rule: AnswerRule,
    plan: Sequence[int],
    groups: Sequence[_Group],
    member: int,
    key: str,
    ask: Callable[[str, Sequence[int]], Answer],
    answered: list[tuple[Rows, FunctionAnswer]],
) -> list[_Group]:
    """Ask one member for all rows that need it next; those with enough are `answered`, others are left."""
    wanted = [(group, np.flatnonzero(group.next == member)) for group in groups]
    wanted = [(group, places) for group, places in wanted if len(places)]
    if not wanted:
        return []
    rows = np.concatenate([group.rows[places] for group, places in wanted])
    told = ask(key, rows.tolist())
    faulty = {error.index: error for error in told.errors}
    left: list[_Group] = []
    first = 0
    for group, places in wanted:
        here = range(first, first + len(places))
        first = here.stop
        members = (*(_taken(each, places) for each in group.members), _taken(told.members[0], np.array(here)))
        errors = [RowError(at, *_said(faulty[row])) for at, row in enumerate(here) if row in faulty]
        found = rule.answer(Answer(0, list(members), errors))
        subset = group.subset | 1 << member
        following = _following(rule, plan, subset, found)
        following[[error.index for error in errors]] = _ENOUGH
        enough = np.flatnonzero(following == _ENOUGH)
        if len(enough):
            answered.append((group.rows[places[enough]], _part(found, enough)))
        more = np.flatnonzero(following != _ENOUGH)
        if len(more):
            still = tuple(_taken(each, more) for each in members)
            left.append(_Group(subset, group.rows[places[more]], still, following[more]))
    return left


def _following(rule: AnswerRule, plan: Sequence[int], subset: int, found: FunctionAnswer) -> Rows:
    """Whom the plan asks next of each row."""
    evidence = None if rule.fit is None else rule.fit.evidence
    assert evidence is not None, "it was asked for"
    sure = found.columns[rule.task.confidence or "confidence"].values
    return np.array([plan[evidence.state_of(subset, each)] for each in sure], np.intp)


def _said(error: RowError) -> tuple[str, str]:
    return error.code, error.message


def _part(answer: FunctionAnswer, places: Rows) -> FunctionAnswer:
    """Some rows of an answer."""
    at = {row: number for number, row in enumerate(places.tolist())}
    return FunctionAnswer(
        len(at),
        {name: _column(column, places) for name, column in answer.columns.items()},
        [RowError(at[error.index], *_said(error)) for error in answer.errors if error.index in at],
        answer.answered_by,
        frozenset(at[row] for row in answer.defaulted if row in at),
    )


def _taken(answer: MemberAnswer, places: Rows) -> MemberAnswer:
    return MemberAnswer(answer.model, [_column(column, places) for column in answer.columns])


def _column(column: Column, places: Rows) -> Column:
    """These rows of a column, in this order."""
    if isinstance(column.data, list):
        texts = [column.data[row] for row in places]
        return Column(column.name, column.datatype, column.shape, texts, column.content)
    rows = np.frombuffer(column.data, np.uint8).reshape(-1, column.row_bytes)
    return Column(column.name, column.datatype, column.shape, rows[places].tobytes())


def _joined(parts: Sequence[tuple[Rows, FunctionAnswer]], rows: int) -> AnsweredRows:
    """The parts as one, each of whose rows stands where it came from."""
    joined = AnsweredRows({}, {}, [""] * rows, set())
    if not parts:
        return joined
    order = np.argsort(np.concatenate([where for where, _ in parts]), kind="stable")
    for name in parts[0][1].columns:
        columns = [answer.columns[name] for _, answer in parts]
        joined.columns[name] = _column(_behind_each_other(columns), order)
    for where, answer in parts:
        numbers = where.tolist()
        for number in numbers:
            joined.answered_by[number] = answer.answered_by
        joined.errors.update((numbers[error.index], error) for error in answer.errors)
        joined.defaulted.update(numbers[row] for row in answer.defaulted)
    return joined


def _behind_each_other(columns: Sequence[Column]) -> Column:
    first = columns[0]
    if isinstance(first.data, list):
        texts = [text for column in columns for text in column.data]
        return Column(first.name, first.datatype, first.shape, texts, first.content)  # type: ignore[arg-type]  # texts
    numbers = b"".join(bytes(column.data) for column in columns)  # type: ignore[arg-type]  # all are numbers
    return Column(first.name, first.datatype, first.shape, numbers)
