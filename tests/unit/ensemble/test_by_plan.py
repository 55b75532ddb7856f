"""Rows answered by a plan where nobody waits: as accurate as all members, of fewer of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from gpu_worker.tasks import task_named
from gpu_worker.wire.protocol import Answer, RowError
from server.ensemble.answer import AnswerRule
from server.ensemble.by_plan import (
    answer_by_plan,
    answered_rows,
    expected_accuracies,
    members_asked,
    richest_plan,
)
from server.ensemble.fit import Fit
from server.training.promotion.combination import choose_combination
from tests.answers import classified
from tests.unit.ensemble.ensembles import Floats, drawn

CLASSES = ("laksa", "pizza", "satay", "sushi")
NAMES = ("a", "b", "c")
HELD_OUT = slice(800, None)  # rows that neither the fit nor the plan has seen


@functools.cache
def fitted(accuracies: tuple[float, ...], seed: int) -> tuple[Floats, NDArray[np.intp], Fit]:
    told, labels = drawn(accuracies, rows=2400, seed=seed)
    truth = np.asarray(labels)
    seen = {name: each[:800].astype(np.float32) for name, each in zip(NAMES, told, strict=True)}
    return told, truth, choose_combination(seen, truth[:800]).fit


class Members:
    """Three members, what they say of rows, and how often each was asked."""

    def __init__(self, accuracies: Sequence[float] = (0.6, 0.75, 0.9), seed: int = 0) -> None:
        self.told, self.labels, self.fit = fitted(tuple(accuracies), seed)
        self.asked: list[tuple[str, int]] = []

    def rule(self, **fields: object) -> AnswerRule:
        members = {f"{name}/1": (name, 0.5) for name in NAMES}
        rule = AnswerRule("f", task_named("text-classification"), "log_pool", CLASSES, members, fit=self.fit)
        return replace(rule, **fields)  # type: ignore[arg-type]  # of the rule

    def ask(self, rows: Floats) -> Callable[[str, Sequence[int]], Answer]:
        """rows: [members, rows, classes]."""

        def ask(key: str, numbers: Sequence[int]) -> Answer:
            self.asked.append((key, len(numbers)))
            scores = rows[NAMES.index(key[0])][list(numbers)].astype("<f4")
            labels = [CLASSES[each] for each in scores.argmax(axis=1)]
            return Answer(0, [classified(key, labels, scores.max(axis=1).tolist(), scores.tobytes())], [])

        return ask


def right(labels: Sequence[str], truth: Sequence[int]) -> float:
    return float(np.mean([label == CLASSES[each] for label, each in zip(labels, truth, strict=True)]))


@pytest.mark.parametrize("seed", range(6))
def test_the_richest_plan_is_as_accurate_as_all_members_on_rows_that_it_never_saw(seed: int) -> None:
    members = Members(seed=seed)
    rows, truth = members.told[:, HELD_OUT], members.labels[HELD_OUT]
    rule = members.rule()
    assert members.fit.evidence is not None
    found = answer_by_plan(rule, richest_plan(members.fit.evidence), len(truth), members.ask(rows))
    everybody = [members.ask(rows)(f"{name}/1", range(len(truth))).members[0] for name in NAMES]
    together = answered_rows(rule.answer(Answer(0, everybody, [])))
    planned, all_of_them = (right(each.columns["label"].values, truth.tolist()) for each in (found, together))
    assert planned >= all_of_them - 0.005
    asked = sum(len(who.split(",")) for who in found.answered_by)
    assert asked < 3 * len(truth)


@pytest.mark.parametrize("seed", range(4))
def test_as_many_members_are_asked_as_the_plan_expects(seed: int) -> None:
    members = Members(seed=seed)
    evidence = members.fit.evidence
    assert evidence is not None
    plan = richest_plan(evidence)
    rows = members.told[:, HELD_OUT]
    found = answer_by_plan(members.rule(), plan, rows.shape[1], members.ask(rows))
    asked = np.mean([len(who.split(",")) for who in found.answered_by])
    assert members_asked(evidence, plan) == pytest.approx(asked, abs=0.15)


def test_few_rows_make_no_plan_that_stops() -> None:
    told, labels = drawn((0.6, 0.75, 0.9), rows=60)
    seen = {name: each.astype(np.float32) for name, each in zip(NAMES, told, strict=True)}
    evidence = choose_combination(seen, np.asarray(labels)).fit.evidence
    assert evidence is not None
    assert members_asked(evidence, richest_plan(evidence)) > 2.5


def test_every_row_is_answered_by_whom_it_was_asked_of_and_stands_in_its_place() -> None:
    members = Members()
    rows = members.told[:, HELD_OUT]
    rule = members.rule()
    assert members.fit.evidence is not None
    found = answer_by_plan(rule, richest_plan(members.fit.evidence), rows.shape[1], members.ask(rows))
    assert sum(count for _, count in members.asked) == sum(len(who.split(",")) for who in found.answered_by)
    for row in range(0, rows.shape[1], 97):
        who = found.answered_by[row].split(",")
        told = [members.ask(rows)(f"{name}/1", [row]).members[0] for name in who]
        alone = rule.answer(Answer(0, told, []))
        assert found.columns["label"].values[row] == alone.columns["label"].values[0]
        assert found.columns["confidence"].values[row] == pytest.approx(
            alone.columns["confidence"].values[0], abs=1e-6
        )


def test_what_is_expected_of_answers_is_what_held_out_rows_of_the_kind_were() -> None:
    members = Members()
    rows, truth = members.told[:, HELD_OUT], members.labels[HELD_OUT]
    assert members.fit.evidence is not None
    found = answer_by_plan(members.rule(), richest_plan(members.fit.evidence), len(truth), members.ask(rows))
    expected = np.array(expected_accuracies(members.rule(), found))
    was_right = np.array([CLASSES[each] for each in truth]) == np.array(found.columns["label"].values)
    assert expected.mean() == pytest.approx(was_right.mean(), abs=0.03)
    sure = expected > np.median(expected)
    assert was_right[sure].mean() > was_right[~sure].mean() + 0.03


def test_a_row_at_fault_is_asked_of_no_other_member_and_keeps_its_error() -> None:
    members = Members()
    ask = members.ask(members.told)

    def with_faults(key: str, numbers: Sequence[int]) -> Answer:
        answer = ask(key, numbers)
        at = [place for place, row in enumerate(numbers) if row == 7]
        return replace(answer, errors=[RowError(place, "input_not_found", "gone") for place in at])

    assert members.fit.evidence is not None
    found = answer_by_plan(members.rule(), richest_plan(members.fit.evidence), 20, with_faults)
    assert found.errors.keys() == {7}
    assert found.errors[7].code == "input_not_found"
    assert len(found.answered_by[7].split(",")) == 1


def test_below_the_threshold_the_default_answer_is_given_after_all_that_could_help() -> None:
    members = Members()
    rule = members.rule(min_confidence=0.8, default="none")
    assert members.fit.evidence is not None
    found = answer_by_plan(rule, richest_plan(members.fit.evidence), 300, members.ask(members.told))
    confidences = found.columns["confidence"].values
    assert found.defaulted == {row for row in range(300) if confidences[row] < np.float32(0.8)}
    assert 0 < len(found.defaulted) < 300
    assert all(
        (found.columns["label"].values[row] == "none") == (row in found.defaulted) for row in range(300)
    )


def test_a_plan_of_other_evidence_is_refused() -> None:
    members = Members()
    with pytest.raises(ValueError, match="its plan is of 2 states"):
        answer_by_plan(members.rule(), [0, -1], 1, members.ask(members.told))
