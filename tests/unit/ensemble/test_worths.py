"""Plans of members that answer no classes go by what their answers are worth together on held-out rows."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from gpu_worker.tasks import TABULAR_CLASSIFICATION, TABULAR_MULTILABEL, TABULAR_REGRESSION
from gpu_worker.tasks.metrics import METRICS
from server.ensemble.cascade import cascade_of, plan_on_worker
from server.ensemble.evidence import members_of
from server.ensemble.fit import Fit, SubsetFit
from server.ensemble.policies.by_name import selection_policy
from server.ensemble.policies.geared import Value
from server.ensemble.selection import Ensemble, EnsembleMember, RowEvidence
from server.ensemble.worths import fit_of_worths
from server.training.promotion.worth import worths_fit

COSTS_S = (0.001, 0.002, 0.004)


def numbers(
    spreads: tuple[float, ...] = (2.0, 1.5, 1.0), rows: int = 500
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Members that err by so much, each for itself, on targets of variance 9."""
    draw = np.random.default_rng(0)
    targets = draw.normal(50, 3, rows)
    told = {
        name: (targets + draw.normal(0, spread, rows)).astype(np.float32)[:, None]
        for name, spread in zip("abc", spreads, strict=False)
    }
    return told, targets


def ensemble_of(fit: Fit, devices: tuple[int, ...] = (0, 0, 0)) -> Ensemble:
    assert fit.evidence is not None
    members = tuple(
        EnsembleMember(name, 0.0, 8 * cost_s, cost_s, device)
        for name, cost_s, device in zip(fit.members, COSTS_S, devices, strict=False)
    )
    return Ensemble(members, fit.evidence)


def asked_by(policy: Value, gear: int) -> int:
    """The members of a gear, each asked after the other, as a mask."""
    subset = 0
    while not (
        choice := policy.select({"gear": gear}, RowEvidence(subset, state=_state(policy, subset)))
    ).is_enough:
        subset |= 1 << choice.ask[0]
    return subset


def _state(policy: Value, subset: int) -> int:
    return policy._ensemble.evidence.state_of(subset, 0.0)


def test_the_worth_of_numbers_is_the_share_of_the_variance_that_their_mean_explains() -> None:
    told, targets = numbers()
    fit = worths_fit(TABULAR_REGRESSION, told, targets)
    assert fit is not None
    assert fit.evidence is not None
    assert (fit.members, fit.rule, fit.measure, fit.rows) == (("a", "b", "c"), "mean", "r2", 500)
    for subset in range(1, 8):
        mean = np.mean([told["abc"[place]][:, 0].astype(float) for place in members_of(subset)], axis=0)
        left = ((mean - targets) ** 2).mean() / targets.var()
        assert fit.evidence.accuracy(subset) == pytest.approx(1 - left, abs=1e-5)


def test_under_load_numbers_are_asked_of_fewer_members_the_most_explaining_ones_for_their_time() -> None:
    told, targets = numbers()
    fit = worths_fit(TABULAR_REGRESSION, told, targets)
    assert fit is not None
    policy = Value(ensemble_of(fit))
    assert asked_by(policy, 0) == 0b111
    asked = [asked_by(policy, gear) for gear in range(len(policy.plans))]
    assert asked[-1] == 0b001, "the cheapest one answers where there is time for nothing else"
    worths = [plan.accuracy for plan in policy.plans]
    assert worths == sorted(worths, reverse=True)
    assert [fit.evidence.accuracy(each) for each in asked] == pytest.approx(worths)  # type: ignore[union-attr]
    costs = [plan.device_s for plan in policy.plans]
    assert costs == sorted(costs, reverse=True)
    assert costs[0] > 3 * costs[-1]


def test_a_member_that_spoils_the_mean_is_not_among_the_richest() -> None:
    told, targets = numbers((1.0, 1.0, 9.0))
    fit = worths_fit(TABULAR_REGRESSION, told, targets)
    assert fit is not None
    policy = Value(ensemble_of(fit))
    assert asked_by(policy, 0) == 0b011


@pytest.mark.parametrize("select", ["value", "gear", "slackfit", "async"])
@pytest.mark.parametrize("devices", [(0, 0, 0), (0, 1, 1), (0, 1, 2)])
def test_each_policy_that_goes_by_subsets_asks_somebody_wherever_members_are(
    select: str, devices: tuple[int, ...]
) -> None:
    told, targets = numbers()
    fit = worths_fit(TABULAR_REGRESSION, told, targets)
    assert fit is not None
    policy = selection_policy(select, ensemble_of(fit, devices))
    assert policy.select(policy.init(), RowEvidence()).ask


def test_rows_without_a_goal_are_asked_together_of_the_cheapest_that_are_worth_as_much() -> None:
    told, targets = numbers((1.0, 1.0, 9.0))
    fit = worths_fit(TABULAR_REGRESSION, told, targets)
    assert fit is not None
    ensemble = ensemble_of(fit)
    policy = Value(ensemble)
    assert plan_on_worker(ensemble, policy, 0.0005) is None, "what a member says decides nothing"
    cascade = cascade_of(ensemble, policy, 0.0005)
    assert cascade is not None
    assert (cascade.first.ask, cascade.first.beside) == ((0, 1), True)


@pytest.mark.parametrize("spread", [20.0, math.inf])
def test_numbers_worse_than_the_mean_of_the_targets_are_worth_nothing_and_still_answered(
    spread: float,
) -> None:
    told, targets = numbers((5.0, 4.0, 3.0))
    bad = {name: each + spread for name, each in told.items()}
    with np.errstate(invalid="ignore"):
        fit = worths_fit(TABULAR_REGRESSION, bad, targets)
    assert fit is not None
    assert {each.accuracy for each in fit.subsets} == {0.0}
    assert Value(ensemble_of(fit)).plans[0].device_s > 0


def test_sets_of_labels_are_worth_their_micro_f1() -> None:
    draw = np.random.default_rng(1)
    targets = draw.random((300, 4)) < 0.4
    told = {
        name: np.clip(targets + draw.normal(0, spread, targets.shape), 0, 1).astype(np.float32)
        for name, spread in (("a", 0.9), ("b", 0.7))
    }
    fit = worths_fit(TABULAR_MULTILABEL, told, targets)
    assert fit is not None
    together = fit.of((0, 1))
    assert together is not None
    assert fit.measure == "micro_f1"
    both = (told["a"] + told["b"]) / 2
    assert together.accuracy == pytest.approx(METRICS["micro_f1"].of(both, targets), abs=1e-6)


def test_classes_one_member_alone_and_more_than_plans_choose_among_have_no_worths() -> None:
    told, targets = numbers()
    assert worths_fit(TABULAR_CLASSIFICATION, told, targets) is None
    assert worths_fit(TABULAR_REGRESSION, {"a": told["a"]}, targets) is None
    many = {str(number): told["a"] for number in range(7)}
    assert worths_fit(TABULAR_REGRESSION, many, targets) is None


def test_what_was_measured_is_kept_and_read_back_with_its_rule() -> None:
    told, targets = numbers()
    fit = worths_fit(TABULAR_REGRESSION, told, targets)
    assert fit is not None
    kept = Fit.from_json(json.loads(json.dumps(fit.to_json())))
    assert kept == fit
    assert (kept.rule, kept.measure) == ("mean", "r2")
    assert kept.evidence is not None
    assert fit.evidence is not None
    assert kept.evidence.right.tolist() == fit.evidence.right.tolist()


def test_a_fit_of_classes_is_kept_as_it_always_was() -> None:
    fit = Fit(("a", "b"), (1.0, 2.0), (SubsetFit((0, 1), (0.5, 0.7), 0.9, 0.3),), 100, 3)
    assert list(fit.to_json()) == ["format", "members", "temperatures", "rows", "classes", "subsets"]
    assert (Fit.from_json(fit.to_json()).rule, Fit.from_json(fit.to_json()).measure) == (
        "log_pool",
        "accuracy",
    )


def test_a_subset_that_was_not_measured_is_missed() -> None:
    with pytest.raises(ValueError, match="every subset of 2 members"):
        fit_of_worths(("a", "b"), {(0,): 0.5, (1,): 0.6}, 10, rule="mean", measure="r2")


def test_what_was_worth_nothing_that_can_be_told_counts_as_nothing() -> None:
    worths = {(0,): math.nan, (1,): math.nan, (0, 1): math.nan}
    fit = fit_of_worths(("l", "r"), worths, 1, rule="mean", measure="r2")
    assert {each.accuracy for each in fit.subsets} == {0.0}
