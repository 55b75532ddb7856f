"""An answer of any task, as a page shows it."""

from __future__ import annotations

import json
import math
from array import array
from typing import Any

import pytest

from gpu_worker.tasks import task_named
from gpu_worker.wire.protocol import Answer, Column, MemberAnswer, RowError
from server.catalog.functions import ModelVersion
from server.dashboard.answer_view import answer_of
from server.dashboard.try_inputs import Asked
from server.dashboard.try_view import tried_view
from server.serving.calls import Reply
from tests.unit.server.served import CLASSES, function, text_model

TEXT = "BYTES"


def column(name: str, datatype: str, values: list[Any], *shape: int, content: str = "") -> Column:
    codes = {"FP32": "f", "FP64": "d", "INT64": "q"}
    data: Any = values if datatype == TEXT else array(codes[datatype], values).tobytes()
    return Column(name, datatype, shape, data, content)


def columns(*given: Column) -> dict[str, Column]:
    return {each.name: each for each in given}


def test_a_class_has_its_confidence_and_the_most_probable_others() -> None:
    shown = answer_of(
        task_named("text-classification"),
        CLASSES,
        columns(
            column("label", TEXT, ["pizza"]),
            column("confidence", "FP32", [0.75]),
            column("scores", "FP32", [0.125, 0.75, 0.125], 3),
        ),
    )
    assert (shown.kind, shown.value, shown.confidence) == ("class", "pizza", 0.75)
    assert [(each.label, each.score) for each in shown.scores] == [
        ("pizza", 0.75),
        ("laksa", 0.125),
        ("satay", 0.125),
    ]


def test_a_member_that_gave_scores_alone_says_its_most_probable_class() -> None:
    shown = answer_of(
        task_named("text-classification"), CLASSES, columns(column("scores", "FP32", [0.0, 0.25, 0.75], 3))
    )
    assert (shown.value, shown.confidence) == ("satay", 0.75)


def test_several_labels_stand_in_one_line_and_none_is_said() -> None:
    task = task_named("text-multilabel")
    both = answer_of(task, CLASSES, columns(column("labels", TEXT, ['["laksa", "satay"]'])))
    assert (both.kind, both.value) == ("labels", "laksa, satay")
    assert answer_of(task, CLASSES, columns(column("labels", TEXT, ["[]"]))).value == "none"


def test_a_number_has_its_interval_where_the_model_gives_one() -> None:
    task = task_named("text-regression")
    ends = column("low", "FP64", [1.0]), column("high", "FP64", [2.0])
    shown = answer_of(task, (), columns(column("value", "FP64", [1.5]), *ends))
    assert (shown.kind, shown.value, shown.low, shown.high) == ("number", "1.5", 1.0, 2.0)
    none = column("low", "FP64", [math.nan]), column("high", "FP64", [math.nan])
    assert answer_of(task, (), columns(column("value", "FP64", [1.5]), *none)).low is None


def test_a_vector_has_its_first_numbers_its_size_and_its_norm() -> None:
    shown = answer_of(
        task_named("text-embedding"), (), columns(column("embedding", "FP32", [3.0, 4.0] + [0.0] * 30, 32))
    )
    assert (shown.kind, shown.size, shown.norm, shown.numbers[:2]) == ("vector", 32, 5.0, (3.0, 4.0))
    assert len(shown.numbers) == 12


def boxes(*scores: float) -> str:
    return json.dumps(
        [{"label": f"b{at}", "score": score, "box": [1, 2, 11, 22]} for at, score in enumerate(scores)]
    )


def test_boxes_are_the_surest_ones_with_their_sizes() -> None:
    task = task_named("object-detection")
    shown = answer_of(task, CLASSES, columns(column("boxes", TEXT, [boxes(0.1, 0.9, 0.3)], content="boxes")))
    assert [(box.label, box.score) for box in shown.boxes] == [("b1", 0.9), ("b2", 0.3)]
    assert (shown.boxes[0].x, shown.boxes[0].y, shown.boxes[0].width, shown.boxes[0].height) == (1, 2, 10, 20)
    assert shown.more_boxes == 1
    unsure = answer_of(task, CLASSES, columns(column("boxes", TEXT, [boxes(0.1, 0.05)], content="boxes")))
    assert len(unsure.boxes) == 2
    assert (
        answer_of(task, CLASSES, columns(column("boxes", TEXT, ["[]"], content="boxes"))).value == "nothing"
    )


def test_a_text_is_shown_as_it_is() -> None:
    shown = answer_of(task_named("text-generation"), (), columns(column("text", TEXT, ["said <b>so</b>"])))
    assert (shown.kind, shown.value) == ("text", "said <b>so</b>")


def test_of_a_try_each_members_own_answer_and_whether_it_agrees_are_shown() -> None:
    members: list[ModelVersion] = [text_model("one"), text_model("two"), text_model("three")]
    asked = function(*members)
    reply = Reply(
        asked,
        1,
        columns(column("label", TEXT, ["pizza"]), column("confidence", "FP32", [0.5])),
        {},
        [(0, 1, "one/1,two/1")],
        set(),
    )
    told = Answer(
        id=1,
        members=[
            MemberAnswer("one/1", [column("scores", "FP32", [0.0, 1.0, 0.0], 3)]),
            MemberAnswer("two/1", [column("scores", "FP32", [1.0, 0.0, 0.0], 3)]),
        ],
        errors=[],
    )
    shown = tried_view(asked, Asked("text", b"x", expected="laksa"), reply, [(0, told)], 0.01)
    assert [(each.name, each.took_part, each.agrees) for each in shown.members] == [
        ("one/1", True, True),
        ("two/1", True, False),
        ("three/1", False, False),
    ]
    assert shown.members[2].answer is None
    assert shown.is_expected is False


@pytest.mark.parametrize(
    "code", ["input_undecodable", "input_not_found", "no_confident_answer", "worker_lost"]
)
def test_a_row_at_fault_says_what_to_do(code: str) -> None:
    asked = function()
    reply = Reply(asked, 1, {}, {0: RowError(0, code, "why")}, [], set())
    shown = tried_view(asked, Asked("text", b"x"), reply, (), 0.01)
    assert (shown.answer, shown.error_code, shown.error) == (None, code, "why")
    assert shown.hint
