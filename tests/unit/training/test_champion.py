"""The paired test by which a challenger takes a champion's place."""

from __future__ import annotations

import numpy as np
import pytest

from server.training.champion import match


def answers(both: int, mine: int, theirs: int) -> tuple[np.ndarray, np.ndarray]:
    """(challenger, champion): rows that both answer rightly, only the one, only the other."""
    challenger = np.repeat([True, True, False], [both, mine, theirs])
    champion = np.repeat([True, False, True], [both, mine, theirs])
    return challenger, champion


def test_equals_are_no_reason_to_change() -> None:
    found = match(*answers(100, 0, 0))
    assert (found.p_value, found.is_won) == (1.0, False)


@pytest.mark.parametrize(
    ("mine", "theirs", "won"), [(5, 0, True), (4, 0, False), (12, 3, True), (8, 4, False)]
)
def test_a_challenger_wins_by_rows_that_tell_them_apart(mine: int, theirs: int, won: bool) -> None:
    assert match(*answers(1_000, mine, theirs)).is_won is won


def test_p_is_the_chance_of_so_many_fair_coins() -> None:
    assert match(*answers(0, 5, 0)).p_value == pytest.approx(1 / 32)
    assert match(*answers(0, 1, 2)).p_value == pytest.approx(7 / 8)
