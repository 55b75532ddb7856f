"""A fit made anew when a member breaks: the others' part stays, its own follows the labels."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from server.ensemble.evidence import NOTHING, carried_over, fit_evidence
from server.ensemble.feedback import Feedback, begun, begun_anew, learned
from server.ensemble.fit import Fit, combined, fit_combination
from server.ensemble.guard import left_out
from server.ensemble.plan import fit_plans
from server.ensemble.refit import refit, refit_due, refitted
from server.ensemble.selection import Ensemble, EnsembleMember
from server.ensemble.subset_answers import answers_of

CLASSES = 10
ACCURACIES = (0.95, 0.85, 0.82, 0.78)
Floats = NDArray[np.float64]
Labels = NDArray[np.intp]


def answered(draw: np.random.Generator, labels: Labels, *, first_is_broken: bool = False) -> Floats:
    """What four members say, [members, rows, classes]; a broken one names others, and is sure."""
    told = []
    for place, accuracy in enumerate(ACCURACIES):
        rows = len(labels)
        right = draw.random(rows) < accuracy
        named = np.where(right, labels, (labels + draw.integers(1, CLASSES, rows)) % CLASSES)
        sure = np.where(right, draw.beta(8, 2, rows), draw.beta(4, 3, rows))
        if first_is_broken and place == 0:
            named, sure = (named + 3) % CLASSES, np.full(rows, 0.98)
        each = np.repeat(((1 - sure) / (CLASSES - 1))[:, None], CLASSES, axis=1)
        each[np.arange(rows), named] = sure
        told.append(each)
    return np.stack(told)


def deployed(draw: np.random.Generator, rows: int = 1000) -> Fit:
    labels = draw.integers(0, CLASSES, rows)
    told = answered(draw, labels)
    fit = fit_combination(told, labels, members=("a", "b", "c", "d"))
    known = answers_of(fit, told, labels)
    return replace(fit, evidence=fit_evidence(4, known.confidence, known.correct))


def by_plan(fit: Fit, told: Floats, labels: Labels) -> float:
    """The accuracy of the richest plan, row by row: asked of one member after the other."""
    assert fit.evidence is not None
    members = tuple(EnsembleMember(name, 0.5, 0.0, 0.001) for name in fit.members)
    plan = fit_plans(Ensemble(members, fit.evidence))[0]
    known = {
        sum(1 << member for member in each.members): combined(fit, each.members, told[list(each.members)])
        for each in fit.subsets
    }
    right = 0
    for row, label in enumerate(labels.tolist()):
        subset, state = 0, NOTHING
        while (choice := plan.choices[state]).ask:
            subset |= 1 << choice.ask[0]
            state = fit.evidence.state_of(subset, float(known[subset][row].max()))
        right += int(known[subset][row].argmax()) == label
    return right / len(labels)


def given(fit: Fit, feedback: Feedback, told: Floats, labels: Labels) -> Feedback:
    return learned(feedback, fit, told, labels.tolist())


@pytest.mark.parametrize("rows", [30, 100])
def test_a_refit_on_few_rows_gives_nine_tenths_of_the_accuracy_back(rows: int) -> None:
    draw = np.random.default_rng(rows)
    fit = deployed(draw)
    labels = draw.integers(0, CLASSES, 2000)
    whole = by_plan(fit, answered(draw, labels), labels)
    broken = answered(draw, labels, first_is_broken=True)
    assert by_plan(fit, broken, labels) < 0.8 * whole
    for _ in range(5):
        few = draw.integers(0, CLASSES, rows)
        anew = refitted(fit, answered(draw, few, first_is_broken=True), few, [0])
        assert by_plan(anew, broken, labels) >= 0.9 * whole
        together = combined(anew, (0, 1, 2, 3), broken).argmax(axis=1) == labels
        assert together.mean() >= 0.9 * whole


def test_what_concerns_no_broken_member_stays_as_it_was_fitted() -> None:
    draw = np.random.default_rng(3)
    fit = deployed(draw)
    labels = draw.integers(0, CLASSES, 60)
    anew = refitted(fit, answered(draw, labels, first_is_broken=True), labels, [0])
    assert anew.temperatures[1:] == fit.temperatures[1:]
    assert anew.evidence is not None
    assert fit.evidence is not None
    for before, after in zip(fit.subsets, anew.subsets, strict=True):
        assert before.members == after.members
        subset = sum(1 << member for member in before.members)
        same = anew.evidence.right[anew.evidence.states_of(subset)].tolist() == (
            fit.evidence.right[fit.evidence.states_of(subset)].tolist()
        )
        assert (before == after) == (0 not in before.members) == same
    assert Fit.from_json(json.loads(json.dumps(anew.to_json()))) == anew


def test_a_member_breaks_is_refitted_on_more_rows_as_they_come_and_comes_back() -> None:
    draw = np.random.default_rng(4)
    fit = deployed(draw)
    feedback, basis = begun(fit.members, fit), fit
    kept_told: list[Floats] = []
    kept_labels: list[Labels] = []
    notes: list[Any] = []
    for turn in range(120):
        labels = draw.integers(0, CLASSES, 10)
        told = answered(draw, labels, first_is_broken=20 <= turn < 70)
        kept_told.append(told)
        kept_labels.append(labels)
        feedback = given(basis, feedback, told, labels)
        due = refit_due(feedback, fit)
        if due is None:
            continue
        every, truth = np.concatenate(kept_told, axis=1), np.concatenate(kept_labels)
        note, made = refit(
            feedback, fit, due, every[:, len(truth) - due.rows :], truth[len(truth) - due.rows :], f"{turn}"
        )
        basis = made or fit
        feedback = begun_anew(feedback, basis, note)
        notes.append((turn, note))
        again = Feedback.from_json(json.loads(json.dumps(feedback.to_json())), fit)
        assert again == feedback
    assert notes
    broke = [turn for turn, note in notes if note.off]
    assert 20 <= broke[0] <= 24, "it is noticed within fifty labels"
    assert all(note.off == ("a",) for _, note in notes if note.off)
    rows = [note.rows for turn, note in notes if note.off and turn < 70]
    assert rows == sorted(rows)
    assert rows[-1] >= 90
    (back,) = [turn for turn, note in notes if not note.off]
    assert 70 <= back <= 76
    assert basis is fit


def test_where_nobody_breaks_nothing_is_refitted() -> None:
    draw = np.random.default_rng(5)
    fit = deployed(draw)
    feedback = begun(fit.members, fit)
    for _ in range(100):
        labels = draw.integers(0, CLASSES, 20)
        feedback = given(fit, feedback, answered(draw, labels), labels)
        assert refit_due(feedback, fit) is None


def test_a_function_of_other_members_than_were_fitted_is_left_alone() -> None:
    draw = np.random.default_rng(6)
    fit = deployed(draw)
    labels = draw.integers(0, CLASSES, 100)
    told = answered(draw, labels, first_is_broken=True)
    feedback = learned(begun(("a", "b"), fit), fit, told[:2], labels.tolist())
    assert refit_due(feedback, fit) is None
    assert refit_due(begun(("a", "b"), None), fit) is None


def test_rows_that_wait_are_carried_over_to_as_sure_a_state_of_the_same_members() -> None:
    draw = np.random.default_rng(7)
    fit = deployed(draw)
    labels = draw.integers(0, CLASSES, 50)
    anew = refitted(fit, answered(draw, labels, first_is_broken=True), labels, [0])
    assert fit.evidence is not None
    assert anew.evidence is not None
    states = carried_over(fit.evidence, anew.evidence)
    assert states[NOTHING] == NOTHING
    for subset in fit.evidence.subsets:
        before, after = fit.evidence.states_of(subset), anew.evidence.states_of(subset)
        found = states[before]
        assert found == sorted(found)
        assert set(found) <= set(range(after.start, after.stop))
        if not subset & 1:
            assert found == list(range(after.start, after.stop))
    assert carried_over(fit.evidence, fit.evidence) == list(range(fit.evidence.states))


def test_one_class_alone_and_members_of_zeros_are_refitted_too() -> None:
    draw = np.random.default_rng(8)
    fit = deployed(draw)
    for told in (
        np.zeros((4, 40, CLASSES)),
        np.full((4, 40, CLASSES), np.nan),
        np.eye(CLASSES)[np.zeros((4, 40), int)],
    ):
        anew = refitted(fit, told, np.zeros(40, np.intp), [0, 1, 2, 3])
        assert anew.evidence is not None
        assert np.isfinite(anew.evidence.right).all()
        assert all(np.isfinite(table).all() for table in anew.evidence.following.values())
        assert all(0 < weight <= 2 for each in anew.subsets for weight in each.weights)
    with pytest.raises(ValueError, match="the fit is of 4"):
        refitted(fit, np.zeros((3, 40, CLASSES)), np.zeros(40, np.intp), [0])


def test_a_member_that_a_refit_finds_of_no_use_is_left_out_and_one_that_still_helps_is_not() -> None:
    draw = np.random.default_rng(9)
    fit = deployed(draw)
    labels = draw.integers(0, CLASSES, 100)
    told = answered(draw, labels, first_is_broken=True)
    feedback = given(fit, begun(fit.members, fit), told, labels)
    due = refit_due(feedback, fit)
    assert due is not None
    note, made = refit(feedback, fit, due, told, labels, "now")
    assert made is not None
    feedback = begun_anew(feedback, made, note)
    assert left_out(feedback, made) == ("a",)
    assert left_out(replace(feedback, refit=replace(note, off=("b",))), made) == ()
    assert left_out(replace(feedback, refit=None), made) == ()
    members = tuple(EnsembleMember(name, 0.5, 0.0, 0.001, is_broken=name == "a") for name in made.members)
    assert made.evidence is not None
    for plan in fit_plans(Ensemble(members, made.evidence)):
        assert not any(0 in choice.ask for choice in plan.choices)
