"""The pages of data: rows as people read them, what is confused, and nothing that is not the reader's."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import fromstring

import pytest

from server.catalog.functions import Function, InputShape, ModelVersion
from server.catalog.jobs import Snapshot
from server.dashboard.confusions import Judged, Judgement
from server.dashboard.training_view import confusion_view, dataset_view, shown_rows
from server.training.datasets.contents import Contents, Row

NOW = datetime(2026, 11, 1, tzinfo=UTC)


def _snapshot(task: str = "text-classification", **facts: Any) -> Snapshot:
    spec = {
        "name": "mood",
        "task": task,
        "source": "push",
        "query": "SELECT 1",
        "target": "mood",
        "key": "id",
    }
    known = {
        "rows": 10,
        "classes": ["a", "b"],
        "splits": {"train": 6, "validation": 2, "test": 2},
        "unreadable": 0,
        "unreadable_rows": [],
        "file": "mood/x.parquet",
    }
    return Snapshot("mood", "abc", spec, known | facts, NOW)


def _row(number: int, text: str = "good", target: str = "a") -> Row:
    return Row(number, f"k{number}", text, target, "test")


def _function(name: str = "udf_mood", task: str = "text-classification", **shape: Any) -> Function:
    model = ModelVersion("m", 1, task, ("a", "b"), InputShape(**{"form": "text", **shape}), 0.9, Path("/m"))
    return Function(name, 3, (model,), model.input.form)


def test_what_was_told_so_far_stays_as_it_was_while_rows_are_answered():
    judgement = Judgement("udf_food", 1, "s1", wanted=2)
    judgement.rows += [Judged(1, "a", "b", 0.5)]
    told = judgement.so_far()
    judgement.rows += [Judged(2, "a", "a", 0.5)]
    judgement.is_over = True
    assert [row.number for row in told.rows] == [1]
    assert not told.is_over


def test_a_row_of_a_table_is_shown_by_column_and_a_missing_value_as_a_dash():
    snapshot = _snapshot(
        "tabular-classification",
        columns=[{"name": "age", "kind": "number"}, {"name": "plan", "kind": "text"}],
    )
    (shown,) = shown_rows(snapshot, [_row(0, "[42, null]")])
    assert shown.values == (("age", "42"), ("plan", "–"))


def test_a_text_is_shown_as_it_is_up_to_a_length():
    (shown,) = shown_rows(_snapshot(), [_row(0, "x" * 1000)])
    assert len(shown.values[0][1]) == 300
    assert not shown.is_picture


def test_only_functions_that_take_the_rows_and_name_classes_may_be_asked():
    functions = [
        _function(),
        _function("udf_price", "text-regression"),
        _function("udf_photo", "image-classification", form="path"),
    ]
    contents = Contents({"a": {"train": 6}}, (), {"a": (_row(0),)})
    view = dataset_view(_snapshot(), contents, [], [], functions)
    assert view.functions == ("udf_mood",)


def _judged() -> Judgement:
    return Judgement(
        "udf_mood",
        3,
        "abc",
        5,
        5,
        [
            Judged(0, "a", "a", 0.9),
            Judged(1, "a", "b", 0.6),
            Judged(2, "a", "b", 0.8),
            Judged(3, "b", "b", None),
            Judged(4, "b", None, None),
        ],
        is_over=True,
    )


def test_behind_a_cell_stand_its_rows_the_surest_first():
    told = _judged()
    assert [row.number for row in told.behind("a", "b")] == [2, 1]
    assert [row.number for row in told.behind("a", "a")] == [0]
    assert [row.number for row in told.behind(None, None)] == [2, 1]
    assert told.counts == {("a", "a"): 1, ("a", "b"): 2, ("b", "b"): 1}
    assert told.unanswered == 1
    assert told.sureness == [(0.9, True), (0.6, False), (0.8, False)]


def test_of_numbers_those_that_lie_farthest_off_come_first():
    told = Judgement(
        "udf_price",
        3,
        "abc",
        4,
        4,
        [
            Judged(0, "1", "1", None, 0.0),
            Judged(1, "5", "3", None, -2.0),
            Judged(2, "5", "6", None, 1.0),
            Judged(3, "5", None, None),
        ],
        is_over=True,
    )
    assert [row.number for row in told.behind(None, None)] == [1, 2]
    function = _function("udf_price", "text-regression")
    snapshot = _snapshot("text-regression", classes=[])
    view = confusion_view(
        snapshot, function, told, (None, None), told.behind(None, None), [_row(1)], lambda *cell: "?"
    )
    assert view.of_numbers
    assert view.mean_off == 1.0
    assert view.bias == pytest.approx(-1 / 3)
    assert view.root_mean_square == pytest.approx((5 / 3) ** 0.5)
    assert [(each.truth, each.answer, each.off) for each in view.shown] == [("5", "3", -2.0)]
    assert "above the truth" in view.chart
    contents = Contents({}, ((1.0, 2),), {"": (_row(0),)})
    assert dataset_view(snapshot, contents, [], [], [function, _function()]).functions == ("udf_price",)


def test_a_cell_says_how_many_of_its_rows_are_not_shown():
    told = _judged()
    behind = told.behind("a", "b")
    view = confusion_view(
        _snapshot(), _function(), told, ("a", "b"), behind, [_row(2, "bad tea")], lambda *cell: "?"
    )
    assert [(each.row.values[0][1], each.truth, each.answer) for each in view.shown] == [
        ("bad tea", "a", "b")
    ]
    assert view.more == 1
    assert view.accuracy == pytest.approx(2 / 5)


@pytest.mark.security
def test_a_hostile_class_stays_text_in_the_table():
    hostile = '"><script>alert(1)</script>'
    told = Judgement("f", 1, "abc", 1, 1, [Judged(0, hostile, hostile, 0.5)], is_over=True)
    view = confusion_view(
        _snapshot(classes=[hostile]), _function(), told, (None, None), [], [], lambda *cell: "?" + cell[0]
    )
    assert not any(element.tag == "script" for element in fromstring(view.chart).iter())
