"""Texts that mean more: what is one and what is none; no text raises anything but `WrongType`."""

from __future__ import annotations

import json
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_udf.client.contents import BOXES, JSON, LABELS, boxes_of, json_text, labels_of, misfit_of, value_of
from ml_udf.errors import WrongType

NO_LABELS = ["[1]", "{}", "null", "", '"a"', "[NaN]", '["a"', "[" * 100_000]
NO_BOXES = ["[1]", "{}", "null", "", "[{}]", '[{"label": "a", "score": "x", "box": []}]', '[{"label": "a"}]']
NO_JSON = ["", "NaN", "[Infinity]", "{", "laksa", "[" * 100_000]


@pytest.mark.parametrize(
    ("content", "text"),
    [(LABELS, text) for text in NO_LABELS]
    + [(BOXES, text) for text in NO_BOXES]
    + [(JSON, text) for text in NO_JSON],
)
def test_what_is_not_of_its_content_is_an_answer_of_the_wrong_type(content: str, text: str) -> None:
    assert isinstance(misfit_of(text, content), WrongType)
    assert json_text(text, content) == "null"
    with pytest.raises(WrongType):
        value_of(text, content)


@given(labels=st.lists(st.text()))
def test_labels_are_read_as_they_were_written(labels: list[str]) -> None:
    assert labels_of(json.dumps(labels)) == labels
    assert value_of(json.dumps(labels), LABELS) == labels


def test_boxes_have_their_three_fields_and_no_other() -> None:
    box = {"label": "rice", "score": 1, "box": [0, 1, 2, 3], "colour": "white"}
    assert boxes_of(json.dumps([box])) == [{"label": "rice", "score": 1.0, "box": [0.0, 1.0, 2.0, 3.0]}]
    assert boxes_of("[]") == []


@given(text=st.text())
def test_a_text_without_a_content_that_is_known_is_itself(text: str) -> None:
    for content in ("", "poem"):
        assert misfit_of(text, content) is None
        assert value_of(text, content) == text
        assert json.loads(json_text(text, content)) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.5, "1.5"), (float("nan"), "null"), (float("inf"), "null"), ([1.0, 0.5], "[1.0, 0.5]")],
)
def test_numbers_are_json_and_no_number_is_null(value: object, text: str) -> None:
    assert json_text(value) == text


def test_what_is_no_number_in_a_vector_is_null_in_json() -> None:
    vector = array("f", [0.1, float("nan"), float("inf"), -2.0])
    assert json.loads(json_text(vector)) == [pytest.approx(0.1), None, None, -2.0]
    assert json.loads(json_text([1.5, float("-inf")])) == [1.5, None]
