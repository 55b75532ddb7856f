"""What is rebuilt of a late row is what its model would have said, if the parity model added exactly."""

from __future__ import annotations

import numpy as np
import pytest

from server.ensemble.parity import rebuilt_answer, rebuilt_scores
from tests.answers import confidences_of, labels_of, scores_of


@pytest.mark.parametrize("k", [2, 3, 4])
def test_an_exact_sum_gives_the_late_rows_probabilities(k: int):
    random = np.random.default_rng(k)
    rows = random.dirichlet(np.ones(5), size=k).astype(np.float32)
    rows = np.maximum(rows, 2e-4)
    rows /= rows.sum(axis=1, keepdims=True)
    total = np.log(rows.astype(np.float64)).sum(axis=0)
    parity = np.exp(total - total.max())
    parity = (parity / parity.sum()).astype(np.float32)
    assert rebuilt_scores(parity, list(rows[1:])) == pytest.approx(rows[0], rel=1e-3)


def test_probabilities_of_nought_spoil_nothing():
    found = rebuilt_scores(np.array([1, 0, 0], np.float32), [np.array([0, 1, 0], np.float32)])
    assert np.isfinite(found).all()
    assert found.sum() == pytest.approx(1)


def test_it_is_told_as_a_workers_answer_of_the_parity_model():
    scores = np.array([0.2, 0.7, 0.1], np.float32)
    (told,) = rebuilt_answer("food~parity-2/1", ("laksa", "pizza", "satay"), scores).members
    assert told.model == "food~parity-2/1"
    assert labels_of(told) == ["pizza"]
    assert confidences_of(told) == pytest.approx([0.7])
    assert scores_of(told) == scores.tobytes()
