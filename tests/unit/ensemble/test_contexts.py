"""Weights of a context: taught there, near everybody's where little was taught, and sane whatever comes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from server.ensemble.breakage import RefitNote
from server.ensemble.contexts import Context
from server.ensemble.feedback import Feedback, adapted, begun, begun_anew, learned, learned_in
from server.ensemble.fit import Fit, SubsetFit, combined, fit_combination
from server.ensemble.log_pool import WEIGHTS, at_temperatures
from tests.unit.ensemble.test_feedback import CLASSES, Floats, fitted, member, said

ALL = (0, 1, 2)


def of_domains(
    draw: np.random.Generator, rows: int, accuracies: Floats
) -> tuple[NDArray[np.intp], NDArray[np.intp], Floats]:
    """Labels, the domain of each row, and what members say, right as often as [member, domain] says."""
    labels = draw.integers(0, CLASSES, rows)
    domains = draw.integers(0, accuracies.shape[1], rows)
    told = np.zeros((len(accuracies), rows, CLASSES))
    for domain in range(accuracies.shape[1]):
        here = domains == domain
        for place, accuracy in enumerate(accuracies[:, domain]):
            told[place, here] = member(draw, labels[here], accuracy)
    return labels, domains, told


def wrong_in_contexts(
    fit: Fit,
    told: Floats,
    labels: NDArray[np.intp],
    domains: NDArray[np.intp],
    *,
    apart: bool,
) -> NDArray[np.bool_]:
    """Whether each row was answered wrongly by what was known before it; apart: each domain is a context."""
    feedback, contexts = begun(fit.members, fit), dict[int, Context]()
    everybody, known, wrong = tuple(range(len(fit.members))), at_temperatures(told, fit.temperatures), []
    for row, (label, domain) in enumerate(zip(labels.tolist(), domains.tolist(), strict=True)):
        own = adapted(fit, feedback, contexts.get(domain))
        answer = combined(own, everybody, told[:, row : row + 1])
        wrong.append(int(answer.argmax()) != label)
        if apart:
            feedback, contexts[domain] = learned_in(
                contexts.get(domain), feedback, fit, known[:, row : row + 1], [label]
            )
        else:
            feedback = learned(feedback, fit, known[:, row : row + 1], [label])
    return np.array(wrong)


def test_each_domain_is_answered_by_the_members_that_are_good_there() -> None:
    """Clipper's Figure 10, small: members made for a domain each, which err alike elsewhere; one for all."""
    draw = np.random.default_rng(1)
    rows = 1600
    labels, domains = draw.integers(0, CLASSES, rows), draw.integers(0, 4, rows)
    named = []
    for place in range(5):
        right = draw.random(rows) < (0.7 if place == 4 else np.where(domains == place, 0.85, 0.3))
        named.append(np.where(right, labels, (labels + 1 + domains) % CLASSES))
    told = np.stack([said(each, draw.beta(6, 2, rows)) for each in named])
    fit = fit_combination(told[:, :400], labels[:400])
    apart = wrong_in_contexts(fit, told, labels, domains, apart=True)[400:]
    together = wrong_in_contexts(fit, told, labels, domains, apart=False)[400:]
    best_alone = (named[4] != labels)[400:]
    specialist = (np.array(named)[domains, range(rows)] != labels)[400:]
    assert apart.mean() < 0.7 * together.mean()
    assert apart.mean() < 0.8 * best_alone.mean()
    assert apart.mean() < specialist.mean() + 0.08, "nobody says which member a domain has: that is learned"


def test_where_contexts_do_not_differ_next_to_nothing_is_lost() -> None:
    draw = np.random.default_rng(2)
    accuracies = np.repeat([[0.9], [0.85], [0.8]], 100, axis=1)
    labels, domains, told = of_domains(draw, 2000, accuracies)
    fit = fitted(draw, [0.9, 0.85, 0.8])
    apart = wrong_in_contexts(fit, told, labels, domains, apart=True)
    together = wrong_in_contexts(fit, told, labels, domains, apart=False)
    assert apart.mean() < together.mean() + 0.01


def test_a_context_that_tells_much_at_once_leaves_the_others_alone() -> None:
    draw = np.random.default_rng(7)
    fit = fitted(draw, [0.8, 0.8])
    labels = draw.integers(0, CLASSES, 200)
    first, second = (at_temperatures(pair, fit.temperatures) for pair in told_by_turns(draw, labels))
    feedback, ours = learned_in(None, begun(fit.members, fit), fit, first, labels.tolist())
    feedback, theirs = learned_in(None, feedback, fit, second, labels.tolist())
    for context, believed in ((ours, 0), (theirs, 1)):
        weights = adapted(fit, feedback, context).weights((0, 1))
        assert weights[believed] > 2 * weights[1 - believed]


def told_by_turns(draw: np.random.Generator, labels: NDArray[np.intp]) -> list[tuple[Floats, Floats]]:
    """What two members say of rows for which the first is right, and of rows for which the second is."""
    good, bad = (
        said(labels, draw.beta(8, 2, len(labels))),
        said((labels + 1) % CLASSES, draw.beta(8, 2, len(labels))),
    )
    return [(good, bad), (bad, good)]


def test_contexts_stay_where_they_are_when_the_fit_is_made_anew_and_follow_it_slowly() -> None:
    draw = np.random.default_rng(8)
    fit = fitted(draw, [0.8, 0.8])
    labels = draw.integers(0, CLASSES, 100)
    first, second = (at_temperatures(pair, fit.temperatures) for pair in told_by_turns(draw, labels))
    feedback, context = learned_in(None, begun(fit.members, fit), fit, first, labels.tolist())
    before = adapted(fit, feedback, context).weights((0, 1))
    anew = replace(fit, subsets=(*fit.subsets[:2], SubsetFit((0, 1), (0.02, 2.0), 0.5, 1.0)))
    feedback = begun_anew(feedback, anew, RefitNote(1, "", (), 0, 100, 100, (None, None)))
    assert adapted(anew, feedback, context).weights((0, 1)) == pytest.approx(before, rel=1e-3)
    after = adapted(anew, learned(feedback, anew, second, labels.tolist()), context).weights((0, 1))
    assert after[0] / after[1] < 0.3 * before[0] / before[1]


def test_a_member_that_breaks_is_left_by_contexts_that_say_little_of_it() -> None:
    draw = np.random.default_rng(3)
    accuracies = np.repeat([[0.95], [0.8], [0.75]], 300, axis=1)
    labels, domains, told = of_domains(draw, 3000, accuracies)
    told[0, 1000:] = said((labels[1000:] + 3) % CLASSES, np.full(2000, 0.98))
    fit = fitted(draw, [0.95, 0.8, 0.75])
    apart = wrong_in_contexts(fit, told, labels, domains, apart=True)
    together = wrong_in_contexts(fit, told, labels, domains, apart=False)
    assert apart[1100:].mean() < together[1100:].mean() + 0.03


def test_a_context_begins_near_everybody_and_one_label_moves_it_one_step() -> None:
    draw = np.random.default_rng(4)
    fit = fitted(draw, [0.9, 0.8, 0.7])
    labels = draw.integers(0, CLASSES, 300)
    told = at_temperatures([member(draw, labels, each) for each in (0.9, 0.8, 0.7)], fit.temperatures)
    feedback = learned(begun(fit.members, fit), fit, told, labels.tolist())
    everybody = adapted(fit, feedback)
    assert adapted(fit, feedback, None) == everybody
    untaught = Context((0.0, 0.0, 0.0))
    for subset in ((0, 2), ALL):
        assert near(adapted(fit, feedback, untaught).weights(subset), everybody.weights(subset)) < 1.0
    after, context = learned_in(None, feedback, fit, told[:, :1], labels[:1].tolist())
    moved = adapted(fit, after, context).weights(ALL)
    assert near(moved, adapted(fit, feedback, untaught).weights(ALL)) < 0.41
    assert context.rows == 1


def near(weights: Sequence[float], others: Sequence[float]) -> float:
    """How far they lie apart, in the log, where they do most."""
    return float(np.abs(np.log(weights) - np.log(others)).max())


def test_everybody_learns_of_a_context_as_of_anybody() -> None:
    draw = np.random.default_rng(5)
    fit = fitted(draw, [0.9, 0.8, 0.7])
    labels = draw.integers(0, CLASSES, 60).tolist()
    each = [member(draw, np.array(labels), accuracy) for accuracy in (0.5, 0.7, 0.9)]
    told = at_temperatures(each, fit.temperatures)
    plain = learned(begun(fit.members, fit), fit, told, labels, new=7)
    in_context, _ = learned_in(Context((0.5, -2.0, 4.0)), begun(fit.members, fit), fit, told, labels, new=7)
    assert plain.weights is not None
    assert in_context.weights is not None
    for weights, others in zip(in_context.weights, plain.weights, strict=True):
        assert weights == pytest.approx(others, rel=1e-5)
    assert (in_context.rows, in_context.by_member) == (plain.rows, plain.by_member)
    assert in_context.recent != plain.recent, "the function's own answer is judged by the context's weights"


def test_rows_of_a_context_together_teach_what_they_teach_one_by_one() -> None:
    draw = np.random.default_rng(6)
    fit = fitted(draw, [0.9, 0.7, 0.6])
    labels = draw.integers(0, CLASSES, 50).tolist()
    each = [member(draw, np.array(labels), accuracy) for accuracy in (0.6, 0.7, 0.9)]
    told = at_temperatures(each, fit.temperatures)
    together, at_once = learned_in(None, begun(fit.members, fit), fit, told, labels)
    feedback, context = begun(fit.members, fit), None
    for row, label in enumerate(labels):
        feedback, context = learned_in(context, feedback, fit, told[:, row : row + 1], [label])
    assert context is not None
    assert (context.rows, feedback.recent) == (at_once.rows, together.recent)
    assert context.shifts == pytest.approx(at_once.shifts, rel=1e-2, abs=1e-3)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.lists(
            st.lists(st.floats(0, 1) | st.just(float("nan")), min_size=3, max_size=3), min_size=3, max_size=3
        ),
        min_size=1,
        max_size=8,
    ),
    st.lists(st.integers(0, 2), min_size=8, max_size=8),
    st.lists(st.floats(-5, 5), min_size=3, max_size=3),
)
def test_weights_stay_within_their_bounds_whatever_members_say(
    told: list[list[list[float]]], labels: list[int], shifts: list[float]
) -> None:
    rows = np.asarray(told).transpose(1, 0, 2)
    subsets = (SubsetFit((1,), (1.0,), 0.5, 1.0), SubsetFit(ALL, (2.0, 0.02, 1.0), 0.5, 1.0))
    fit = Fit(("a", "b", "c"), (1.0,) * 3, subsets, 10, 3)
    feedback, context = begun(fit.members, fit), Context(tuple(shifts))
    for _ in range(4):
        feedback, context = learned_in(context, feedback, fit, rows, labels[: rows.shape[1]])
    own = adapted(fit, feedback, context)
    assert own.weights((1,)) == (1.0,), "a member alone is not weighed"
    for subset in (ALL, (0, 2)):
        assert all(WEIGHTS[0] <= weight <= WEIGHTS[1] for weight in own.weights(subset))
    assert combined(own, ALL, rows).sum(axis=1) == pytest.approx(1.0)
    again = Context.from_json(json.loads(json.dumps(context.to_json())), 3)
    assert again.shifts == pytest.approx(context.shifts, rel=1e-3, abs=1e-6)
    assert "shifts" not in own.to_json(), "a fit that is kept is everybody's"


def test_the_members_of_a_function_may_be_some_of_the_fits_in_another_order() -> None:
    fit = Fit(("a", "b", "c"), (1.0,) * 3, (SubsetFit((0, 2), (1.0, 1.0), 0.5, 1.0),), 10, 3)
    own = adapted(fit, begun(("c", "a"), fit), Context((0.5, -0.5)))
    assert own.weights((0, 2)) == pytest.approx((np.exp(-0.5), np.exp(0.5)))


def test_without_weights_a_context_learns_nothing() -> None:
    told = np.array([[[0.9, 0.1]], [[0.1, 0.9]]])
    feedback, context = learned_in(None, begun(("a", "b"), None), None, told, [0], [True])
    assert feedback == Feedback(("a", "b"), 1, (0b011,), taught=1, fresh=1)
    assert context == Context((0.0, 0.0), 1, 1)


def test_what_is_no_context_is_not_read() -> None:
    assert Context.from_json({"shifts": [0.5, -1], "rows": 3, "at": 9}, 2) == Context((0.5, -1.0), 3, 9)
    for wrong in (
        {},
        {"shifts": [0.5], "rows": 3},
        {"shifts": [0.5, "x"], "rows": 1},
        {"shifts": 3, "rows": 1},
    ):
        with pytest.raises(ValueError, match=r".+"):
            Context.from_json(wrong, 2)
    with pytest.raises(ValueError, match="no context"):
        Context.from_json({"shifts": [0.5, float("nan")], "rows": 3, "at": 3}, 2)
    with pytest.raises(ValueError, match="a context of 1 members"):
        learned_in(Context((0.0,)), begun(("a", "b"), None), None, np.ones((2, 1, 2)), [0], [True])
