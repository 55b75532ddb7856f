"""Mean average precision, against sums that were done by hand."""

from __future__ import annotations

import math

import pytest

from gpu_worker.tasks.average_precision import mean_average_precision
from gpu_worker.tasks.boxes import Box

HALF = (0.5,)


def box(score: float, x: float, width: float = 10.0, label: str = "plate") -> Box:
    return Box(label, score, (x, 0.0, x + width, 10.0))


def test_all_boxes_found_and_no_other_is_one() -> None:
    true = [[box(1, 0), box(1, 20)], [box(1, 5)]]
    assert mean_average_precision(true, true) == 1.0


def test_nothing_found_is_nothing() -> None:
    assert mean_average_precision([[]], [[box(1, 0)]]) == 0.0


def test_without_true_boxes_there_is_nothing_to_say() -> None:
    assert math.isnan(mean_average_precision([[box(1, 0)]], [[]]))


def test_a_wrong_box_that_is_surer_halves_the_precision() -> None:
    found = [[box(0.9, 50), box(0.8, 0)]]
    assert mean_average_precision(found, [[box(1, 0)]], HALF) == pytest.approx(0.5)


def test_a_wrong_box_that_is_less_sure_costs_nothing() -> None:
    found = [[box(0.9, 0), box(0.8, 50)]]
    assert mean_average_precision(found, [[box(1, 0)]], HALF) == 1.0


def test_half_of_the_boxes_is_the_precision_at_51_of_101_recalls() -> None:
    assert mean_average_precision([[box(0.9, 0)]], [[box(1, 0), box(1, 50)]], HALF) == pytest.approx(51 / 101)


def test_right_wrong_right_is_read_at_its_recalls() -> None:
    found = [[box(0.9, 0), box(0.8, 100), box(0.7, 50)]]
    # Recalls to 0.5 at precision 1, the other 50 at 2 / 3.
    expected = (51 + 50 * 2 / 3) / 101
    assert mean_average_precision(found, [[box(1, 0), box(1, 50)]], HALF) == pytest.approx(expected)


def test_a_second_box_around_the_same_thing_is_wrong() -> None:
    found = [[box(0.9, 0), box(0.8, 0.5), box(0.7, 50)]]
    expected = (51 + 50 * 2 / 3) / 101
    assert mean_average_precision(found, [[box(1, 0), box(1, 50)]], HALF) == pytest.approx(expected)


def test_a_box_counts_at_the_overlaps_that_it_reaches() -> None:
    # 8 of 10 wide: an intersection over union of 0.8, enough for .5 to .8, seven of ten.
    assert mean_average_precision([[box(0.9, 0, 8)]], [[box(1, 0)]]) == pytest.approx(0.7)


def test_surer_boxes_of_other_pictures_come_first() -> None:
    found = [[box(0.5, 0)], [box(0.9, 50)]]
    assert mean_average_precision(found, [[box(1, 0)], [box(1, 0)]], HALF) == pytest.approx(0.5 * 51 / 101)


def test_each_label_counts_alike_and_those_that_are_not_there_do_not() -> None:
    true = [[box(1, 0), box(1, 50), box(1, 0, label="cup")]]
    found = [[box(0.9, 0), box(0.8, 50), box(0.9, 90, label="fork")]]
    assert mean_average_precision(found, true, HALF) == pytest.approx((1 + 0) / 2)


def test_pictures_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="boxes of 1 pictures were found, and 2 have true ones"):
        mean_average_precision([[]], [[], []])
