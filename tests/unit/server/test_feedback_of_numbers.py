"""Labels of numbers: kept once, members' errors are learned, and those that err less count for more."""

from __future__ import annotations

import asyncio
import json
import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sqlalchemy import Engine

from gpu_worker.wire.protocol import Answer, Column, MemberAnswer
from server.catalog.function_spec import feedback_form
from server.catalog.functions import ModelVersion
from server.ensemble.error_weights import error_weights
from server.ensemble.feedback import RECENT_ROWS, Feedback, begun, learned_numbers
from server.serving.answers import answers_of
from server.serving.calls import Call, Reply
from server.serving.learned_state import with_feedback
from server.serving.prediction_ids import PredictionId, input_digest
from tests.unit.server.served import text_model
from tests.unit.server.test_feedback import Place


def model(name: str, rmse: float | None = 2.0) -> ModelVersion:
    score = None if rmse is None else {"metric": "rmse", "value": rmse}
    plain = text_model(name, accuracy=0.0)
    return replace(plain, task="text-regression", classes=(), score=score)


class Numbers:
    """In place of the dispatcher: a row is a number, `near` says that, `far` ten more."""

    def __init__(self) -> None:
        self.asked: list[Call] = []

    async def ask(self, call: Call, receive: object, began_s: float) -> Reply:
        self.asked.append(call)
        await asyncio.sleep(0)
        members = []
        for key in call.members or ():
            said = [float(row) + (10.0 if key == "far/1" else 0.0) for row in call.rows]
            members.append(
                MemberAnswer(key, [Column("value", "FP64", (), struct.pack(f"<{len(said)}d", *said))])
            )
        told = Answer(0, members, [])
        found = answers_of(call.function, told, len(call.rows))
        return Reply(call.function, len(call.rows), dict(found.columns), {}, [], set(), told=[(0, told)])


def place_of(registry: Engine, combine: str = "weighted_mean") -> Place:
    return Place(registry, model("near"), model("far"), members=Numbers(), combine=combine)


def labels(count: int, first: int = 0) -> dict[str, str | None]:
    return {str(number): str(number) for number in range(first, first + count)}


def test_members_that_err_less_on_labels_count_for_more_from_then_on(registry: Engine) -> None:
    place = place_of(registry)
    assert place.function.rule.weights == {"near": 1.0, "far": 1.0}
    assert place.give(labels(60)).outcomes == ["counted"] * 60
    (call,) = place.members.asked
    assert (call.members, call.row_class, call.outputs) == (("near/1", "far/1"), "bulk", ())
    weights = place.function.rule.weights
    # σ² = (20 · 2² + Σ e²) / (20 + 60): 1 of the one, 76 of the other.
    assert weights["near"] / weights["far"] == pytest.approx(76)
    told = feedback_form(place.function)
    assert told is not None
    assert (told["rows"], told["learns"], told["recent_rows"], told["accuracy"]) == (60, True, 60, None)
    assert told["rmse"] == pytest.approx(5.0), "the mean of both, as they were weighed before"
    assert told["rmse_by_member"] == {"near": 0.0, "far": 10.0}
    assert told["weights"] == weights


def test_by_the_plain_mean_errors_are_counted_and_nothing_is_learned(registry: Engine) -> None:
    place = place_of(registry, "mean")
    place.give(labels(30))
    told = feedback_form(place.function)
    assert told is not None
    assert (told["learns"], told["weights"], told["rmse"]) == (False, None, pytest.approx(5.0))


def test_the_same_number_is_the_same_label_however_it_is_written(registry: Engine) -> None:
    place = place_of(registry)
    assert place.give([("1", "1.50"), ("2", "2e0"), ("3", None)]).outcomes == ["counted", "counted", None]
    assert place.give([("1", " 1.5 "), ("2", "2"), ("3", "4")]).outcomes == [
        "repeated",
        "repeated",
        "counted",
    ]
    assert place.give([("1", "1.25")]).outcomes == ["changed"]
    assert place.function.feedback is not None
    assert (place.function.feedback.rows, place.function.feedback.taught) == (3, 4)


@pytest.mark.parametrize("label", ["dear", "", "nan", "inf", "-Infinity", "1e999", "1,5", "1_0"])
def test_what_is_no_number_is_an_error_of_its_row(registry: Engine, label: str) -> None:
    given = place_of(registry).give([("1", label), ("2", "2")])
    assert given.outcomes == [None, "counted"]
    assert given.errors[0].code == "unknown_label"
    assert "is no number, and f answers numbers" in given.errors[0].message


def test_numbers_beyond_all_measure_are_learned_from_and_kept(registry: Engine) -> None:
    place = place_of(registry)
    place.give([("1", "1e308"), ("2", "-1e308")])
    known = place.function.feedback
    assert known is not None
    assert Feedback.from_json(json.loads(json.dumps(known.to_json())), None) == known
    assert place.function.rule.weights == {"near": 1.0, "far": 1.0}, "both err as far as can be"


def test_a_restart_and_another_server_go_on_from_what_was_learned(registry: Engine) -> None:
    place = place_of(registry)
    place.give(labels(60))
    kept = place.learned_state._repository.state("f", 1)
    assert kept is not None
    again = with_feedback(place_of_functions(), kept.feedback)
    assert again.rule.weights == place.function.rule.weights


def place_of_functions() -> Any:
    from tests.unit.server.served import function

    return function(model("near"), model("far"), combine="weighted_mean")


def test_a_context_keeps_labels_of_its_own_and_teaches_everybody(registry: Engine) -> None:
    place = place_of(registry)
    assert place.give({"1": "1"}, "user:1").outcomes == ["counted"]
    assert place.give({"1": "5"}, "user:2").outcomes == ["counted"]
    assert place.function.feedback is not None
    assert place.function.feedback.rows == 2


def answered(place: Place, row: str, *members: int) -> str:
    """The id of an answer to a row, by these members."""
    told = np.array([[float(row)], [float(row) + 10]])
    own = told[list(members)].mean()
    prediction = PredictionId(1, input_digest("text", row.encode(), ""), "", float(own), told, members)
    return place.ids.written_number("f", prediction)


def test_by_ids_members_learn_what_they_would_by_inputs_and_a_row_counts_once(registry: Engine) -> None:
    place = place_of(registry)
    rows = list(labels(60))
    assert place.give_by_id([answered(place, row, 0, 1) for row in rows], rows).outcomes == ["counted"] * 60
    assert place.members.asked == []
    weights = place.function.rule.weights
    assert weights["near"] / weights["far"] == pytest.approx(76)
    assert place.give({"1": "1.0", "2": "9"}).outcomes == ["repeated", "changed"]
    again = [answered(place, row, 0, 1) for row in "34"]
    given = place.give_by_id([*again, "x", again[0]], ["3.0", "5", "1", "dear"])
    assert given.outcomes == ["repeated", "changed", None, None]
    assert [given.errors[row].code for row in (2, 3)] == ["unknown_prediction", "unknown_label"]


def test_members_that_did_not_answer_have_no_error_of_that_row(registry: Engine) -> None:
    place = place_of(registry)
    rows = list(labels(30))
    place.give_by_id([answered(place, row, 1) for row in rows], rows)
    told = feedback_form(place.function)
    assert told is not None
    assert (told["rows"], told["rmse"], told["rmse_by_member"]) == (30, 10.0, {"near": None, "far": 10.0})
    # As on held-out rows; and (20 · 2² + 30 · 100) / (20 + 30).
    assert place.function.rule.weights["near"] / place.function.rule.weights["far"] == pytest.approx(61.6 / 4)
    known = place.function.feedback
    assert known is not None
    assert Feedback.from_json(json.loads(json.dumps(known.to_json())), None) == known
    place.give({"100": "100"})
    told = feedback_form(place.function)
    assert told is not None
    assert told["rmse_by_member"] == {"near": 0.0, "far": 10.0}


# ── what is learned ───────────────────────────────────────────────────────────────────────────────────────


def test_only_the_last_labels_say_who_errs_now() -> None:
    known = begun(["a", "b"], None)
    known = learned_numbers(known, [[0.0] * 150, [9.0] * 150, [0.0] * 150], [0.0] * 150)
    assert (known.rows, len(known.squares), known.errors) == (150, RECENT_ROWS, (0.0, 9.0, 0.0))
    known = learned_numbers(known, [[0.0] * 100, [1.0] * 100, [2.0] * 100], [0.0] * 100, new=40)
    assert (known.rows, known.taught, known.errors) == (190, 250, (0.0, 1.0, 2.0))


def test_values_of_other_members_are_refused() -> None:
    with pytest.raises(ValueError, match="no feedback"):
        learned_numbers(begun(["a", "b"], None), [[0.0], [1.0]], [0.0])


@pytest.mark.parametrize(
    "squares", [[[1.0, 2.0]], [[1.0, -1.0, 1.0]], [[None, 1.0, 1.0]], [[1.0, "x", 1.0]], [[1.0, True, 1.0]]]
)
def test_errors_that_cannot_be_read_are_refused(squares: Any) -> None:
    kept = {**begun(["a", "b"], None).to_json(), "squares": squares}
    with pytest.raises(ValueError, match=r"is no squared error|those of other members"):
        Feedback.from_json(kept, None)


def test_members_that_nobody_measured_count_alike_until_there_are_enough_labels() -> None:
    unknown: dict[str, object] = {"a": None, "b": None}
    assert error_weights(unknown, {"a": [1.0] * 19, "b": [4.0] * 19}) == {}
    weights = error_weights(unknown, {"a": [1.0] * 20, "b": [4.0] * 20})
    assert weights["a"] / weights["b"] == pytest.approx(4)


def test_feedback_of_classes_is_kept_as_it_always_was() -> None:
    assert "squares" not in begun(["a"], None).to_json()
