"""A thread that works four tenths of its time, over a hundredth of a second, is busy."""

from __future__ import annotations

import pytest

from server.http.native.busyness import Busyness


@pytest.mark.parametrize(
    ("worked_s", "is_busy"), [(0.0, False), (0.0039, False), (0.0041, True), (0.01, True)]
)
def test_what_it_worked_lately_is_what_counts(worked_s: float, is_busy: bool) -> None:
    thread = Busyness(100.0, 5.0)
    assert not thread.is_busy
    assert not thread.is_due(100.009)
    assert thread.is_due(100.0101)
    thread.look(100.01, 5.0 + worked_s)
    assert thread.is_busy == is_busy
    thread.look(101.01, 5.0 + worked_s)
    assert not thread.is_busy
