"""Which rule a deployed function answers by: the fitted one where rows it was not fitted on say so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from server.ensemble.fit import Fit, fit_combination, rows_to_fit
from server.training.promotion import combination
from server.training.promotion.combination import choose_combination

LABELS = np.zeros(40, np.int64)


def said(*right: float) -> dict[str, Any]:
    """Members that give the right one of two classes these probabilities; to the last quarter of rows 0.9."""
    scores = {}
    for place, each in enumerate(right):
        p = np.where(np.arange(len(LABELS)) < 30, each, 0.9)
        scores[f"m{place}"] = np.stack([p, 1 - p], axis=1).astype(np.float32)
    return scores


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Fits that are never right, and what they were asked with."""
    asked: dict[str, Any] = {}

    def spoilt(*arguments: Any, **options: Any) -> Fit:
        asked.update(options, probabilities=arguments[0], labels=arguments[1])
        fit = fit_combination(*arguments, **options)
        return replace(fit, subsets=tuple(replace(each, accuracy=0.0) for each in fit.subsets))

    monkeypatch.setattr(combination, "fit_combination", spoilt)
    return asked


@pytest.mark.parametrize(
    ("right", "rule", "held_out"),
    [
        ((0.55, 0.55, 0.01), "majority_vote", (0.25, 1.0)),
        ((0.45, 0.45, 0.99), "mean", (1.0, 0.25)),
        ((0.9, 0.9, 0.9), "mean", (1.0, 1.0)),
    ],
)
def test_where_the_fitted_rule_is_worse_the_better_of_the_others_is_taken_and_of_equals_the_mean(
    right: tuple[float, ...], rule: str, held_out: tuple[float, float], seen: dict[str, Any]
) -> None:
    found = choose_combination(said(*right), LABELS)
    assert found.rule == rule
    assert (found.held_out["mean"], found.held_out["majority_vote"]) == held_out
    assert found.accuracy == max(held_out)


def test_the_fitted_rule_is_taken_where_it_is_as_good_as_the_vote() -> None:
    found = choose_combination(said(0.9, 0.8), LABELS)
    assert found.rule == "log_pool"
    assert found.held_out == {"log_pool": 1.0, "mean": 1.0, "majority_vote": 1.0}
    assert found.subset_accuracies() == {("m0",): 1.0, ("m1",): 1.0, ("m0", "m1"): 1.0}


def test_rows_of_a_class_that_no_member_knows_count_as_wrong_and_teach_no_rule() -> None:
    labels = np.where(np.arange(40) % 4 == 0, -1, LABELS)
    found = choose_combination(said(0.9, 0.8), labels, np.arange(40))
    assert found.rule == "log_pool"
    assert found.held_out == {"log_pool": 0.75, "mean": 0.75, "majority_vote": 0.75}
    assert found.subset_accuracies() == {("m0",): 0.75, ("m1",): 0.75, ("m0", "m1"): 0.75}
    kept = labels >= 0
    alone = {name: each[kept] for name, each in said(0.9, 0.8).items()}
    assert found.fit == choose_combination(alone, labels[kept], np.arange(40)[kept]).fit


def test_of_many_rows_those_that_are_fitted_on_keep_their_labels_and_groups(seen: dict[str, Any]) -> None:
    rows = 5000
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, rows)
    scores = {name: rng.dirichlet((1, 1), rows).astype(np.float32) for name in ("a", "b")}
    choose_combination(scores, labels, np.arange(rows) // 4)
    taken = rows_to_fit(rows, 2)
    assert len(taken) < rows
    assert (seen["groups"] == taken // 4).all()
    assert (seen["labels"] == labels[taken]).all()
    assert (seen["probabilities"][1] == scores["b"][taken]).all()
    choose_combination(scores, labels)
    assert seen["groups"] is None


def test_what_copies_of_a_row_know_by_heart_does_not_count() -> None:
    """Each input twice, and a member that is right by chance: with its copies apart it would look better."""
    rng = np.random.default_rng(1)
    base = rng.integers(0, 2, 30)
    labels = np.repeat(base, 2)
    scores = {name: np.repeat(rng.dirichlet((1, 1), 30), 2, axis=0) for name in "abcdefgh"}
    whole = choose_combination(scores, labels, np.arange(60) // 2).held_out["log_pool"]
    apart = choose_combination(scores, labels).held_out["log_pool"]
    assert whole < apart
