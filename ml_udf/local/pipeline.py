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
# form, rows, boxes of each, margin → the pieces of each row, and the rows at fault.
CutOut = Callable[
    [str, Sequence[bytes], list[list[list[float]]], float], tuple[list[list[bytes]], list[RowError]]
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
    first, *others = function.stages
    owners = list(range(len(rows)))
    found = ask(first, form, rows)
    answer.take(found, owners, f"stage 1 ({first.name})")
    boxes: list[list[dict[str, Any]]] = []
    given, given_form = _texts(first, found), "text"
    if function.crop is not None:
        boxes, given, owners = _cut(function, answer, found, form, rows, cut)
        given_form = "image"
    for number, stage in enumerate(others, 2 if function.crop is None else 3):
        sound = [at for at, owner in enumerate(owners) if owner not in answer.errors]
        owners = [owners[at] for at in sound]
        found = ask(stage, given_form, [given[at] for at in sound])
        is_last = stage is others[-1]
        but = "no_confident_answer" if is_last and function.crop is not None else ""
        answer.take(found, owners, f"stage {number} ({stage.name})", but)
        given, given_form = ([] if is_last else _texts(stage, found)), "text"
    if function.crop is None:
        _spread(answer, found, owners, len(rows))
    else:
        _fold(answer, found, owners, boxes, others[-1])
    return answer


def _texts(stage: LocalFunction, found: AnsweredRows) -> list[bytes]:
    said = found.columns[task_named(stage.task).value.name].data
    return [str(text).encode() for text in said]


def _cut(
    function: LocalFunction,
    answer: PipelineAnswer,
    found: AnsweredRows,
    form: str,
    rows: Sequence[bytes],
    cut: CutOut,
) -> tuple[list[list[dict[str, Any]]], list[bytes], list[int]]:
    """The boxes of each row that are cut out, the pieces, and of which row each is."""
    from server.ensemble.crop import Crop
    from server.ensemble.objects import boxes_of

    crop = Crop.from_json(function.crop or {})
    texts = found.columns[task_named(function.stages[0].task).value.name].data
    boxes = [[] if row in answer.errors else crop.cuts(boxes_of(str(text))) for row, text in enumerate(texts)]
    corners = [[list(box["box"]) for box in of_row] for of_row in boxes]
    pieces, errors = cut(form, rows, corners, crop.margin)
    for error in errors:
        answer.errors[error.index] = replace(error, message=f"stage 2 (crop): {error.message}")
    owners = [row for row, of_row in enumerate(pieces) for _ in of_row]
    return boxes, [piece for of_row in pieces for piece in of_row], owners


def _spread(answer: PipelineAnswer, found: AnsweredRows, owners: Sequence[int], rows: int) -> None:
    """The last stage's columns; a row that did not come so far has "" or 0."""
    for name, column in found.columns.items():
        answer.columns[name] = column.empty(rows)
        for at, owner in enumerate(owners):
            answer.columns[name].put(owner, column, at, 1)
    answer.defaulted = {owners[at] for at in found.defaulted}


def _fold(
    answer: PipelineAnswer,
    found: AnsweredRows,
    owners: Sequence[int],
    boxes: Sequence[list[dict[str, Any]]],
    last: LocalFunction,
) -> None:
    """What was found in each picture, with what was said of it."""
    from server.ensemble.objects import answers_of, objects_text

    names = [spec.name for spec in task_named(last.task).columns if spec.name != _SCORES]
    said = answers_of([found.columns[name] for name in names if name in found.columns])
    answers: list[list[dict[str, Any] | None]] = [[] for _ in boxes]
    for at, owner in enumerate(owners):
        answers[owner].append(None if at in found.errors else said[at])
    texts = [
        "" if row in answer.errors else objects_text(of_row, answers[row]) for row, of_row in enumerate(boxes)
    ]
    answer.columns["objects"] = Column("objects", "BYTES", (), texts, "json")
