"""Stretches of clear flags are those that one finds by looking at each flag."""

from __future__ import annotations

from itertools import groupby

from hypothesis import example, given
from hypothesis import strategies as st

from server.serving.stretches import clear_stretches


@given(flags=st.lists(st.integers(0, 1), max_size=12), at=st.integers(0, 16), end=st.integers(0, 16))
@example(flags=[0, 1], at=1, end=4)  # beyond the last flag
@example(flags=[1, 0], at=3, end=3)
def test_they_are_the_clear_places_in_order(flags: list[int], at: int, end: int) -> None:
    clear = [place for place in range(at, end) if place >= len(flags) or not flags[place]]
    runs = [list(run) for _, run in groupby(clear, key=lambda place: place - clear.index(place))]
    assert list(clear_stretches(bytearray(flags), at, end)) == [(run[0], len(run)) for run in runs]
