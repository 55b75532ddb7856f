"""A member that breaks is noticed within a few labels; one that errs as expected hardly ever is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.ensemble.breakage import (
    LEAST_ROWS,
    Deviation,
    Expected,
    RefitNote,
    deviation,
    is_off,
    most_surprising,
)


def labels_until_noticed(
    draw: np.random.Generator, expected: Expected, wrong: float, most: int
) -> int | None:
    """After how many labels a member that is wrong that often is noticed; None if not by `most`."""
    was_wrong = (draw.random(most) < wrong).tolist()
    for row in range(5, most + 1, 5):
        if most_surprising({"m": was_wrong[max(0, row - 100) : row]}, {"m": expected}) is not None:
            return row
    return None


def test_a_member_that_breaks_is_noticed_within_its_first_labels() -> None:
    draw = np.random.default_rng(0)
    expected = Expected(0.05, 1000)
    for wrong, within in ((0.8, LEAST_ROWS), (0.4, 45), (0.25, 150)):
        found = [labels_until_noticed(draw, expected, wrong, 400) for _ in range(10)]
        assert all(each is not None for each in found)
        assert np.median([each for each in found if each is not None]) <= within


@pytest.mark.parametrize(("wrong", "rows"), [(0.02, 2000), (0.05, 100), (0.2, 500), (0.5, 100)])
def test_one_that_errs_as_expected_hardly_ever_is(wrong: float, rows: int) -> None:
    draw = np.random.default_rng(1)
    noticed = 0
    for _ in range(20):
        held_out = float((draw.random(rows) < wrong).mean())  # known as well as so many rows say
        noticed += labels_until_noticed(draw, Expected(held_out, rows), wrong, 500) is not None
    assert noticed <= 1


def test_the_window_that_surprises_most_begins_where_the_member_changed() -> None:
    draw = np.random.default_rng(2)
    was_wrong = [*(draw.random(60) < 0.05).tolist(), *(draw.random(40) < 0.9).tolist()]
    found = deviation("m", was_wrong, Expected(0.05, 1000))
    assert found is not None
    assert found.z > 5
    assert 35 <= found.rows <= 45
    assert str(found) == f"m wrong on {found.wrong} of its last {found.rows} labels, expected 2"


def test_one_that_is_better_than_expected_is_noticed_as_well() -> None:
    found = most_surprising({"m": [False] * 60}, {"m": Expected(0.6, 100)})
    assert found is not None
    assert found.z < -4.5
    assert found.wrong == 0


@given(
    st.lists(st.booleans(), max_size=120),
    st.floats(0, 1),
    st.integers(0, 3000),
)
def test_every_count_gives_a_number(was_wrong: list[bool], share: float, rows: int) -> None:
    found = deviation("m", was_wrong, Expected(share, rows))
    if len(was_wrong) < LEAST_ROWS or not rows:
        assert found is None
        return
    assert found is not None
    assert np.isfinite(found.z)
    assert LEAST_ROWS <= found.rows <= len(was_wrong)
    assert found.wrong == sum(was_wrong[len(was_wrong) - found.rows :])
    assert (found.z > 0) == (found.wrong > found.rows * share)
    assert is_off(found.wrong, found.rows, Expected(share, rows)) == (abs(found.z) >= 2)


@given(st.integers(30, 100), st.floats(0.01, 0.99), st.integers(20, 2000))
def test_more_wrong_is_never_less_of_a_surprise(rows: int, share: float, known: int) -> None:
    found = [
        deviation("m", [True] * wrong + [False] * (rows - wrong), Expected(share, known))
        for wrong in range(rows + 1)
    ]
    z = [each.z for each in found if each is not None and each.rows == rows]
    assert z == sorted(z)


def test_of_several_the_most_surprising_is_named_and_unknown_ones_are_not() -> None:
    bad, worse = [True] * 20 + [False] * 20, [True] * 40
    expected: dict[str, Expected | None] = {"a": Expected(0.05, 500), "b": Expected(0.05, 500), "c": None}
    found = most_surprising({"a": bad, "b": worse, "c": worse}, expected)
    assert found is not None
    assert found.member == "b"
    assert most_surprising({"c": worse}, expected) is None
    assert most_surprising({}, {}) is None


def test_a_note_is_the_same_when_read_back() -> None:
    deviated = Deviation("m", 61, 100, 9.0, 12.0)
    note = RefitNote(
        2, str(deviated), ("m",), 200, 300, 100, (Expected(0.61, 100), None), "2026-11-22T10:00:00+00:00"
    )
    assert RefitNote.from_json(note.to_json()) == note
    assert str(note) == "m wrong on 61 of its last 100 labels, expected 9: refitted on 100 labelled rows"
