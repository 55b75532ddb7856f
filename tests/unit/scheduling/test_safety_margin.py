"""How much more time rows need that have to queue: from who was late of those that were let in."""

from __future__ import annotations

from server.scheduling.safety_margin import SafetyMargin


def test_it_begins_with_nothing_and_stays_there_while_nobody_is_late() -> None:
    margin = SafetyMargin()
    for _ in range(100):
        margin.ended(8, 0, 8)
    assert margin.share == 0.0


def test_it_grows_with_batches_that_are_late_and_forgets_them_slowly() -> None:
    margin = SafetyMargin()
    margin.ended(8, 8, 8)
    assert 0.09 < margin.share < 0.1
    for _ in range(60):
        margin.ended(8, 0, 8)
    assert margin.share == 0.0


def test_it_stays_where_it_is_while_one_row_in_fifty_is_late() -> None:
    margin = SafetyMargin()
    margin.ended(8, 8, 8)
    before = margin.share
    for _ in range(100):
        margin.ended(50, 1, 64)
    assert abs(margin.share - before) < 1e-9


def test_it_never_takes_more_than_two_fifths_of_the_time() -> None:
    margin = SafetyMargin()
    for _ in range(50):
        margin.ended(1000, 1000, 8)
    assert margin.share == 0.4
