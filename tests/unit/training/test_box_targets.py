"""Boxes as targets of a dataset: every form of them that SQL has, and what is refused, and why."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from server.errors import BadOption
from server.training.datasets.box_targets import BoxTargets
from server.training.datasets.spec import DatasetSpec

SPEC = DatasetSpec("trays", "SELECT path, boxes FROM t", target="boxes", key="path", task="object-detection")
PLATE = {"label": "plate", "box": [10.0, 20.0, 90.0, 80.0]}
PLATE_TEXT = '[{"label":"plate","box":[10.0,20.0,90.0,80.0]}]'


def texts(*values: Any) -> list[str | None]:
    return BoxTargets(SPEC).texts(pa.array(values))


@pytest.mark.parametrize(
    "values",
    [
        [[PLATE]],
        [[PLATE | {"score": 0.75}]],
        [json.dumps([PLATE])],
        ['[{"label": "plate", "score": 0.5, "box": [10, 20, 90, 8e1]}]'],
        [[{"label": "plate", "box": [Decimal("10.0"), Decimal("20.0"), Decimal("90.0"), Decimal("80.0")]}]],
    ],
)
def test_every_form_of_the_same_boxes_is_the_same_text(values: list[Any]) -> None:
    assert texts(*values) == [PLATE_TEXT]


@pytest.mark.parametrize("value", [None, "[]", " [] ", "null", []])
def test_null_and_no_boxes_are_a_picture_without_any(value: Any) -> None:
    kind = (
        pa.string()
        if value is None or isinstance(value, str)
        else pa.list_(pa.struct({"label": pa.string()}))
    )
    assert BoxTargets(SPEC).texts(pa.array([value], kind)) == ["[]"]


def test_the_order_of_the_boxes_means_nothing() -> None:
    other = {"label": "cup", "box": [0.0, 0.0, 5.0, 5.0]}
    assert texts([PLATE, other]) == texts([other, PLATE])


def with_box(*corners: Any) -> str:
    return json.dumps([{"label": "plate", "box": list(corners)}])


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("a plate", r"row 1 has no list of boxes such as \[\{\"label\": \"plate\", .* but 'a plate'"),
        ("[" * 100_000, "row 1 has no list of boxes"),
        ('{"label": "plate"}', "row 1 has no list of boxes"),
        ("[[1, 2, 3, 4]]", "row 1 has no list of boxes"),
        ('[{"box": [0, 0, 1, 1]}]', "has the 'label' 'None'; it must be a text"),
        ('[{"label": "", "box": [0, 0, 1, 1]}]', "has the 'label' ''; it must be a text"),
        ('[{"label": 3, "box": [0, 0, 1, 1]}]', "has the 'label' '3'; it must be a text"),
        ('[{"label": "plate"}]', "the 'box' of a 'plate' in row 1 is None; it must be four numbers"),
        (with_box(0, 0, 1), "it must be four numbers, x0, y0, x1, y1"),
        (with_box(0, 0, 1, "2"), "it must be four numbers"),
        (with_box(0, 0, 1, float("nan")), "it must be four numbers"),
        (with_box(0, 0, 1, float("inf")), "it must be four numbers"),
        (with_box(0, 0, 1, True), "it must be four numbers"),
        (with_box(0, 0, 1, None), "it must be four numbers"),
        (with_box(5, 0, 5, 1), "has no area: x0 must be below x1"),
        (with_box(10, 20, 5, 6), "has no area: .*corners, not a corner and a size"),
        (json.dumps([PLATE] * 1001), "row 1 has 1001 boxes; 1000 is the most"),
    ],
)
def test_what_is_no_list_of_boxes_is_refused_and_why(value: str, says: str) -> None:
    with pytest.raises(BadOption, match=f"dataset trays: of the target 'boxes', .*{says}"):
        texts(value)


def test_a_fault_names_its_row_in_later_batches_too() -> None:
    column = BoxTargets(SPEC)
    column.texts(pa.array([PLATE_TEXT] * 3))
    with pytest.raises(BadOption, match="row 5 has no list"):
        column.texts(pa.array([PLATE_TEXT, "x"]))


@pytest.mark.parametrize("corners", [(-3, 0, 5, 5), (0, 0, 102, 5), (0, 0, 5, 82), (500, 500, 600, 600)])
def test_a_box_that_does_not_lie_in_its_picture_is_refused(corners: tuple[int, ...]) -> None:
    (text,) = texts(with_box(*corners))
    assert text is not None
    with pytest.raises(BadOption, match="does not lie in its picture, which is 100 × 80 pixels"):
        BoxTargets(SPEC).check_picture(text, 100, 80)


def test_a_box_may_reach_over_the_edge_by_a_rounded_pixel() -> None:
    (text,) = texts(with_box(-0.5, 0, 100.9, 80))
    assert text is not None
    BoxTargets(SPEC).check_picture(text, 100, 80)


def test_classes_are_all_labels_by_name_and_without_a_box_there_is_nothing_to_learn() -> None:
    column = BoxTargets(SPEC)
    for text in texts([PLATE, {"label": "cup", "box": [0.0, 0.0, 5.0, 5.0]}]):
        assert column.code(str(text)) == 0
    column.check()
    assert column.classes({0: ["train"]}) == (["cup", "plate"], {})
    empty = BoxTargets(SPEC)
    empty.code("[]")
    with pytest.raises(BadOption, match="no row has a box; there is nothing to learn"):
        empty.check()


def test_a_thousand_and_one_labels_are_no_classes() -> None:
    column = BoxTargets(SPEC)
    with pytest.raises(BadOption, match="more than 1000 different labels"):
        column.code(json.dumps([PLATE | {"label": f"plate {at}"} for at in range(1001)]))
