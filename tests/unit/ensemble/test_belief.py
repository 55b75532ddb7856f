"""How right answers are, by what all members hold probable."""

from __future__ import annotations

import numpy as np
import pytest

from server.ensemble.belief import believed_right
from server.ensemble.evidence import fit_evidence, renewed


def test_all_are_as_sure_as_they_were_right_and_the_surer_rows_stay_surer():
    random = np.random.default_rng(1)
    told = np.sort(random.uniform(0.3, 0.999, 1000))
    correct = random.uniform(size=1000) < 0.5
    right = believed_right(told[None], correct)[0]
    assert right.mean() == pytest.approx(correct.mean(), abs=0.002)
    assert (np.diff(right) >= 0).all()


def test_an_answer_other_than_that_of_all_is_less_probable_and_by_as_much_as_they_say():
    by_all = np.array([[0.1, 0.6, 0.05], [0.7, 0.6, 0.9]])
    right = believed_right(by_all, np.array([True, False, True]))
    assert right[0, 1] == right[1, 1], "the same answer"
    assert right[0, 0] / right[0, 2] == pytest.approx(
        (0.1 / 0.3) / (0.05 / 0.1) * (1 - right[1, 0]) / (1 - right[1, 2])
    )
    assert (right[0, [0, 2]] < right[1, [0, 2]]).all()


@pytest.mark.parametrize("told", [0.0, 1.0, np.nan])
@pytest.mark.parametrize("is_right", [False, True])
def test_what_is_certain_or_no_number_is_a_probability_still(told: float, is_right: bool):
    right = believed_right(np.full((2, 30), told), np.full(30, is_right))
    assert ((right >= 0) & (right <= 1)).all()
    assert right.mean() == pytest.approx(30.5 / 31 if is_right else 0.5 / 31, abs=0.01)


def test_a_lucky_member_that_few_new_rows_show_is_not_taken_to_be_better_than_all():
    """Of 30 rows it has two more right than all together, who hold its other answers improbable."""
    rows = 30
    first = np.full(rows, True)
    of_all = np.arange(rows) >= 2
    sure = {subset: np.full(rows, 0.9) for subset in (1, 2, 3)}
    known = fit_evidence(2, sure, {1: of_all, 2: of_all, 3: of_all})
    believed = {1: np.where(of_all, 0.9, 0.05), 2: np.full(rows, 0.9), 3: np.full(rows, 0.9)}
    found = renewed(known, {1, 3}, sure, {1: first, 2: of_all, 3: of_all}, believed)
    by_labels = renewed(known, {1, 3}, sure, {1: first, 2: of_all, 3: of_all}, dict.fromkeys(sure, sure[3]))
    assert found.accuracy(1) < by_labels.accuracy(1)
    assert found.accuracy(1) < found.accuracy(3) + 0.01
