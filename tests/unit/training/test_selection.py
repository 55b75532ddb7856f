"""Ensemble selection: greedy, within a latency budget, and counted as the server combines."""

from __future__ import annotations

import time

import numpy as np
import pytest

from gpu_worker.tasks.metrics import METRICS
from server.ensemble.combine import Vote, combine
from server.ensemble.fit import fit_combination
from server.training.promotion.selection import accuracy_of, select_ensemble, subset_scores
from tests.answers import label_columns, labels_of


def models(count: int = 5, rows: int = 400, classes: int = 4, seed: int = 0):
    """Models that are right in 55 to 75 % of the rows, each with mistakes of its own."""
    random = np.random.default_rng(seed)
    labels = random.integers(classes, size=rows)
    scores = {}
    for place in range(count):
        right = random.random(rows) < 0.55 + 0.05 * place
        answers = np.where(right, labels, random.integers(classes, size=rows))
        logits = np.eye(classes)[answers] * 2 + random.normal(size=(rows, classes)) * 0.3
        scores[f"m{place}"] = (np.exp(logits) / np.exp(logits).sum(1, keepdims=True)).astype(np.float32)
    return scores, labels


@pytest.mark.parametrize("rule", ["majority_vote", "mean"])
def test_accuracy_is_that_of_the_servers_own_rule(rule):
    scores, labels = models(classes=3)
    classes = ["a", "b", "c"]
    for members in (["m4"], ["m0", "m4"], ["m1", "m2", "m3"], list(scores)):
        votes = [
            Vote(
                name,
                accuracy_of([name], scores, labels, "mean"),
                label_columns(
                    [classes[answer] for answer in scores[name].argmax(1)],
                    scores[name].max(1).tolist(),
                    scores[name].tobytes(),
                ),
            )
            for name in members
        ]
        answers = np.array([classes.index(label) for label in labels_of(combine(rule, votes, classes))])
        assert accuracy_of(members, scores, labels, rule) == pytest.approx((answers == labels).mean())


@pytest.mark.parametrize("rule", ["majority_vote", "mean"])
def test_the_ensemble_beats_its_best_member_and_is_no_larger_than_it_must_be(rule):
    scores, labels = models()
    chosen = select_ensemble(scores, labels, combine=rule)
    assert chosen.accuracy > accuracy_of(["m4"], scores, labels, rule) + 0.02
    assert chosen.accuracy == accuracy_of(chosen.members, scores, labels, rule)
    assert chosen.members[0] == "m4"
    for fewer in range(1, len(chosen.members)):
        assert accuracy_of(chosen.members[:fewer], scores, labels, rule) < chosen.accuracy


def test_by_the_pool_subsets_are_judged_on_rows_that_they_were_not_fitted_on():
    scores, labels = models(rows=500)
    groups = np.arange(500) // 2
    chosen = select_ensemble(scores, labels, combine="log_pool", groups=groups)
    assert chosen.members[0] == "m4"
    assert len(chosen.members) > 1
    told = np.stack([scores[name] for name in chosen.members])
    together = fit_combination(told, labels, groups=groups).of(tuple(range(len(chosen.members))))
    assert together is not None
    assert chosen.accuracy == pytest.approx(together.accuracy, abs=1e-6)
    fresh, truth = models(rows=4000, seed=9)
    fit = fit_combination(told, labels, members=chosen.members)
    assert accuracy_of(chosen.members, fresh, truth, "log_pool", fit) > accuracy_of(
        ["m4"], fresh, truth, "mean"
    )


def test_rows_of_a_class_that_no_model_knows_are_wrong_and_are_no_reason_to_trust_one():
    scores, labels = models(count=3, classes=2, rows=600)
    known = np.arange(600) < 400
    sure = np.array([[0.01, 0.99]], np.float32)  # of the last class
    for name, rows in scores.items():
        rows[~known] = sure if name == "m0" else 1 - sure
    found = select_ensemble(scores, np.where(known, labels, -1), combine="log_pool")
    alone = select_ensemble({n: rows[known] for n, rows in scores.items()}, labels[known], combine="log_pool")
    assert found.members == alone.members
    assert found.accuracy == pytest.approx(alone.accuracy * 2 / 3)


def test_many_models_are_chosen_from_by_the_pool_in_seconds():
    scores, labels = models(12, rows=2500, classes=10)
    began_s = time.process_time()
    assert len(select_ensemble(scores, labels, combine="log_pool").members) <= 8
    assert time.process_time() - began_s < 20


def test_the_latency_budget_is_kept_and_left_only_when_nothing_fits():
    scores, labels = models()
    cost = {"m0": 1.0, "m1": 2.0, "m2": 4.0, "m3": 8.0, "m4": 16.0}
    for budget_ms in (1.0, 5.0, 12.0, 31.0):
        chosen = select_ensemble(scores, labels, latency_ms=cost, budget_ms=budget_ms)
        assert chosen.latency_ms == sum(cost[name] for name in chosen.members) <= budget_ms
    assert select_ensemble(scores, labels, latency_ms=cost, budget_ms=0.5).members == ("m0",)


def test_of_equal_models_the_fastest_is_taken_and_none_twice():
    scores, labels = models(1)
    same = dict.fromkeys(("slow", "fast", "middling"), scores["m0"])
    cost = {"slow": 9.0, "fast": 1.0, "middling": 5.0}
    assert select_ensemble(same, labels, latency_ms=cost).members == ("fast",)


def test_a_model_far_behind_the_best_is_no_member_even_where_it_would_help():
    scores, labels = models()
    alone = {name: accuracy_of([name], scores, labels, "mean") for name in scores}
    assert set(select_ensemble(scores, labels).members) > {"m4"}
    for margin in (0.0, 0.08, 0.12):
        chosen = select_ensemble(scores, labels, margin=margin).members
        assert all(alone[name] >= alone["m4"] - margin for name in chosen)
    assert select_ensemble(scores, labels, margin=0.0).members == ("m4",)


def test_every_subset_has_its_accuracy():
    scores, labels = models(4)
    subsets = subset_scores(METRICS["accuracy"], scores, labels)
    assert len(subsets) == 15
    assert subsets["m1", "m3"] == accuracy_of(["m1", "m3"], scores, labels, "mean")


@pytest.mark.parametrize(("mended", "members"), [(1, 1), (2, 2), (5, 2)])
def test_members_join_for_two_rows_that_are_answered_rightly_and_not_for_one(mended: int, members: int):
    """The second is unsure of all but the rows that the first answers wrongly, of which it knows some."""
    labels = np.zeros(60, np.int64)
    first = np.tile(np.array([0.9, 0.1], np.float32), (60, 1))
    first[:6] = [0.4, 0.6]
    second = np.tile(np.array([0.51, 0.49], np.float32), (60, 1))
    second[:mended] = [0.9, 0.1]
    second[mended : mended + 10] = [0.45, 0.55]
    chosen = select_ensemble({"first": first, "second": second}, labels, combine="mean")
    assert len(chosen.members) == members


def test_a_member_that_adds_nothing_sure_does_not_join_an_ensemble_of_numbers():
    random = np.random.default_rng(4)
    targets = random.normal(size=120)
    good = (targets + random.normal(0, 0.3, 120))[:, None].astype(np.float32)
    scores = {"good": good, "alike": good + random.normal(0, 0.02, (120, 1)).astype(np.float32)}
    chosen = select_ensemble(scores, targets, metric=METRICS["rmse"], margin=0.1)
    assert len(chosen.members) == 1
    assert chosen.accuracy == pytest.approx(METRICS["rmse"].of(scores[chosen.members[0]], targets))


def test_members_whose_errors_differ_answer_numbers_together():
    random = np.random.default_rng(5)
    targets = random.normal(size=300)
    scores = {
        name: (targets + random.normal(0, 0.5, 300))[:, None].astype(np.float32) for name in ("a", "b", "c")
    }
    chosen = select_ensemble(scores, targets, metric=METRICS["rmse"], margin=0.2)
    assert set(chosen.members) == {"a", "b", "c"}
    assert chosen.accuracy < min(METRICS["rmse"].of(each, targets) for each in scores.values())


def test_what_cannot_be_chosen_from_is_refused():
    scores, labels = models(2)
    with pytest.raises(ValueError, match="no models to choose from"):
        select_ensemble({}, labels)
    with pytest.raises(ValueError, match="latency of 'm1' is not known"):
        select_ensemble(scores, labels, latency_ms={"m0": 1.0})
    with pytest.raises(ValueError, match="10 is the most"):
        subset_scores(METRICS["accuracy"], {str(n): scores["m0"] for n in range(11)}, labels)
