"""What labelled rows teach: weights that follow who is right, and stay sane whatever comes."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from server.ensemble.feedback import RECENT_ROWS, Feedback, adapted, begun, learned
from server.ensemble.fit import Fit, SubsetFit, combined, fit_combination
from server.ensemble.log_pool import at_temperatures

CLASSES = 10
Floats = NDArray[np.float64]


def member(draw: np.random.Generator, labels: NDArray[np.intp], accuracy: float) -> Floats:
    """A member's probabilities: right that often, and surer where it is."""
    rows = len(labels)
    right = draw.random(rows) < accuracy
    named = np.where(right, labels, (labels + draw.integers(1, CLASSES, rows)) % CLASSES)
    sure = np.where(right, draw.beta(8, 2, rows), draw.beta(4, 3, rows))
    return said(named, sure)


def said(named: NDArray[Any], sure: Floats) -> Floats:
    told = np.repeat(((1 - sure) / (CLASSES - 1))[:, None], CLASSES, axis=1)
    told[np.arange(len(named)), named] = sure
    return told


def fitted(draw: np.random.Generator, accuracies: list[float]) -> Fit:
    labels = draw.integers(0, CLASSES, 600)
    return fit_combination([member(draw, labels, each) for each in accuracies], labels)


def wrong_before_learning(fit: Fit, told: Floats, labels: NDArray[np.intp], every: int = 1) -> list[bool]:
    """Whether each row was answered wrongly by the weights of its time; every how many-th row is labelled."""
    feedback, wrong = begun(fit.members, fit), []
    everybody = tuple(range(len(fit.members)))
    known = at_temperatures(told, fit.temperatures)
    for row, label in enumerate(labels.tolist()):
        answer = combined(adapted(fit, feedback), everybody, told[:, row : row + 1])
        wrong.append(int(answer.argmax()) != label)
        if row % every == 0:
            feedback = learned(feedback, fit, known[:, row : row + 1], [label])
    return wrong


@pytest.mark.parametrize(("every", "share"), [(1, 0.35), (10, 0.6)])
def test_the_answers_recover_when_the_best_member_fails_and_when_it_is_back(every: int, share: float) -> None:
    """Clipper's Figure 8, small: the best member names wrong classes, and is sure, in a third of the time."""
    draw = np.random.default_rng(1)
    fit = fitted(draw, [0.95, 0.75, 0.72, 0.7])
    labels = draw.integers(0, CLASSES, 3000)
    told = np.stack([member(draw, labels, each) for each in (0.95, 0.75, 0.72, 0.7)])
    fails = slice(1000, 2000)
    told[0, fails] = said((labels[fails] + 3) % CLASSES, np.full(1000, 0.98))
    fixed = combined(fit, (0, 1, 2, 3), told).argmax(axis=1) != labels
    wrong = np.array(wrong_before_learning(fit, told, labels, every))
    assert wrong.mean() < share * fixed.mean()
    assert wrong[2500:].mean() < fixed[2500:].mean() + 0.02, "what was learned of the failure does not stay"


def test_where_nobody_changes_next_to_nothing_is_lost() -> None:
    draw = np.random.default_rng(2)
    fit = fitted(draw, [0.9, 0.85, 0.8])
    labels = draw.integers(0, CLASSES, 2000)
    told = np.stack([member(draw, labels, each) for each in (0.9, 0.85, 0.8)])
    fixed = combined(fit, (0, 1, 2), told).argmax(axis=1) != labels
    assert np.mean(wrong_before_learning(fit, told, labels)) < fixed.mean() + 0.01


@settings(max_examples=60, deadline=None)
@given(
    st.integers(2, 4).flatmap(
        lambda members: st.lists(
            st.lists(
                st.lists(st.floats(0, 1) | st.just(float("nan")), min_size=3, max_size=3),
                min_size=members,
                max_size=members,
            ),
            min_size=1,
            max_size=12,
        )
    ),
    st.lists(st.integers(0, 2), min_size=12, max_size=12),
)
def test_weights_stay_within_their_bounds_whatever_members_say(
    told: list[list[list[float]]], labels: list[int]
) -> None:
    rows = np.asarray(told).transpose(1, 0, 2)
    members = len(rows)
    subsets = (
        SubsetFit((0,), (1.0,), 0.5, 1.0),
        SubsetFit(tuple(range(members)), (2.0,) * members, 0.5, 1.0),
    )
    fit = Fit(tuple("abcd"[:members]), (1.0,) * members, subsets, 10, 3)
    feedback = begun(fit.members, fit)
    for _ in range(5):
        feedback = learned(feedback, fit, rows, labels[: rows.shape[1]])
    assert feedback.weights is not None
    assert feedback.weights[0] == (1.0,), "a member alone is not weighed"
    assert all(0.02 <= weight <= 2.0 for weight in feedback.weights[1])
    assert len(feedback.recent) <= RECENT_ROWS
    assert Feedback.from_json(json.loads(json.dumps(feedback.to_json())), fit) == feedback
    answer = combined(adapted(fit, feedback), tuple(range(members)), rows)
    assert answer.sum(axis=1) == pytest.approx(1.0)


def test_equal_members_keep_equal_weights_and_one_of_zeros_keeps_its_own() -> None:
    draw = np.random.default_rng(3)
    labels = draw.integers(0, CLASSES, 300)
    twin = member(draw, labels, 0.8)
    weights = ((0.5, 0.5), (0.7, 0.7, 0.7))
    subsets = tuple(
        SubsetFit(places, each, 0.5, 1.0) for places, each in zip(((0, 1), (0, 1, 2)), weights, strict=True)
    )
    fit = Fit(("one", "twin", "nothing"), (1.0, 1.0, 1.0), subsets, 10, CLASSES)
    feedback = learned(begun(fit.members, fit), fit, [twin, twin, np.zeros_like(twin)], labels.tolist())
    assert feedback.weights is not None
    for one, other, *_ in feedback.weights:
        assert one == other
    assert feedback.weights[1][2] == pytest.approx(0.7, rel=1e-4), "what says nothing is not blamed for it"
    assert feedback.by_member["one"] == feedback.by_member["twin"]


def test_rows_told_together_teach_what_they_teach_one_by_one() -> None:
    draw = np.random.default_rng(4)
    fit = fitted(draw, [0.9, 0.7, 0.6])
    labels = draw.integers(0, CLASSES, 50)
    told = at_temperatures([member(draw, labels, each) for each in (0.6, 0.7, 0.9)], fit.temperatures)
    together = learned(begun(fit.members, fit), fit, told, labels.tolist())
    single = begun(fit.members, fit)
    for row, label in enumerate(labels.tolist()):
        single = learned(single, fit, told[:, row : row + 1], [label])
    assert (single.rows, single.recent) == (together.rows, together.recent)
    assert single.weights is not None
    assert together.weights is not None
    for one, other in zip(single.weights, together.weights, strict=True):
        assert one == pytest.approx(other, rel=1e-3)


def test_subsets_with_a_member_that_does_not_answer_learn_nothing() -> None:
    draw = np.random.default_rng(5)
    fit = fitted(draw, [0.9, 0.8, 0.7])
    labels = draw.integers(0, CLASSES, 40)
    told = np.stack([member(draw, labels, 0.3), member(draw, labels, 0.9)])
    start = begun(("0", "2"), fit)
    feedback = learned(start, fit, told, labels.tolist())
    assert start.weights is not None
    assert feedback.weights is not None
    changed = {
        fit.subsets[place].members
        for place, (before, after) in enumerate(zip(start.weights, feedback.weights, strict=True))
        if before != after
    }
    assert changed == {(0, 2)}


def test_rows_of_some_members_teach_the_subsets_of_these_alone() -> None:
    draw = np.random.default_rng(8)
    fit = fitted(draw, [0.9, 0.8, 0.7])
    labels = draw.integers(0, CLASSES, 50)
    told = np.stack([member(draw, labels, 0.2), member(draw, labels, 0.9), np.zeros((50, CLASSES))])
    before = begun(fit.members, fit)
    after = learned(before, fit, told, labels.tolist(), [True] * 50, by=(0, 1))
    assert before.weights is not None
    assert after.weights is not None
    moved = {
        each.members
        for each, old, new in zip(fit.subsets, before.weights, after.weights, strict=True)
        if old != new
    }
    assert moved == {(0, 1)}
    first, second = adapted(fit, after).weights((0, 1))
    assert second > first
    assert (after.slow, after.taught, after.whole, after.fresh) == (before.slow, 50, 0, 0)
    assert list(after.by_member.values())[2] is None, "it was not asked"
    with pytest.raises(ValueError, match="whether the function's answers were right"):
        learned(before, fit, told, labels.tolist(), by=(0, 1))


def test_without_a_fit_it_is_counted_who_was_right_and_nothing_is_learned() -> None:
    told = np.array([[[0.9, 0.1], [0.8, 0.2]], [[0.1, 0.9], [0.6, 0.4]]])
    feedback = learned(begun(("a", "b"), None), None, told, [0, 0], [True, False], new=1)
    assert feedback == Feedback(("a", "b"), 1, (0b011, 0b110), None, taught=2, fresh=2)
    assert (feedback.accuracy, feedback.by_member) == (0.5, {"a": 1.0, "b": 0.5})
    assert Feedback.from_json(feedback.to_json(), None) == feedback
    assert begun(("a",), None).accuracy is None


def test_what_is_no_feedback_is_not_read() -> None:
    fit = Fit(("a", "b"), (1.0, 1.0), (SubsetFit((0, 1), (1.0, 1.0), 0.5, 1.0),), 10, 3)
    good = begun(fit.members, fit).to_json()
    assert Feedback.from_json(good, fit).weights == ((1.0, 1.0),)
    for wrong in (
        {**good, "format": 2},
        {**good, "weights": [[1.0]]},
        {**good, "weights": [[1.0, 0.0]]},
        {**good, "weights": [[1.0, float("nan")]]},
        {**good, "recent": 3},
        {},
    ):
        with pytest.raises(ValueError, match=r".+"):
            Feedback.from_json(wrong, fit)
    with pytest.raises(ValueError, match="other subsets"):
        Feedback.from_json(good, None)
    with pytest.raises(ValueError, match="no place among"):
        learned(begun(fit.members, fit), fit, np.ones((2, 1, 3)) / 3, [3])
    with pytest.raises(ValueError, match="no feedback"):
        learned(begun(fit.members, fit), fit, np.ones((3, 1, 3)) / 3, [0])
    with pytest.raises(ValueError, match="not given for each row"):
        learned(begun(("a",), None), None, np.ones((1, 1, 3)) / 3, [0])
