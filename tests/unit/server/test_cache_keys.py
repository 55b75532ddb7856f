"""Keys of kept answers: whatever changes an answer changes the key, and nothing else does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from server.cache.completeness import Completeness
from server.cache.in_flight import InFlight
from server.cache.key import Asked, function_digest, is_kept_of, scope_of
from server.cache.keying import keys_of, keys_of_files
from server.catalog.functions import Function
from server.ensemble.feedback import begun
from tests.unit.server.served import function, text_model

TWO = (text_model("a"), text_model("b"))


def key(served: Function, asked: Asked = Asked("text"), row: bytes = b"x") -> bytes:  # noqa: B008 - immutable
    (found,) = keys_of(scope_of(served, function_digest(served), asked).digest, [row])
    return found


@pytest.mark.parametrize(
    "fields",
    [
        {"version": 2},
        {"name": "g"},
        {"members": (text_model("a"), text_model("b", version=2))},
        {"members": (text_model("a"), text_model("b", sha256="0" * 64))},
        {"combine": "weighted_mean"},
        {"min_confidence": 0.5},
        {"default": "none"},
        {"thresholds": {"pizza": 0.7}},
        {"bare": True},
    ],
    ids=str,
)
def test_another_function_has_other_keys(fields: dict[str, Any]) -> None:
    served = function(*TWO)
    assert key(replace(served, **fields)) != key(served)
    assert key(replace(served)) == key(served)


@pytest.mark.parametrize(
    "asked",
    [
        Asked("row"),
        Asked("text", ("scores",)),
        Asked("text", members=("a/1",)),
        Asked("text", shifts=(0.5, -0.5)),
        Asked("text", with_members=True),
    ],
    ids=str,
)
def test_another_question_has_other_keys(asked: Asked) -> None:
    assert key(function(*TWO), asked) != key(function(*TWO))


@pytest.mark.parametrize(
    "asked",
    [
        Asked("text", ("label",)),  # which it has by default
        Asked("text", ("confidence", "label")),
        Asked("text", members=("b/1", "a/1")),  # all, in another order
        Asked("text", row_class="bulk"),  # who asks all members asks the same, whoever waits
        Asked("text", min_accuracy=0.5),
    ],
    ids=str,
)
def test_the_same_question_in_other_words_has_the_same_key(asked: Asked) -> None:
    assert key(function(*TWO), asked) == key(function(*TWO))


def test_labels_that_teach_change_the_keys_and_labels_that_do_not_leave_them() -> None:
    counted = replace(begun(["a", "b"], None), taught=3, rows=3)
    served = function(*TWO)
    assert key(replace(served, feedback=counted)) == key(served), "by majority nothing is learned"
    numbers = function(*(replace(one, task="text-regression", classes=()) for one in TWO))
    taught = replace(numbers, combine="weighted_mean", feedback=counted)
    assert taught.is_taught
    again = replace(taught, feedback=replace(counted, taught=4))
    assert key(again) != key(taught)


def test_rows_and_stamps_have_keys_of_their_own_and_no_stamp_has_none() -> None:
    scope = b"k" * 16
    rows = [str(number).encode() * length for number in range(500) for length in (1, 100)]
    keys = keys_of(scope, rows)
    assert len(set(keys)) == 1000
    assert {len(each) for each, row in zip(keys, rows, strict=True) if len(row) > 64} == {16}
    assert keys_of_files(scope, [b"stamp", b"", b"other"])[1] is None


@pytest.mark.parametrize("select", ["exp3", "exp4", "async", "slackfit", "actor_critic", "mine:Policy"])
def test_answers_of_members_that_are_drawn_are_never_kept(select: str) -> None:
    served = function(*TWO, select=select, answer_cache=True)
    assert served.follows_plans
    assert not is_kept_of(served)


@pytest.mark.parametrize(
    ("members", "answered_by", "is_complete"),
    [
        (None, "a,b", True),
        (None, "b,a", True),
        (None, "a", False),
        (None, "", False),
        (None, "a,b,c", False),
        (("a/1",), "a", True),
        (("a/1",), "a,b", False),
    ],
)
def test_a_row_is_complete_if_all_who_were_chosen_have_answered(
    members: tuple[str, ...] | None, answered_by: str, is_complete: bool
) -> None:
    scope = scope_of(function(*TWO), b"k" * 16, Asked("text", members=members))
    assert Completeness(scope, None).of(answered_by) == is_complete


def test_a_flight_is_landed_once_and_the_newest_for_a_key_is_waited_for() -> None:
    flights = InFlight[str]()
    bulk = flights.lead([b"1", b"2", None], is_urgent=False)
    assert not flights.wait(b"1", "goal", 0, is_urgent=True)
    urgent = flights.lead([b"1"], is_urgent=True)
    assert flights.wait(b"1", "late", 7, is_urgent=False)
    assert flights.wait(b"2", "scan", 8, is_urgent=False)
    assert flights.land(bulk) == {b"2": [("scan", 8)]}
    assert len(flights) == 1
    assert flights.land(urgent) == {b"1": [("late", 7)]}
    assert len(flights) == 0
    assert flights.land(urgent) == {}


@pytest.mark.parametrize("keys", [[b"1", b"2"], [b"2", b"2"], [b"2", None]])
def test_rows_are_led_as_a_whole_only_where_all_are_new_and_different(keys: list[bytes | None]) -> None:
    flights = InFlight[str]()
    first = flights.lead_new([b"1"], is_urgent=True)
    assert first is not None
    assert flights.lead_new(keys, is_urgent=True) is None
    assert len(flights) == 1
    second = flights.lead_new([b"2", b"3"], is_urgent=True)
    assert second is not None
    assert flights.wait(b"3", "late", 5, is_urgent=True)
    assert flights.land(second) == {b"3": [("late", 5)]}
    assert len(flights) == 1
    flights.land(first)
    assert len(flights) == 0
