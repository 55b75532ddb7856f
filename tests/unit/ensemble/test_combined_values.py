"""Several members' values, labels and boxes become one answer."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import numpy as np
import pytest

from gpu_worker.tasks import task_named
from gpu_worker.tasks.thresholds import thresholds_of
from gpu_worker.wire.protocol import Answer, Column, MemberAnswer
from server.ensemble.answer import AnswerRule
from server.ensemble.combine import Vote, combine, needs_of
from server.ensemble.error_weights import error_weights

COLOURS = ("red", "green", "blue")


def valued(member: str, *values: float, weight: float = 1.0, margin: float | None = None) -> Vote:
    ends = (
        {} if margin is None else {"low": [v - margin for v in values], "high": [v + margin for v in values]}
    )
    columns = {
        name: Column(name, "FP64", (), np.array(numbers, np.float64).tobytes())
        for name, numbers in {"value": values, **ends}.items()
    }
    return Vote(member, 0.0, columns, weight)


def labelled(member: str, *scores: Sequence[float]) -> Vote:
    texts = [json.dumps([COLOURS[at] for at in range(3) if row[at] >= 0.5]) for row in scores]
    numbers = np.array(scores, np.float32)
    columns = [
        Column("labels", "BYTES", (), texts, "labels"),
        Column("scores", "FP32", (3,), numbers.tobytes()),
    ]
    return Vote(member, 0.0, {column.name: column for column in columns})


def numbers(column: Column) -> list[float]:
    return list(column.values)


def test_the_value_of_several_is_their_mean() -> None:
    told = combine("mean", [valued("a", 1, 10), valued("b", 2, 20), valued("c", 6, 0)], (), value="value")
    assert numbers(told["value"]) == [3.0, 10.0]
    assert list(told) == ["value"]


def test_a_member_that_errs_less_counts_for_more() -> None:
    members = [valued("a", 1, weight=3), valued("b", 5)]
    assert numbers(combine("weighted_mean", members, (), value="value")["value"]) == [2.0]
    assert numbers(combine("mean", members, (), value="value")["value"]) == [3.0]


def test_the_interval_of_several_lies_around_their_mean() -> None:
    members = [valued("a", 10, margin=2), valued("b", 20, margin=4)]
    told = combine("mean", members, (), value="value")
    assert [numbers(told[name]) for name in ("value", "low", "high")] == [[15.0], [12.0], [18.0]]


def test_a_member_without_an_interval_leaves_that_of_the_others() -> None:
    nan = Vote("b", 0.0, {**valued("b", 20).columns, **ends(math.nan)})
    told = combine("mean", [valued("a", 10, margin=2), nan], (), value="value")
    assert [numbers(told[name]) for name in ("value", "low", "high")] == [[15.0], [13.0], [17.0]]


def ends(number: float) -> dict[str, Column]:
    raw = np.array([number]).tobytes()
    return {name: Column(name, "FP64", (), raw) for name in ("low", "high")}


def test_a_row_that_one_member_could_not_answer_is_the_others() -> None:
    told = combine("mean", [valued("a", math.nan, math.nan), valued("b", 4, math.nan)], (), value="value")
    first, second = numbers(told["value"])
    assert first == 4.0
    assert math.isnan(second)


def test_labels_are_those_whose_mean_probability_reaches_their_threshold() -> None:
    members = [labelled("a", [0.9, 0.6, 0.0]), labelled("b", [0.7, 0.2, 0.1])]
    told = combine("mean", members, COLOURS, value="labels", thresholds=(0.5, 0.5, 0.5))
    assert told["labels"].values == ['["red"]']
    assert told["labels"].content == "labels"
    lower = combine("mean", members, COLOURS, value="labels", thresholds=(0.9, 0.4, 0.05))
    assert lower["labels"].values == ['["green", "blue"]']
    np.testing.assert_allclose(list(np.ravel(told["scores"].values)), [0.8, 0.4, 0.05], rtol=1e-6)


def test_one_member_answers_by_its_own_thresholds_unless_there_are_others() -> None:
    only = labelled("a", [0.6, 0.1, 0.1])
    assert combine("mean", [only], COLOURS, value="labels") is only.columns
    told = combine("mean", [only], COLOURS, value="labels", thresholds=(0.7, 0.7, 0.05))
    assert told["labels"].values == ['["blue"]']


def test_boxes_of_several_are_fused_and_held_against_their_thresholds() -> None:
    def drawn(member: str, *boxes: dict[str, object]) -> Vote:
        return Vote(member, 0.0, {"boxes": Column("boxes", "BYTES", (), [json.dumps(boxes), ""], "boxes")})

    plate = {"label": "plate", "score": 0.8, "box": [0, 0, 10, 10]}
    cup = {"label": "cup", "score": 0.4, "box": [20, 20, 30, 30]}
    members = [drawn("a", plate, cup), drawn("b", plate)]
    told = combine("weighted_boxes", members, ("plate", "cup"), value="boxes")
    both, faulty = told["boxes"].values
    assert json.loads(both) == [plate, {**cup, "score": 0.2}]
    assert faulty == "", "it is at fault for every member"
    strict = combine("weighted_boxes", members, ("plate", "cup"), value="boxes", thresholds=(0.0, 0.3))
    assert json.loads(strict["boxes"].values[0]) == [plate]
    alone = combine("weighted_boxes", members[:1], ("plate", "cup"), value="boxes", thresholds=(0.9, 0.3))
    assert json.loads(alone["boxes"].values[0]) == [cup], "nothing is fused of one member"


def test_each_task_needs_of_its_members_what_its_rule_reads() -> None:
    assert needs_of("mean", 2, value="labels") == ("scores",)
    assert needs_of("mean", 1, value="labels") == ()
    assert needs_of("mean", 1, value="labels", is_thresholded=True) == ("scores",)
    assert needs_of("mean", 2, value="value") == needs_of("weighted_boxes", 2, value="boxes") == ()


def test_a_rule_of_other_answers_is_none() -> None:
    with pytest.raises(ValueError, match="no rule 'log_pool' combines their value"):
        combine("log_pool", [valued("a", 1), valued("b", 2)], (), value="value")


def test_a_function_of_values_answers_with_the_members_that_came() -> None:
    members = {"a/1": ("a", 0.0), "b/1": ("b", 0.0)}
    rule = AnswerRule("f", task_named("tabular-regression"), "mean", (), members)
    told = [
        MemberAnswer(f"{name}/1", list(valued(name, at).columns.values())) for at, name in enumerate("ab")
    ]
    both, late = rule.answer(Answer(0, told, [])), rule.answer(Answer(0, told[:1], []))
    assert (numbers(both.columns["value"]), both.answered_by) == ([0.5], "a,b")
    assert (numbers(late.columns["value"]), late.answered_by) == ([0.0], "a")
    assert all(map(math.isnan, rule.expected_by_row(1, both.columns, [([0], "a,b")], ())))


def rmse(value: float) -> dict[str, object]:
    return {"metric": "rmse", "value": value}


def test_a_member_that_errs_twice_as_far_counts_for_a_quarter() -> None:
    weights = error_weights({"a": rmse(1.0), "b": rmse(2.0)})
    assert weights == pytest.approx({"a": 1.6, "b": 0.4})
    members = {"a/1": ("a", 0.0), "b/1": ("b", 0.0)}
    rule = AnswerRule("f", task_named("tabular-regression"), "weighted_mean", (), members, weights=weights)
    told = [
        MemberAnswer(f"{name}/1", list(valued(name, at).columns.values()))
        for name, at in (("a", 0), ("b", 10))
    ]
    assert numbers(rule.answer(Answer(0, told, [])).columns["value"]) == pytest.approx([2.0])


@pytest.mark.parametrize(
    "scores",
    [
        {"a": rmse(1.0), "b": None},
        {"a": rmse(1.0), "b": {"metric": "mae", "value": 1.0}},
        {"a": {"metric": "accuracy", "value": 0.5}, "b": {"metric": "accuracy", "value": 0.9}},
        {"a": rmse(0.0), "b": rmse(0.0)},
        {"a": rmse(math.inf), "b": rmse(1.0)},
        {"a": rmse(1.0), "b": {"metric": "rmse"}},
        {},
    ],
)
def test_members_whose_errors_cannot_be_compared_count_alike(scores: dict[str, object]) -> None:
    assert error_weights(scores) == {}


def test_one_that_made_no_error_leaves_finite_weights() -> None:
    weights = error_weights({"a": rmse(0.0), "b": rmse(1.0)})
    assert weights["a"] / weights["b"] == pytest.approx(1e12)


# ── one class of several, from a threshold on ─────────────────────────────────────────────────────


def picked(member: str, *scores: Sequence[float]) -> Vote:
    texts = [COLOURS[int(np.argmax(row))] for row in scores]
    sure = np.array([max(row) for row in scores], np.float32)
    columns = [
        Column("label", "BYTES", (), texts),
        Column("confidence", "FP32", (), sure.tobytes()),
        Column("scores", "FP32", (3,), np.array(scores, np.float32).tobytes()),
    ]
    return Vote(member, 0.0, {column.name: column for column in columns})


@pytest.mark.parametrize("rule", ["majority_vote", "mean", "log_pool"])
def test_a_class_is_answered_from_its_threshold_on_by_one_member_too(rule: str) -> None:
    rows = [[0.85, 0.15, 0.0], [0.95, 0.05, 0.0]]
    told = combine(rule, [picked("a", *rows)], COLOURS, thresholds=(0.8, 0.1, 0.1))
    assert list(told["label"].values) == ["green", "red"]
    assert numbers(told["confidence"]) == pytest.approx([0.15, 0.95], abs=1e-3), (
        "it stays the class's probability"
    )
    assert needs_of(rule, 1, is_thresholded=True) == ("scores",)


def test_members_who_would_vote_answer_with_their_mean_where_there_are_thresholds() -> None:
    votes = [picked("a", [0.9, 0.1, 0.0]), picked("b", [0.7, 0.3, 0.0]), picked("c", [0.8, 0.2, 0.0])]
    told = combine("majority_vote", votes, COLOURS, thresholds=(0.85, 0.1, 0.05))
    assert list(told["label"].values) == ["green"]
    assert needs_of("majority_vote", 3, is_thresholded=True) == ("scores",)
    assert needs_of("majority_vote", 3) == ()


def test_classes_without_a_threshold_share_what_is_left() -> None:
    task = task_named("tabular-classification")
    assert thresholds_of(task, COLOURS, [{}], {}) == ()
    assert thresholds_of(task, COLOURS, [{}], {"green": 0.2}) == pytest.approx((0.4, 0.2, 0.4))
    assert thresholds_of(task, ("no", "yes"), [{}], {"no": 0.7, "yes": 0.3}) == (0.7, 0.3)


@pytest.mark.parametrize("own", [{"green": 0.0}, {"green": 1.0}, {"red": 0.6, "green": 0.5}])
def test_thresholds_of_one_class_that_leave_nothing_for_the_others_are_refused(own: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="above 0 and add up to 1"):
        thresholds_of(task_named("image-classification"), COLOURS, [{}], own)


def test_all_thresholds_of_one_class_add_up_to_one() -> None:
    with pytest.raises(ValueError, match="add up to 1"):
        thresholds_of(task_named("image-classification"), ("no", "yes"), [{}], {"no": 0.5, "yes": 0.3})
