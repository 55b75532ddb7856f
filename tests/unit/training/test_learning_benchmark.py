"""How `bench-learning` compares: paired by seed, better where the score is better."""

from __future__ import annotations

import math

import pytest

from tests.benchmarks.learning import CASES, gain, summary


def test_a_gain_is_paired_and_of_errors_it_is_what_is_less():
    mean, low, high = gain([0.9, 0.8, 0.7], [0.8, 0.7, 0.6], greater_is_better=True)
    assert mean == pytest.approx(0.1)
    assert high - low == pytest.approx(0, abs=1e-9), "each seed gains the same, however the seeds differ"
    assert gain([50.0, 60.0], [55.0, 65.0], greater_is_better=False)[0] == pytest.approx(5)
    assert gain([1.0], [0.5], greater_is_better=True)[1:] == (-math.inf, math.inf), "one seed shows nothing"


def test_contenders_that_are_not_there_on_every_machine_are_compared_where_they_are():
    name = next(iter(CASES))
    both = {"scores": {"train": 0.9, "other": 0.8}, "seconds": {"train": 1.0, "other": 2.0}}
    alone = {"scores": {"train": 0.5}, "seconds": {"train": 1.0}}
    known = {f"{name}/{seed}": {**cell, "greater_is_better": True} for seed, cell in enumerate((both, alone))}
    ours, theirs = summary(known, range(2))
    assert (ours["seeds"], theirs["seeds"]) == (2, 1)
    assert theirs["gain"] == pytest.approx(0.1)
