"""Boxes that several members drew are fused as Solovyev et al. say it; the sums are done by hand."""

from __future__ import annotations

import itertools

import pytest

from gpu_worker.tasks.boxes import Box, boxes_of, text_of
from server.ensemble.weighted_boxes import fused_boxes


def box(score: float, *corners: float, label: str = "plate") -> Box:
    x0, y0, x1, y1 = corners
    return Box(label, score, (x0, y0, x1, y1))


def test_boxes_of_one_thing_become_their_mean_by_their_scores() -> None:
    (fused,) = fused_boxes([[box(0.9, 0, 0, 10, 10)], [box(0.6, 2, 0, 12, 10)]])
    # IoU = 80 / 120; x0 = (0.9 · 0 + 0.6 · 2) / 1.5, x1 = (0.9 · 10 + 0.6 · 12) / 1.5
    assert fused.corners == pytest.approx((0.8, 0, 10.8, 10))
    assert fused.score == pytest.approx((0.9 + 0.6) / 2)


def test_what_one_of_three_members_sees_is_a_third_as_sure() -> None:
    (fused,) = fused_boxes([[box(0.9, 0, 0, 10, 10)], [], []])
    assert fused == box(0.9 * 1 / 3, 0, 0, 10, 10)


def test_a_thing_of_more_boxes_than_members_is_no_surer_than_their_mean() -> None:
    (fused,) = fused_boxes([[box(0.9, 0, 0, 10, 10), box(0.3, 0, 0, 10, 10)], [box(0.6, 0, 0, 10, 10)]])
    assert fused.score == pytest.approx(0.6)


def test_a_box_is_held_against_the_mean_so_far_and_joins_what_it_overlaps_most() -> None:
    # Mean of the first two is 0..11 after the second (equal scores: (0+2)/2, (10+12)/2) = 1..11.
    boxes = [box(0.8, 0, 0, 10, 10), box(0.8, 2, 0, 12, 10), box(0.4, 4, 0, 14, 10)]
    fused = fused_boxes([[boxes[0]], [boxes[1]], [boxes[2]]])
    # IoU of 4..14 with 1..11 is 7 / 13 < 0.55, with 0..10 it were 6 / 14: a thing of its own.
    assert [each.corners for each in fused] == [(1, 0, 11, 10), (4, 0, 14, 10)]
    assert [each.score for each in fused] == pytest.approx([0.8 * 2 / 3, 0.4 / 3])
    joined = fused_boxes([[each] for each in boxes], same=0.5)
    assert [each.corners for each in joined] == [pytest.approx((1.6, 0, 11.6, 10))]


def test_exactly_the_bound_is_not_over_it() -> None:
    assert len(fused_boxes([[box(0.9, 0, 0, 10, 10)], [box(0.8, 0, 0, 10, 5)]], same=0.5)) == 2


def test_labels_are_fused_apart_and_the_surest_comes_first() -> None:
    members = [
        [box(0.5, 0, 0, 10, 10), box(0.9, 0, 0, 10, 10, label="cup")],
        [box(0.5, 0, 0, 10, 10), box(0.7, 0, 0, 10, 10, label="cup")],
    ]
    fused = fused_boxes(members)
    assert [(each.label, each.score) for each in fused] == [("cup", pytest.approx(0.8)), ("plate", 0.5)]


def test_the_order_of_the_members_changes_nothing() -> None:
    members = [
        [box(0.9, 0, 0, 10, 10), box(0.2, 30, 30, 40, 40)],
        [box(0.6, 1, 1, 11, 11)],
        [box(0.7, 0, 1, 10, 11), box(0.4, 31, 30, 41, 40)],
    ]
    first = fused_boxes(members)
    for order in itertools.permutations(members):
        for one, other in zip(fused_boxes(order), first, strict=True):
            assert one.corners == pytest.approx(other.corners)
            assert one.score == pytest.approx(other.score)


def test_the_authors_own_example_is_fused_as_their_code_fuses_it() -> None:
    # The README of ensemble-boxes (Solovyev); the numbers are what its 1.0.9 gives, all members alike.
    first = [
        box(0.9, 0.00, 0.51, 0.81, 0.91, label="0"),
        box(0.8, 0.10, 0.31, 0.71, 0.61, label="1"),
        box(0.2, 0.01, 0.32, 0.83, 0.93, label="0"),
        box(0.4, 0.02, 0.53, 0.11, 0.94, label="1"),
        box(0.7, 0.03, 0.24, 0.12, 0.35, label="1"),
    ]
    second = [
        box(0.5, 0.04, 0.56, 0.84, 0.92, label="1"),
        box(0.8, 0.12, 0.33, 0.72, 0.64, label="1"),
        box(0.7, 0.38, 0.66, 0.79, 0.95, label="1"),
        box(0.3, 0.08, 0.49, 0.21, 0.89, label="0"),
    ]
    fused = fused_boxes([first, second], same=0.5)
    assert [(each.label, round(each.score, 6)) for each in fused] == [
        ("1", 0.8),
        ("0", 0.55),
        ("1", 0.35),
        ("1", 0.35),
        ("1", 0.25),
        ("1", 0.2),
        ("0", 0.15),
    ]
    assert fused[0].corners == pytest.approx((0.11, 0.32, 0.715, 0.625))
    assert fused[1].corners == pytest.approx((0.00181818, 0.47545454, 0.81363636, 0.91363636), abs=1e-7)


def test_no_boxes_at_all_are_none() -> None:
    assert fused_boxes([[], []]) == []


def test_boxes_are_read_as_they_were_written() -> None:
    boxes = [box(0.123456, 0.25, 1, 2.5, 3), box(0.5, 0, 0, 1, 1, label='ä "quoted"')]
    assert boxes_of(text_of(boxes)) == boxes
    assert boxes_of("") == []


@pytest.mark.parametrize(
    "text",
    ["x", '[{"label": "a"}]', '[{"label": "a", "score": 1, "box": [1, 2, 3]}]', "[1]", "[" * 100_000],
)
def test_what_is_no_list_of_boxes_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="are no boxes"):
        boxes_of(text)
