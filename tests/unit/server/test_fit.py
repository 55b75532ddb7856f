"""The fitted combination: temperatures and weights from held-out rows, sane for whatever rows there are."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from server.ensemble.fit import Fit, combined, fit_combination, rows_to_fit, subsets_of
from server.ensemble.log_pool import fit_temperature, log_floored

Floats = NDArray[np.floating[Any]]


def members_of(
    seed: int, rows: int, classes: int, strengths: list[float], *, sureness: float = 1.0
) -> tuple[Floats, NDArray[np.intp]]:
    """Members that see the label through noise of their own; the stronger, the more often right."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, rows)
    told = []
    for strength in strengths:
        logits = rng.normal(size=(rows, classes))
        logits[np.arange(rows), labels] += strength
        p = np.exp(sureness * logits)
        told.append(p / p.sum(axis=1, keepdims=True))
    return np.array(told), labels


def nll(p: Floats, labels: NDArray[np.intp]) -> float:
    return float(-np.log(p[np.arange(len(labels)), labels]).mean())


def accuracy(p: Floats, labels: NDArray[np.intp]) -> float:
    return float((p.argmax(axis=1) == labels).mean())


def assert_sane(fit: Fit) -> None:
    assert all(0.1 <= t <= 10 for t in fit.temperatures)
    for each in fit.subsets:
        assert all(0.02 <= w <= 2 for w in each.weights)
        assert 0 <= each.accuracy <= 1
        assert 0 <= each.nll < np.inf


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1_000_000),
    rows=st.sampled_from([1, 2, 3, 10, 100]),
    classes=st.integers(1, 5),
    strengths=st.lists(st.floats(0, 6), min_size=1, max_size=4),
    sureness=st.sampled_from([0.1, 1.0, 30.0]),
)
def test_whatever_members_answer_the_fit_is_sane_and_answers_are_probabilities(
    seed: int, rows: int, classes: int, strengths: list[float], sureness: float
) -> None:
    told, labels = members_of(seed, rows, classes, strengths, sureness=sureness)
    fit = fit_combination(told, labels)
    assert_sane(fit)
    assert Fit.from_json(json.loads(json.dumps(fit.to_json()))) == fit
    assert fit == fit_combination(told, labels)
    for each in fit.subsets:
        assert len(each.members) > 1 or each.weights == (1.0,), "its temperature is fitted already"
        p = combined(fit, each.members, told[list(each.members)])
        assert p.shape == (rows, classes)
        assert np.allclose(p.sum(axis=1), 1)
        assert (p >= 0).all()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1_000_000), strengths=st.lists(st.floats(0.5, 3), min_size=2, max_size=4))
def test_on_its_own_rows_the_fit_is_never_worse_than_where_it_began(
    seed: int, strengths: list[float]
) -> None:
    told, labels = members_of(seed, 300, 4, strengths)
    fit = fit_combination(told, labels)
    unfitted = Fit(fit.members, fit.temperatures, (), fit.rows, fit.classes)
    for each in fit.subsets:
        p = told[list(each.members)]
        # A label is believed by 301 / 302, so that the least NLL is not quite what is looked for.
        assert nll(combined(fit, each.members, p), labels) <= (
            nll(combined(unfitted, each.members, p), labels) + 0.01
        )


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1_000_000), order=st.permutations([0, 1, 2, 3]))
def test_neither_the_order_of_classes_nor_that_of_members_changes_a_fit(seed: int, order: list[int]) -> None:
    told, labels = members_of(seed, 60, 4, [0.5, 1.5, 2.0])
    fit = fit_combination(told, labels)
    moved = fit_combination(told[:, :, order], np.argsort(order)[labels])
    assert np.allclose(moved.temperatures, fit.temperatures, rtol=1e-4)
    for one, other in zip(fit.subsets, moved.subsets, strict=True):
        assert np.allclose(one.weights, other.weights, rtol=0.01)
    turned = fit_combination(told[::-1], labels)
    assert np.allclose(turned.weights((0, 1, 2))[::-1], fit.weights((0, 1, 2)), rtol=0.01)


def test_a_temperature_undoes_what_made_a_member_too_sure() -> None:
    told, labels = members_of(1, 20_000, 3, [1.0])
    honest = fit_temperature(log_floored(told[0].T), labels)
    p = told[0] ** 3
    p /= p.sum(axis=1, keepdims=True)
    assert fit_temperature(log_floored(p.T), labels) == pytest.approx(3 * honest, rel=0.1)


def test_a_pair_is_better_than_its_better_member_where_both_know_something() -> None:
    told, labels = members_of(2, 1000, 5, [2.0, 1.5])
    fresh, truth = members_of(3, 5000, 5, [2.0, 1.5])
    fit = fit_combination(told, labels)
    together = accuracy(combined(fit, (0, 1), fresh), truth)
    assert together > accuracy(fresh[0], truth) + 0.03
    pair = fit.of((0, 1))
    assert pair is not None
    assert pair.accuracy == pytest.approx(together, abs=0.04)
    assert pair.weights[0] > 0.5


def test_confidence_is_how_often_the_answer_is_right() -> None:
    told, labels = members_of(4, 2000, 4, [1.5, 1.0, 0.5], sureness=4.0)
    fresh, truth = members_of(5, 5000, 4, [1.5, 1.0, 0.5], sureness=4.0)
    p = combined(fit_combination(told, labels), (0, 1, 2), fresh)
    assert p.max(axis=1).mean() == pytest.approx(accuracy(p, truth), abs=0.02)


def test_a_member_without_anything_to_say_changes_no_answer() -> None:
    told, labels = members_of(6, 200, 3, [1.5, 1.0])
    for nothing in (np.zeros((200, 3)), np.full((200, 3), np.nan), np.full((200, 3), 1 / 3)):
        fit = fit_combination(np.stack([told[0], nothing]), labels)
        assert_sane(fit)
        p = combined(fit, (0, 1), np.stack([told[0], nothing]))
        assert (p.argmax(axis=1) == told[0].argmax(axis=1)).all()


def test_a_member_that_always_says_the_same_does_not_outvote_one_that_knows() -> None:
    told, labels = members_of(7, 400, 3, [2.5])
    same = np.tile([0.98, 0.01, 0.01], (400, 1))
    fit = fit_combination(np.stack([told[0], same]), labels)
    assert_sane(fit)
    p = combined(fit, (0, 1), np.stack([told[0], same]))
    assert accuracy(p, labels) >= accuracy(told[0], labels) - 0.01


def test_two_equal_members_have_equal_weights_and_answer_as_one() -> None:
    told, labels = members_of(8, 400, 3, [1.5])
    fit = fit_combination(np.concatenate([told, told]), labels)
    first, second = fit.weights((0, 1))
    assert first == second == pytest.approx(0.5, abs=0.1)
    both = combined(fit, (0, 1), np.concatenate([told, told]))
    assert both == pytest.approx(combined(fit, (0,), told), abs=0.06)


def test_one_class_is_answered_with_certainty() -> None:
    fit = fit_combination(np.ones((2, 10, 1)), [0] * 10)
    assert fit.temperatures == (1.0, 1.0)
    assert (combined(fit, (0, 1), np.ones((2, 3, 1))) == 1).all()


@pytest.mark.parametrize("rows", [10, 100])
def test_few_rows_that_are_all_right_make_no_certainty(rows: int) -> None:
    told, labels = members_of(9, rows, 3, [20.0, 20.0])
    p = combined(fit_combination(told, labels), (0, 1), told)
    assert 1 / rows / 30 < 1 - p.max(axis=1).mean() < 3 / rows


def test_a_subset_that_was_not_fitted_is_pooled_with_equal_weights() -> None:
    told, labels = members_of(10, 100, 3, [1.0, 1.5, 2.0])
    fit = fit_combination(told, labels, [(0,), (1,), (2,), (0, 1, 2)])
    assert fit.of((0, 2)) is None
    assert fit.weights((0, 2)) == (1 / 2**0.5, 1 / 2**0.5)
    assert combined(fit, (0, 2), told[[0, 2]]).sum(axis=1) == pytest.approx(1)


def test_without_any_fit_members_are_pooled_as_they_are() -> None:
    p = np.array([[[0.8, 0.2]], [[0.6, 0.4]]])
    odds = (0.8 / 0.2 * 0.6 / 0.4) ** (2**-0.5)
    assert combined(None, (0, 1), p)[0, 0] == pytest.approx(odds / (1 + odds))


def test_as_many_members_as_the_subset_has_must_answer() -> None:
    with pytest.raises(ValueError, match="1 members answered, and a subset of 2"):
        combined(None, (0, 1), np.ones((1, 3, 2)))
    with pytest.raises(ValueError, match="a subset of 0"):
        combined(None, (), np.ones((0, 3, 2)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_answers_numbers_are_as_wide_as_the_members(dtype: type) -> None:
    told, labels = members_of(12, 100, 3, [1.0, 1.5])
    fit = fit_combination(told, labels)
    p = combined(fit, (0, 1), told.astype(dtype))
    assert p.dtype == dtype
    assert p == pytest.approx(combined(fit, (0, 1), told), abs=1e-5)


def test_rows_of_one_group_are_never_on_both_sides() -> None:
    """A member that knows rows by heart that it has seen twice must not look better for it."""
    rng = np.random.default_rng(0)
    labels = np.repeat(rng.integers(0, 2, 50), 2)
    told, _ = members_of(11, 100, 2, [0.0, 0.0])
    groups = np.repeat(np.arange(50), 2)
    fit = fit_combination(told, labels, groups=groups)
    assert fit.rows == 100
    alone = fit_combination(told[:, :2], labels[:2], groups=[0, 0])  # one group: judged without a fit
    assert_sane(alone)


def test_all_subsets_of_six_and_the_useful_ones_of_more() -> None:
    assert len(subsets_of(6)) == 63
    eight = subsets_of(8, [0.1, 0.9, 0.2, 0.8, 0.3, 0.7, 0.4, 0.6])
    assert {(0,), (1, 7), (0, 1, 2, 3, 4, 5, 6), tuple(range(8)), (1, 3, 5)} <= set(eight)
    assert len(eight) < 60


def test_rows_are_spread_over_all_there_are_and_no_more_than_help() -> None:
    assert list(rows_to_fit(3, 10)) == [0, 1, 2]
    many = rows_to_fit(100_000, 10)
    assert (len(many), many[0], many[-1]) == (2000, 0, 99_999)
    assert len(rows_to_fit(50_000, 1000)) == 400


@pytest.mark.parametrize(
    "told",
    [
        {},
        {"format": 2},
        {"members": ["a", "a"]},
        {"temperatures": [1.0]},
        {"temperatures": [1.0, 0.0]},
        {"temperatures": [1.0, "1"]},
        {"subsets": [{"members": [0, 2], "weights": [1, 1], "accuracy": 1, "nll": 0}]},
        {"subsets": [{"members": [0], "weights": [1, 1], "accuracy": 1, "nll": 0}]},
        {"subsets": [{"members": [0], "weights": [1], "accuracy": float("nan"), "nll": 0}]},
        {"subsets": [{"members": [0], "weights": [1], "accuracy": 1, "nll": float("inf")}]},
        {"subsets": None},
    ],
)
def test_what_is_no_fit_is_not_read(told: dict[str, Any]) -> None:
    good = Fit(("a", "b"), (1.0, 1.0), (), 10, 2).to_json()
    with pytest.raises(ValueError, match=r"is|twice|weights"):
        Fit.from_json(good | told if told else {})


@pytest.mark.parametrize(
    ("shape", "labels", "subsets"),
    [
        ((2, 0, 3), [], None),
        ((2, 2, 3), [0], None),
        ((2, 2, 3), [0, 3], None),
        ((2, 2, 3), [0, -1], None),
        ((2, 2), [0, 1], None),
        ((2, 2, 3), [0, 1], [()]),
        ((2, 2, 3), [0, 1], [(1, 0)]),
        ((2, 2, 3), [0, 1], [(0, 2)]),
    ],
)
def test_what_cannot_be_fitted_says_so(shape: tuple[int, ...], labels: list[int], subsets: Any) -> None:
    with pytest.raises(ValueError, match=r"no fit|no place|no subset"):
        fit_combination(np.ones(shape), labels, subsets)
