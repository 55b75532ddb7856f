"""Plans are the best that the evidence allows at each price, and sane for members of any kind."""

from __future__ import annotations

import base64
import itertools
import json
import zlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.ensemble.cascade import economical
from server.ensemble.evidence import NOTHING, EvidenceStates, fit_evidence, members_of
from server.ensemble.fit import fit_combination
from server.ensemble.plan import fit_plans, fixed_plan, solve
from server.ensemble.policies.geared import Value
from server.ensemble.selection import Ensemble, EnsembleMember
from server.ensemble.subset_answers import answers_of
from tests.unit.ensemble.ensembles import drawn, ensemble_of, outcomes_of

accuracy_lists = st.lists(st.floats(0.3, 0.98), min_size=1, max_size=4)


def made(accuracies, seed=0, devices=None, rows=800):
    return ensemble_of(
        outcomes_of(*drawn(accuracies, rows, seed=seed)),
        [1.0 + 2 * number for number in range(len(accuracies))],
        devices,
    )


@settings(max_examples=25, deadline=None)
@given(accuracy_lists, st.integers(0, 1000))
def test_no_plan_that_is_kept_is_beaten_by_another(accuracies, seed):
    plans = fit_plans(made(accuracies, seed))
    assert plans
    for richer, poorer in itertools.pairwise(plans):
        assert richer.accuracy > poorer.accuracy
        assert richer.uses_s > poorer.uses_s


@settings(max_examples=25, deadline=None)
@given(accuracy_lists, st.integers(0, 1000))
def test_a_dearer_second_never_buys_more_of_the_device(accuracies, seed):
    ensemble = made(accuracies, seed)
    worths = []
    uses = []
    for price in (0.0, 1.0, 5.0, 20.0, 100.0, 1000.0):
        plan = solve(ensemble, (price,))
        worths.append(plan.accuracy - price * plan.uses_s)
        uses.append(plan.uses_s)
    assert all(dearer <= cheaper + 1e-9 for cheaper, dearer in itertools.pairwise(worths))
    assert all(dearer <= cheaper + 1e-9 for cheaper, dearer in itertools.pairwise(uses))


@settings(max_examples=15, deadline=None)
@given(st.lists(st.floats(0.3, 0.98), min_size=2, max_size=4), st.integers(0, 1000))
def test_the_plan_for_free_time_is_at_least_as_accurate_as_any_fixed_subset(accuracies, seed):
    ensemble = made(accuracies, seed)
    richest = fit_plans(ensemble)[0]
    for subset in ensemble.evidence.subsets:
        assert richest.accuracy >= fixed_plan(ensemble, subset).accuracy - 1e-9


@settings(max_examples=15, deadline=None)
@given(accuracy_lists, st.integers(0, 1000), st.booleans())
def test_a_row_that_nobody_answered_is_never_left_so_and_every_plan_ends(accuracies, seed, apart):
    devices = list(range(len(accuracies))) if apart else None
    ensemble = made(accuracies, seed, devices)
    for plan in fit_plans(ensemble):
        assert plan.choices[NOTHING].ask
        for subset in ensemble.evidence.subsets:
            states = ensemble.evidence.states_of(subset)
            for state in range(states.start, states.stop):
                assert all(not subset >> member & 1 for member in plan.choices[state].ask)


def test_one_member_has_one_plan_which_asks_it_once():
    plans = fit_plans(made([0.8]))
    assert len(plans) == 1
    assert plans[0].choices[NOTHING].ask == (0,)
    assert all(choice.is_enough for choice in plans[0].choices[1:])
    assert plans[0].uses_s == pytest.approx(8e-3 / 32 + 1e-3)


def test_of_two_members_that_are_the_same_only_the_cheaper_is_asked():
    told, labels = drawn([0.8])
    twins = np.concatenate([told, told])
    for plan in fit_plans(ensemble_of(outcomes_of(twins, labels), [3.0, 1.0])):
        assert plan.choices[NOTHING].ask == (1,)
        assert all(choice.is_enough for choice in plan.choices[1:])


def test_a_member_that_always_says_the_same_is_not_asked_beside_a_good_one():
    told, labels = drawn([0.9, 0.5])
    told[1] = [0.7, 0.1, 0.1, 0.1]
    ensemble = ensemble_of(outcomes_of(told, labels), [1.0, 1.0])
    plans = fit_plans(ensemble)
    assert plans[-1].choices[NOTHING].ask == (0,)
    assert plans[0].accuracy >= fixed_plan(ensemble, 0b01).accuracy


@pytest.mark.parametrize(
    ("what", "classes"), [("zeros", 4), ("not numbers", 4), ("one class only", 1), ("one row", 4)]
)
def test_awkward_members_have_sane_plans(what, classes):
    told, labels = drawn([0.9, 0.6, 0.7], rows=1 if what == "one row" else 300, classes=classes)
    if what in ("zeros", "not numbers"):
        told[1] = 0.0 if what == "zeros" else np.nan
    for devices in (None, [0, 1, 2]):
        ensemble = ensemble_of(outcomes_of(told, labels), [1.0, 2.0, 3.0], devices)
        plans = fit_plans(ensemble)
        assert plans
        assert all(0 <= plan.accuracy <= 1 and np.isfinite(plan.remaining_s).all() for plan in plans)
        assert all(plan.choices[NOTHING].ask for plan in plans)
    assert ensemble.evidence.state_of(0b010, float("nan")) == ensemble.evidence.first[0b010]


def test_below_400_rows_there_are_four_bins_and_from_400_on_eight():
    for rows, bins in ((399, 4), (400, 8)):
        evidence = made([0.7, 0.8], rows=rows).evidence
        assert {len(evidence.edges[subset]) + 1 for subset in evidence.subsets} == {bins}


def test_a_bin_of_few_rows_is_drawn_to_its_subset():
    confidence = {1: [0.1] * 10 + [0.9] * 30}
    correct = {1: [False] * 10 + [True] * 30}
    evidence = fit_evidence(1, confidence, correct)
    sure, unsure = evidence.state_of(1, 0.95), evidence.state_of(1, 0.05)
    assert evidence.right[sure] == pytest.approx((30 + 20 * 0.75) / 50)
    assert evidence.right[unsure] == pytest.approx((20 * 0.75) / 20, abs=0.26)


def test_rows_that_are_copies_of_one_another_count_as_one_observation():
    confidence = {1: [0.1, 0.9] * 300}
    correct = {1: [False, True] * 300}
    each, copies = fit_evidence(1, confidence, correct), fit_evidence(1, confidence, correct, 30)
    assert each.right[each.state_of(1, 0.95)] > copies.right[copies.state_of(1, 0.95)] > 0.5
    assert copies.rows.sum() == pytest.approx(2 * 30)


def test_evidence_needs_the_same_rows_for_every_subset():
    with pytest.raises(ValueError, match="the same rows"):
        fit_evidence(1, {1: [0.5, 0.6]}, {1: [True]})
    with pytest.raises(ValueError, match="at least one"):
        fit_evidence(1, {1: []}, {1: []})


def test_evidence_survives_its_json():
    evidence = made([0.6, 0.8, 0.9]).evidence
    again = EvidenceStates.from_json(evidence.to_json())
    assert again.to_json() == evidence.to_json()
    assert again.state_of(0b101, 0.5) == evidence.state_of(0b101, 0.5)
    assert np.array_equal(again.right, evidence.right)


def known(rows, seed):
    """An ensemble of three whose fit and evidence are of these rows."""
    return known_of(*drawn([0.62, 0.7, 0.75], rows, seed=seed))


def known_of(told, labels):
    fit = fit_combination(told, labels, evidence=True)
    members = tuple(
        EnsembleMember(f"m{number}", 0.7, 0.008, 0.001 + 0.002 * number, device=0) for number in range(3)
    )
    assert fit.evidence is not None
    return fit, Ensemble(members, fit.evidence)


def test_evidence_keeps_its_rows_in_its_json_and_refuses_what_is_none():
    fit, _ = known(150, 1)
    assert fit.evidence is not None
    kept = fit.evidence.to_json()
    assert fit.evidence.judged is not None
    again = EvidenceStates.from_json(json.loads(json.dumps(kept)))
    assert again.to_json() == kept
    assert again.judged is not None
    assert np.array_equal(again.judged.correct, fit.evidence.judged.correct)
    for wrong in (
        {"rows": 149},
        {"states": kept["judged"]["fold"]},
        {"fold": "AAAA"},
        {"rows": 10**9},
        {"states": base64.b64encode(zlib.compress(b"\xff" * 150 * 7)).decode()},
        {"probable": kept["judged"]["fold"]},
        {"probable": "AAAA"},
    ):
        with pytest.raises(ValueError, match=r"row|numbers"):
            EvidenceStates.from_json({**kept, "judged": {**kept["judged"], **wrong}})


def test_rows_that_were_kept_before_anything_was_known_to_be_lost_are_counted_by_their_labels():
    fit, ensemble = known(150, 1)
    kept = json.loads(json.dumps(fit.evidence.to_json()))
    found = EvidenceStates.from_json(kept)
    del kept["judged"]["probable"]
    again = EvidenceStates.from_json(kept)
    assert found.judged is not None
    assert again.judged is not None
    assert np.array_equal(found.judged.right(), fit.evidence.judged.right())
    assert np.array_equal(again.judged.right(), fit.evidence.judged.correct)
    assert [again.expected(each) for each in again.subsets] == [
        again.accuracy(each) for each in again.subsets
    ]
    assert fit_plans(replace(ensemble, evidence=again))


def test_all_members_are_believed_to_be_as_right_as_they_were_and_no_subset_more():
    for seed in range(4):
        fit, _ = known(240, seed)
        evidence = fit.evidence
        believed = evidence.judged.right()
        assert believed[-1].mean() == pytest.approx(evidence.accuracy(0b111), abs=0.005)
        assert (believed <= believed[-1]).all()
        assert believed.min() >= 0
        assert believed.max() <= 1
        assert all(evidence.expected(each) <= evidence.expected(0b111) for each in evidence.subsets)


def followed(plan, evidence, fresh):
    """By row, the members that have answered it when the plan has come to its end."""
    subsets = []
    for row in range(len(fresh.confidence[1])):
        subset, state = 0, NOTHING
        while (choice := plan.choices[state]).ask:
            subset |= 1 << choice.ask[0]
            state = evidence.state_of(subset, fresh.confidence[subset][row])
        subsets.append(subset)
    return subsets


def test_what_a_plan_promises_it_keeps_on_other_rows():
    """As far as all members together do on those rows: what is left is how these rows differ."""
    told, labels = drawn([0.62, 0.7, 0.75], 400, seed=99)
    off, off_by_itself = [], []
    for seed in range(12):
        fit, ensemble = known(240, seed)
        fresh = answers_of(fit, told, labels)
        evidence = fit.evidence
        harder = evidence.accuracy(0b111) - fresh.correct[0b111].mean()
        for plan in fit_plans(ensemble):
            right = sum(
                fresh.correct[subset][row] for row, subset in enumerate(followed(plan, evidence, fresh))
            )
            off.append(plan.accuracy - right / 400 - harder)
            if plan.prices:
                off_by_itself.append(solve(ensemble, plan.prices).accuracy - right / 400 - harder)
    assert abs(np.mean(off)) < 0.01
    assert 0 < np.mean(off_by_itself) - np.mean(off) < 0.01, "for its own rows it promises more"


def easy_and_hard(rows, seed):
    """What three members say of rows of which some are easy for all of them, and some hard."""
    random = np.random.default_rng(seed)
    labels = random.integers(4, size=rows)
    scores = random.normal(0, 0.7, size=(3, rows, 4)) + random.normal(0, 0.7, size=(rows, 4))
    scores[:, np.arange(rows), labels] += random.normal(2.0, 1.5, size=rows)
    shares = np.exp(scores)
    return shares / shares.sum(axis=2, keepdims=True), labels


def test_the_plan_of_rows_without_a_goal_costs_them_no_accuracy_and_spares_members():
    """By labels alone some cheap plan is lucky on 240 rows, and loses a point on others."""
    told, labels = easy_and_hard(2000, seed=98)
    lost, shares = [], []
    for seed in range(12):
        fit, ensemble = known_of(*easy_and_hard(240, seed))
        fresh = answers_of(fit, told, labels)
        plans = fit_plans(ensemble)
        plan = plans[economical(plans)]
        answered = followed(plan, fit.evidence, fresh)
        right = sum(fresh.correct[subset][row] for row, subset in enumerate(answered))
        asked_s = sum(ensemble.members[number].cost_s for subset in answered for number in members_of(subset))
        lost.append(fresh.correct[0b111].mean() - right / len(labels))
        shares.append(asked_s / len(labels) / sum(member.cost_s for member in ensemble.members))
    assert np.mean(lost) < 0.002
    assert np.mean(shares) < 0.9


def test_of_eight_members_known_from_few_rows_plans_are_fitted():
    """Not every subset of so many is counted: members are asked in an order of which each part is."""
    told, labels = drawn([0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85], 100, seed=5)
    evidence = fit_combination(told, labels, evidence=True).evidence
    assert evidence is not None
    members = tuple(EnsembleMember(f"m{number}", 0.7, 0.008, 0.001, device=0) for number in range(8))
    plans = fit_plans(Ensemble(members, evidence))
    assert plans[0].accuracy == pytest.approx(evidence.expected(255))
    for plan in plans:
        for subset in (0, *evidence.subsets):
            for choice in plan.choices[evidence.states_of(subset)]:
                assert all(subset | 1 << member in evidence.first for member in choice.ask)


def test_known_from_few_rows_no_subset_for_all_rows_beats_a_plan():
    _, ensemble = known(100, 3)
    plans = fit_plans(ensemble)
    for subset in ensemble.evidence.subsets:
        uses_s, accuracy = fixed_plan(ensemble, subset).uses_s, ensemble.evidence.expected(subset)
        assert any(plan.accuracy >= accuracy - 1e-9 and plan.uses_s <= uses_s + 1e-12 for plan in plans)


def test_several_devices_get_gears_that_spread_the_rows():
    ensemble = made([0.8, 0.8, 0.8], devices=[0, 1, 2])
    poorest = fit_plans(ensemble)[-1]
    assert len(poorest.choices[NOTHING].ask) > 1
    assert (poorest.remaining_s[NOTHING] > 0).sum() > 1


def test_value_takes_plans_that_were_fitted_before():
    ensemble = made([0.7, 0.9])
    plans = fit_plans(ensemble)[:1]
    assert Value(ensemble, plans).plans == plans
