"""Boxes as detectors answer them become boxes in pixels, the surest of each thing alone."""

from __future__ import annotations

import numpy as np
import pytest

from gpu_worker.networks.box_layouts import BoxRules, boxes_from, guessed_layout

RULES = BoxRules((100, 200), 0.25, 0.5)


def kept(layout: str, *outputs: np.ndarray, rules: BoxRules = RULES) -> list[list[float]]:
    found = boxes_from(layout, outputs, rules).reshape(-1, 6)
    return [[round(float(number), 3) for number in box] for box in found if box[4] > 0]


def test_yolo_puts_anchors_last_and_keeps_the_surest_of_overlapping_ones() -> None:
    anchors = np.array(
        [
            [50, 50, 20, 10, 0.9, 0.1],
            [51, 50, 20, 10, 0.8, 0.0],
            [150, 20, 10, 10, 0.0, 0.6],
            [9, 9, 2, 2, 0.1, 0.2],
        ]
    )
    assert kept("yolo", anchors.T[None]) == [
        [40, 45, 60, 55, 0.9, 0],
        [145, 15, 155, 25, 0.6, 1],
    ]


def test_boxes_of_two_classes_on_one_place_both_stay() -> None:
    anchors = np.array([[50, 50, 20, 10, 0.9, 0.0], [50, 50, 20, 10, 0.0, 0.8]])
    assert [box[5] for box in kept("yolo", anchors.T[None])] == [0, 1]


def test_yolov5_multiplies_how_sure_of_an_object_into_the_classes() -> None:
    anchors = np.array([[50, 50, 20, 10, 0.5, 0.9, 0.1], [10, 10, 4, 4, 0.2, 0.9, 0.1]])
    assert kept("yolov5", anchors[None]) == [[40, 45, 60, 55, 0.45, 0]]


def test_separate_outputs_may_be_shares_with_y_first() -> None:
    ours = [[20.0, 30.0, 60.0, 40.0, 0.9, 1.0]]
    scores, classes = np.array([[0.9]]), np.array([[1.0]])
    assert kept("separate", np.array([[[20, 30, 60, 40]]]), scores, classes) == ours
    assert kept("separate", np.array([[[0.3, 0.1, 0.4, 0.3]]]), scores, classes) == ours


def test_detr_leaves_out_what_is_no_object() -> None:
    logits = np.array([[[9.0, 0.0, 0.0], [0.0, 0.0, 9.0]]])
    boxes = np.array([[[0.5, 0.5, 0.1, 0.2], [0.1, 0.1, 0.1, 0.1]]])
    ((x0, y0, x1, y1, score, label),) = kept("detr", logits, boxes)
    assert (x0, y0, x1, y1, label) == (90, 40, 110, 60, 0)
    assert score > 0.99


def test_centerface_reads_its_maps() -> None:
    heat, size, offset = (np.zeros((1, channels, 25, 50), np.float32) for channels in (1, 2, 2))
    heat[0, 0, 10, 20] = 0.8
    size[0, :, 10, 20] = np.log([5.0, 2.5])  # of four pixels: height, width
    offset[0, :, 10, 20] = [0.25, 0.0]
    assert kept("centerface", heat, size, offset) == [[77, 33, 87, 53, 0.8, 0]]


def test_text_regions_are_told_apart_and_grown() -> None:
    chances = np.zeros((1, 1, 100, 200), np.float32)
    chances[0, 0, 20:30, 20:80] = 0.9
    chances[0, 0, 60:70, 20:40] = 0.8
    chances[0, 0, 70, 40] = 0.8  # touches by a corner
    chances[0, 0, 90, 190] = 0.9  # too small
    found = kept("text_map", chances)
    assert len(found) == 2
    grown = 10 * 60 * 1.6 / 140
    np.testing.assert_allclose(found[0][:4], [20 - grown, 20 - grown, 80 + grown, 30 + grown], atol=1e-2)


def test_every_row_has_its_own_boxes_and_none_is_0() -> None:
    rows = np.zeros((2, 6, 3))
    rows[1, :, 0] = [50, 50, 20, 10, 0.9, 0.1]
    found = boxes_from("yolo", [rows], RULES)
    assert (found[0] == 0).all()
    assert found[1, 4] == pytest.approx(0.9)


def test_outputs_that_do_not_lie_so_are_refused() -> None:
    with pytest.raises(ValueError, match="takes 1 outputs"):
        boxes_from("yolo", [np.zeros((1, 6))], RULES)


@pytest.mark.parametrize(
    ("shapes", "classes", "layout"),
    [
        ([[1, 84, 8400]], 80, "yolo"),
        ([[1, 25200, 85]], 80, "yolov5"),
        ([[1, 300, 6]], 80, "corners"),
        ([[1, 100, 4], [1, 100], [1, 100]], 80, "separate"),
        ([[1, 100, 92], [1, 100, 4]], 91, "detr"),
        ([[1, 1, 160, 160], [1, 2, 160, 160], [1, 2, 160, 160], [1, 10, 160, 160]], 1, "centerface"),
        ([[1, 1, 736, 736]], 1, "text_map"),
        ([[1, 1000]], 1000, ""),
        ([[1, 84, 8400]], 3, ""),
    ],
)
def test_the_layout_is_guessed_by_shapes(shapes: list[list[int]], classes: int, layout: str) -> None:
    assert guessed_layout(shapes, classes) == layout
