"""What came of a try: the answer with its confidence, and what each member says by itself. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpu_worker.wire.protocol import Answer
from server.catalog.functions import Function
from server.dashboard.answer_view import AnswerView, answer_of
from server.dashboard.error_hints import hint_of
from server.dashboard.try_inputs import Asked
from server.serving.calls import Reply

__all__ = ["MemberSays", "TriedView", "refused_view", "tried_view"]


@dataclass(frozen=True, slots=True)
class MemberSays:
    """One member's own answer; None where it gave none. took_part: whether the answer rests on it too."""

    name: str
    answer: AnswerView | None
    took_part: bool
    agrees: bool


@dataclass(frozen=True, slots=True)
class TriedView:
    """asked: the row · answer: None where there is an error · is_default: nothing was sure enough"""

    asked: Asked
    answer: AnswerView | None
    took_s: float
    answered_by: tuple[str, ...] = ()
    is_default: bool = False
    members: tuple[MemberSays, ...] = ()
    error_code: str = ""
    error: str = ""
    hint: str = ""

    @property
    def is_expected(self) -> bool | None:
        """Whether the answer is the dataset's label; None where that is not known, or no class."""
        if not self.asked.expected or self.answer is None or self.answer.kind != "class":
            return None
        return self.answer.value == self.asked.expected


def tried_view(
    function: Function, asked: Asked, reply: Reply, told: Sequence[tuple[int, Answer]], took_s: float
) -> TriedView:
    """told: what each member said, as `Reply.told` has it."""
    if reply.errors:
        error = reply.errors[0]
        return TriedView(
            asked,
            None,
            took_s,
            error_code=error.code,
            error=error.message,
            hint=hint_of(error.code),
        )
    answer = answer_of(function.task, function.classes, reply.columns)
    by = tuple(key for _, _, keys in reply.answered_by for key in keys.split(",") if key)
    named = {member.key: member.name for member in function.members}
    names = {named.get(key, key) for key in by}
    said = {each.model: each for _, all_said in told for each in all_said.members}
    members = []
    for member in function.members:
        own = said.get(member.key)
        shown = None
        if own is not None:
            columns = {column.name: column for column in own.columns}
            shown = answer_of(function.task, function.classes, columns)
        elif len(function.members) == 1:
            shown = answer
        agrees = shown is not None and shown.value == answer.value
        members.append(MemberSays(member.key, shown, member.name in names, agrees))
    return TriedView(asked, answer, took_s, tuple(sorted(names)), bool(reply.defaulted), tuple(members))


def refused_view(asked: Asked, code: str, message: str, took_s: float) -> TriedView:
    """There is no answer at all."""
    return TriedView(asked, None, took_s, error_code=code, error=message, hint=hint_of(code))
