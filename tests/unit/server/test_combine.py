"""The combination rules: majority vote with the paper's tie-break, mean of probabilities, thresholds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from gpu_worker.wire.protocol import Column
from server.ensemble.combine import Vote, combine, needs_of, unconfident_rows
from server.ensemble.fit import Fit, SubsetFit, combined
from tests.answers import confidences_of, label_columns, labels_of, scores_of

CLASSES = ("a", "b", "c")


def votes(member: str, accuracy: float, *labels: str, scores: list[list[float]] | None = None) -> Vote:
    raw = b"" if scores is None else np.asarray(scores, "<f4").tobytes()
    return Vote(member, accuracy, label_columns(labels, [0.5] * len(labels), raw))


def test_the_label_of_most_members_wins_and_confidence_is_their_share() -> None:
    combined = combine(
        "majority_vote", [votes("m1", 0.9, "a"), votes("m2", 0.8, "b"), votes("m3", 0.7, "b")], CLASSES
    )
    assert labels_of(combined) == ["b"]
    assert confidences_of(combined)[0] == pytest.approx(2 / 3)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_tie_goes_to_the_most_accurate_model_in_whatever_order_they_answer(order: tuple[int, int]) -> None:
    pair = [votes("weak", 0.6, "a"), votes("strong", 0.9, "b")]
    combined = combine("majority_vote", [pair[i] for i in order], CLASSES)
    assert labels_of(combined) == ["b"]
    assert confidences_of(combined) == [0.5]


def test_a_tie_of_two_pairs_goes_to_the_pair_with_the_most_accurate_model() -> None:
    members = [
        votes("m1", 0.9, "a"),
        votes("m2", 0.8, "b"),
        votes("m3", 0.7, "b"),
        votes("m4", 0.6, "a"),
    ]
    combined = combine("majority_vote", members, CLASSES)
    assert labels_of(combined) == ["a"]


def test_the_best_model_is_outvoted_by_two_that_agree() -> None:
    members = [votes("m1", 0.99, "a"), votes("m2", 0.6, "c"), votes("m3", 0.5, "c"), votes("m4", 0.5, "b")]
    assert labels_of(combine("majority_vote", members, CLASSES)) == ["c"]


def test_one_member_answers_with_its_own_confidence() -> None:
    only = Vote("m", 0.9, label_columns(["a", "b"], [0.75, 0.5], bytes(24)))
    assert combine("majority_vote", [only], CLASSES) is only.columns


def test_the_mean_of_probabilities_names_the_best_class_and_its_mean() -> None:
    members = [
        votes("m1", 0.9, "a", "b", scores=[[0.6, 0.4, 0.0], [0.0, 1.0, 0.0]]),
        votes("m2", 0.8, "b", "b", scores=[[0.1, 0.8, 0.1], [0.2, 0.8, 0.0]]),
    ]
    combined = combine("mean", members, CLASSES)
    assert labels_of(combined) == ["b", "b"]
    assert confidences_of(combined) == pytest.approx([0.6, 0.9])
    assert np.frombuffer(scores_of(combined), "<f4").reshape(2, 3)[0] == pytest.approx([0.35, 0.6, 0.05])


def test_a_row_at_fault_gets_no_label_from_either_rule() -> None:
    members = [
        votes("m1", 0.9, "", scores=[[0.0, 0.0, 0.0]]),
        votes("m2", 0.8, "", scores=[[0.0, 0.0, 0.0]]),
    ]
    rules: list[str] = ["majority_vote", "mean", "log_pool"]
    for rule in rules:
        combined = combine(rule, members, CLASSES)
        assert labels_of(combined) == [""]
        assert confidences_of(combined) == [0.0]


def test_scores_of_a_vote_are_the_members_mean_when_all_bring_them() -> None:
    with_scores = votes("m1", 0.9, "a", scores=[[1, 0, 0]])
    assert "scores" not in combine("majority_vote", [with_scores, votes("m2", 0.8, "b")], CLASSES)
    both = combine("majority_vote", [with_scores, votes("m2", 0.8, "b", scores=[[0, 1, 0]])], CLASSES)
    assert np.frombuffer(scores_of(both), "<f4") == pytest.approx([0.5, 0.5, 0])
    assert both["scores"].shape == (3,)


def test_votes_that_do_not_fit_together_are_refused() -> None:
    with pytest.raises(ValueError, match="no member"):
        combine("majority_vote", [], CLASSES)
    with pytest.raises(ValueError, match="different numbers"):
        combine("majority_vote", [votes("m1", 0.9, "a"), votes("m2", 0.8, "a", "b")], CLASSES)
    with pytest.raises(ValueError, match="no rule 'loudest'"):
        combine("loudest", [votes("m1", 0.9, "a"), votes("m2", 0.8, "a")], CLASSES)
    with pytest.raises(ValueError, match="scores"):
        combine("mean", [votes("m1", 0.9, "a"), votes("m2", 0.8, "b")], CLASSES)
    with pytest.raises(ValueError, match="needs every member's scores"):
        combine("log_pool", [votes("m1", 0.9, "a"), votes("m2", 0.8, "b")], CLASSES)


def test_rows_below_the_threshold_are_named_and_none_without_a_threshold() -> None:
    assert unconfident_rows([0.2, 0.5, 0.49], 0.5) == [0, 2]
    assert unconfident_rows([0.0], 0.0) == []


@given(
    st.lists(
        st.tuples(st.floats(0, 1), st.lists(st.sampled_from(CLASSES), min_size=4, max_size=4)),
        min_size=1,
        max_size=7,
    )
)
def test_no_label_ever_has_more_votes_than_the_one_chosen(drawn: list[tuple[float, list[str]]]) -> None:
    members = [votes(f"m{i}", accuracy, *labels) for i, (accuracy, labels) in enumerate(drawn)]
    combined = combine("majority_vote", members, CLASSES)
    for row, label in enumerate(labels_of(combined)):
        ballot = [labels[row] for _, labels in drawn]
        most = max(ballot.count(other) for other in ballot)
        assert ballot.count(label) == most
        best = max(accuracy for accuracy, labels in drawn if ballot.count(labels[row]) == most)
        assert label in {labels[row] for accuracy, labels in drawn if accuracy == best}


@pytest.mark.parametrize(
    ("ballot", "label", "share"),
    [
        (("", "", "a"), "a", 1 / 3),
        (("a", "", ""), "a", 1 / 3),
        (("", "a", "b"), "a", 1 / 3),
        (("", "", "", "", "a", "b", "b"), "b", 2 / 7),
        (("", "", ""), "", 0.0),
    ],
)
def test_an_empty_label_has_no_vote_wherever_it_stands(
    ballot: tuple[str, ...], label: str, share: float
) -> None:
    members = [votes(f"m{i}", 0.9 - i / 100, each) for i, each in enumerate(ballot)]
    for order in (members, members[::-1]):
        combined = combine("majority_vote", order, CLASSES)
        assert labels_of(combined) == [label]
        assert confidences_of(combined) == pytest.approx([share])


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_by_the_mean_too_a_row_is_at_fault_only_if_it_is_for_every_member(order: tuple[int, int]) -> None:
    pair = [votes("m1", 0.9, "", scores=[[0.0] * 3]), votes("m2", 0.8, "b", scores=[[0.1, 0.8, 0.1]])]
    combined = combine("mean", [pair[i] for i in order], CLASSES)
    assert labels_of(combined) == ["b"]
    assert confidences_of(combined) == pytest.approx([0.4])


# ── by what was fitted ──────────────────────────────────────────────────────────────────────────────

SURE = [0.8, 0.15, 0.05]
UNSURE = [0.2, 0.45, 0.35]
FIT = Fit(
    ("m1", "m2", "m3"),
    (2.0, 0.5, 1.0),
    (SubsetFit((0, 1), (0.1, 1.5), 0.9, 0.2), SubsetFit((0, 1, 2), (0.2, 0.3, 0.4), 0.9, 0.2)),
    100,
    3,
)


def scored(member: str, scores: list[float], label: str = "a") -> Vote:
    return votes(member, 0.5, label, scores=[scores])


def answered(combined: Mapping[str, Column]) -> NDArray[np.float32]:
    return np.frombuffer(scores_of(combined), "<f4")


def test_members_answer_by_the_weights_of_exactly_those_that_answered() -> None:
    for subset in ((0, 1), (0, 1, 2)):
        said = [SURE, UNSURE, [0.3, 0.3, 0.4]][: len(subset)]
        told = combine("log_pool", [scored(f"m{n + 1}", said[n]) for n in subset], CLASSES, FIT)
        expected = combined(FIT, subset, [[each] for each in said])[0]
        assert answered(told) == pytest.approx(expected)
        assert labels_of(told) == [CLASSES[int(expected.argmax())]]
        assert confidences_of(told) == pytest.approx([expected.max()])
    assert labels_of(combine("log_pool", [scored("m1", SURE), scored("m2", UNSURE)], CLASSES, FIT)) == ["b"]


def weighed(*weights: float) -> Fit:
    return Fit(("m1", "m2"), (1.0, 1.0), (SubsetFit((0, 1), weights, 0.9, 0.2),), 100, 3)


def test_the_pool_is_the_product_of_probabilities_each_to_its_weight() -> None:
    # √.8 · .2, √.15 · .45, √.05 · .35 = .17889, .17428, .07826, of .43143 together
    told = combine("log_pool", [scored("m1", SURE), scored("m2", UNSURE)], CLASSES, weighed(0.5, 1.0))
    assert answered(told) == pytest.approx([0.41464, 0.40397, 0.18139], abs=2e-5)


def test_what_all_learn_may_be_learned_before_or_after_pooling() -> None:
    """Genest 1984, "A characterization theorem for externally Bayesian groups": by weights of sum 1."""

    def pooled(first: list[float], second: list[float]) -> NDArray[np.float64]:
        pair = [scored("m1", first), scored("m2", second)]
        return answered(combine("log_pool", pair, CLASSES, weighed(0.3, 0.7))).astype(np.float64)

    def updated(told: Sequence[float] | NDArray[np.float64]) -> list[float]:
        posterior = np.array(told) * likelihood
        known: list[float] = (posterior / posterior.sum()).tolist()
        return known

    likelihood = np.array([0.2, 0.9, 0.4])
    before, after = updated(pooled(SURE, UNSURE)), pooled(updated(SURE), updated(UNSURE))
    assert after.tolist() == pytest.approx(before, abs=1e-6)
    assert pooled(SURE, SURE).tolist() == pytest.approx(SURE, abs=1e-6), "who agree say what each says"


def test_the_order_in_which_members_answered_changes_nothing() -> None:
    pair = [scored("m1", SURE), scored("m2", UNSURE)]
    one, other = (combine("log_pool", list(told), CLASSES, FIT) for told in (pair, pair[::-1]))
    assert (scores_of(one), labels_of(one)) == (scores_of(other), labels_of(other))


def test_a_subset_without_weights_is_pooled_with_equal_ones_and_its_temperatures() -> None:
    told = combine("log_pool", [scored("m1", SURE), scored("m3", UNSURE)], CLASSES, FIT)
    pool = 2**-0.5 * (np.log(SURE) / 2 + np.log(UNSURE))
    assert answered(told) == pytest.approx(np.exp(pool) / np.exp(pool).sum(), rel=1e-4)


def test_a_function_without_a_fit_is_pooled_with_equal_weights() -> None:
    told = combine("log_pool", [scored("m1", SURE), scored("x", UNSURE)], CLASSES)
    pool = 2**-0.5 * (np.log(SURE) + np.log(UNSURE))
    assert answered(told) == pytest.approx(np.exp(pool) / np.exp(pool).sum(), rel=1e-4)


def test_a_member_alone_is_as_sure_as_its_temperature_says() -> None:
    told = combine("log_pool", [scored("m1", SURE)], CLASSES, FIT)
    expected = np.sqrt(SURE) / np.sqrt(SURE).sum()
    assert confidences_of(told) == pytest.approx([expected[0]])
    assert labels_of(told) == ["a"]
    only = votes("m1", 0.9, "a")  # did not bring its scores
    assert combine("log_pool", [only], CLASSES, FIT) is only.columns
    assert confidences_of(combine("log_pool", [scored("m1", SURE)], CLASSES)) == [0.5]


def test_a_row_that_one_member_could_not_answer_is_answered_by_the_others() -> None:
    told = combine("log_pool", [scored("m1", SURE), scored("m2", [0.0, 0.0, 0.0], "")], CLASSES, FIT)
    assert labels_of(told) == ["a"]
    assert not np.isnan(answered(told)).any()


def test_scores_are_asked_for_where_the_rule_reads_them() -> None:
    assert needs_of("log_pool", 2) == needs_of("mean", 2) == ("scores",)
    assert needs_of("log_pool", 1, is_fitted=True) == ("scores",)
    assert (
        needs_of("log_pool", 1) == needs_of("mean", 1, is_fitted=True) == needs_of("majority_vote", 3) == ()
    )


def test_a_member_that_was_never_fitted_is_no_part_of_the_answer() -> None:
    with pytest.raises(KeyError, match="stranger"):
        combine("log_pool", [scored("m1", SURE), scored("stranger", SURE)], CLASSES, FIT)
