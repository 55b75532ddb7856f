"""A function of functions, answered in this process: from stage to stage, as its server would."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gpu_worker.tasks import task_named
from gpu_worker.wire.protocol import Column, RowError
from ml_udf.local.catalog import LocalFunction

if TYPE_CHECKING:
    from server.ensemble.by_plan import AnsweredRows

__all__ = ["AskStage", "CutOut", "PipelineAnswer", "answer_pipeline"]

_SCORES = "scores"

# stage, form, rows, whether all columns are wanted → what it answers.
AskStage = Callable[[LocalFunction, str, Sequence[bytes]], "AnsweredRows"]
# form, rows, boxes of each, margin → the pieces of each row, the rows at fault, and those that are to be cut
# once these pieces are used.
CutOut = Callable[
    [str, Sequence[bytes], list[list[list[float]]], float],
    tuple[list[list[bytes]], list[RowError], list[int]],
]


@dataclass(slots=True)
class PipelineAnswer:
    """columns: by name · errors: by row · by: who answered each · defaulted: rows so answered."""

    columns: dict[str, Column] = field(default_factory=dict)
    errors: dict[int, RowError] = field(default_factory=dict)
    by: list[list[str]] = field(default_factory=list)
    defaulted: set[int] = field(default_factory=set)

    def take(self, found: AnsweredRows, owners: Sequence[int], where: str, but: str = "") -> None:
        """Take in who answered, and what was at fault, but for errors of that code."""
        for at, members in enumerate(found.answered_by):
            by = self.by[owners[at]]
            by += [name for name in members.split(",") if name and name not in by]
        for at, error in found.errors.items():
            if error.code != but:
                told = replace(error, index=owners[at], message=f"{where}: {error.message}")
                self.errors.setdefault(owners[at], told)


def answer_pipeline(
    function: LocalFunction, form: str, rows: Sequence[bytes], ask: AskStage, cut: CutOut
) -> PipelineAnswer:
    """The answers to some rows. Raises what `ask` and `cut` raise."""
    answer = PipelineAnswer(by=[[] for _ in rows])
    first = function.stages[0]
    owners: Sequence[int] = range(len(rows))
    found = ask(first, form, rows)
    answer.take(found, owners, f"stage 1 ({first.name})")
    if function.crop is None:
        found, owners = _asked_on(function, answer, _texts(first, found), owners, ask)
        _spread(answer, found, owners, len(rows))
    else:
        _answer_objects(function, answer, found, form, rows, ask, cut)
    return answer


def _asked_on(
    function: LocalFunction,
    answer: PipelineAnswer,
    given: Sequence[bytes],
    owners: Sequence[int],
    ask: AskStage,
) -> tuple[AnsweredRows, Sequence[int]]:
    """What the last stage says of what the second is given, and of which row each of it is."""
    is_cut = function.crop is not None
    form = "image" if is_cut else "text"
    others = function.stages[1:]
    for number, stage in enumerate(others, 3 if is_cut else 2):
        sound = [at for at, owner in enumerate(owners) if owner not in answer.errors]
        owners = [owners[at] for at in sound]
        found = ask(stage, form, [given[at] for at in sound])
        is_last = stage is others[-1]
        but = "no_confident_answer" if is_last and is_cut else ""
        answer.take(found, owners, f"stage {number} ({stage.name})", but)
        given, form = ([] if is_last else _texts(stage, found)), "text"
    return found, owners


def _texts(stage: LocalFunction, found: AnsweredRows) -> list[bytes]:
    said = found.columns[task_named(stage.task).value.name].data
    return [str(text).encode() for text in said]


def _answer_objects(
    function: LocalFunction,
    answer: PipelineAnswer,
    found: AnsweredRows,
    form: str,
    rows: Sequence[bytes],
    ask: AskStage,
    cut: CutOut,
) -> None:
    """What was found in each picture, with what the later stages say of it."""
    from server.ensemble.crop import Crop
    from server.ensemble.objects import answers_of, boxes_of, objects_text

    crop = Crop.from_json(function.crop or {})
    texts = found.columns[task_named(function.stages[0].task).value.name].data
    boxes = [[] if row in answer.errors else crop.cuts(boxes_of(str(text))) for row, text in enumerate(texts)]
    names = [spec.name for spec in task_named(function.stages[-1].task).columns if spec.name != _SCORES]
    answers: list[list[dict[str, Any] | None]] = [[] for _ in boxes]
    left = [row for row, there in enumerate(boxes) if there]
    while left:  # mostly once: large pieces are answered before there are more of them
        corners = [[list(box["box"]) for box in boxes[row]] for row in left]
        pieces, errors, later = cut(form, [rows[row] for row in left], corners, crop.margin)
        for error in errors:
            row, told = left[error.index], f"stage 2 (crop): {error.message}"
            answer.errors[row] = replace(error, index=row, message=told)
        given = [piece for of_row in pieces for piece in of_row]
        owners = [row for row, of_row in zip(left, pieces, strict=True) for _ in of_row]
        said, owners_left = _asked_on(function, answer, given, owners, ask)
        told_of = answers_of([said.columns[name] for name in names if name in said.columns])
        for at, owner in enumerate(owners_left):
            answers[owner].append(None if at in said.errors else told_of[at])
        left = [left[place] for place in later]
    objects = [
        "" if row in answer.errors else objects_text(of_row, answers[row]) for row, of_row in enumerate(boxes)
    ]
    answer.columns["objects"] = Column("objects", "BYTES", (), objects, "json")


def _spread(answer: PipelineAnswer, found: AnsweredRows, owners: Sequence[int], rows: int) -> None:
    """The last stage's columns; a row that did not come so far has "" or 0."""
    for name, column in found.columns.items():
        answer.columns[name] = column.empty(rows)
        for at, owner in enumerate(owners):
            answer.columns[name].put(owner, column, at, 1)
    answer.defaulted = {owners[at] for at in found.defaulted}
