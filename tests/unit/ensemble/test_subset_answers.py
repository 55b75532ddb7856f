"""From a fit of the combination to the ensemble that a policy is made for."""

from __future__ import annotations

import numpy as np
import pytest

from server.ensemble.evidence import NOTHING
from server.ensemble.fit import combined, fit_combination
from server.ensemble.policies.by_name import SELECTION_POLICIES, selection_policy
from server.ensemble.selection import EnsembleMember, RowEvidence
from server.ensemble.subset_answers import answers_of, fit_ensemble
from tests.unit.ensemble.ensembles import drawn


def members(count):
    return [EnsembleMember(f"m{number}", 0.8, 1e-3, 1e-4) for number in range(count)]


def test_a_row_is_combined_as_the_fit_says_of_the_members_that_answered():
    told, labels = drawn([0.6, 0.8, 0.9])
    fit = fit_combination(told, labels, members=["m0", "m1", "m2"])
    policy = selection_policy("value", fit_ensemble(members(3), fit, told, labels))
    answer = policy.combine(policy.init(), {2: told[2][5].tolist(), 0: told[0][5].tolist()})
    together = combined(fit, (0, 2), told[[0, 2]])[5]
    assert answer.label == int(together.argmax())
    assert answer.confidence == pytest.approx(together.max())


def test_the_evidence_is_of_every_subset_that_was_fitted():
    told, labels = drawn([0.6, 0.8])
    fit = fit_combination(told, labels)
    answers = answers_of(fit, told, labels)
    assert set(answers.confidence) == set(answers.correct) == {0b01, 0b10, 0b11}
    assert np.array_equal(answers.correct[0b10], told[1].argmax(axis=1) == np.asarray(labels))


def test_a_fit_of_other_members_is_refused():
    told, labels = drawn([0.6, 0.8])
    with pytest.raises(ValueError, match=r"the fit is of \['0', '1'\]"):
        fit_ensemble(members(2), fit_combination(told, labels), told, labels)


@pytest.mark.parametrize("name", sorted(SELECTION_POLICIES.keys() - {"actor_critic"}))  # of six at most
def test_of_eight_members_whose_subsets_are_not_all_fitted_every_policy_still_answers(name):
    told, labels = drawn([0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85], rows=400)
    names = [f"m{number}" for number in range(8)]
    ensemble = fit_ensemble(members(8), fit_combination(told, labels, members=names), told, labels)
    policy = selection_policy(name, ensemble)
    state, row, asked = policy.init(), RowEvidence(draw=0.4), 0
    while not (choice := policy.select(state, row)).is_enough:
        row.subset |= 1 << choice.ask[0]
        row.state = ensemble.evidence.state_of(row.subset, 0.5)
        asked += 1
        assert asked <= 8
    assert asked
    assert ensemble.evidence.state_of(0b10101, 0.9) == NOTHING
