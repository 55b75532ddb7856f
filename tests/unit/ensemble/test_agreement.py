"""Without labels: who agrees with the others no more is found, and what answers without it is sane."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from server.ensemble.agreement import Fall, agreed, broken, is_back
from server.ensemble.evidence import EvidenceStates
from server.ensemble.feedback import begun, begun_anew
from server.ensemble.fit import Fit, combined, fit_combination
from server.ensemble.guard import back, guarded, left_out
from server.ensemble.plan import fit_plans
from server.ensemble.refit import refit_due
from server.ensemble.selection import Ensemble, EnsembleMember
from tests.unit.ensemble.test_refit import CLASSES, answered, by_plan

NAMES = ("a", "b", "c", "d")


def deployed(draw: np.random.Generator, members: int = 4, rows: int = 600) -> Fit:
    labels = draw.integers(0, CLASSES, rows)
    return fit_combination(answered(draw, labels)[:members], labels, members=NAMES[:members], evidence=True)


def named(draw: np.random.Generator, rows: int, members: int = 4, *, is_broken: bool) -> NDArray[np.intp]:
    labels = draw.integers(0, CLASSES, rows)
    told: NDArray[np.intp] = answered(draw, labels, first_is_broken=is_broken)[:members].argmax(axis=2)
    return told


def test_a_member_that_breaks_is_found_within_forty_rows_and_nobody_while_none_does() -> None:
    draw = np.random.default_rng(1)
    fit = deployed(draw)
    rows: list[tuple[bool, ...]] = []
    for _ in range(60):
        rows = [*rows, *agreed(named(draw, 10, is_broken=False))][-100:]
        assert broken(4, rows, fit.agreement, fit.rows) is None
    for _ in range(4):
        rows = [*rows, *agreed(named(draw, 10, is_broken=True))][-100:]
        if (fall := broken(4, rows, fit.agreement, fit.rows)) is not None:
            break
    assert fall is not None
    assert fall.members == (0,)
    assert fall.agrees < fall.expected


def test_where_rows_are_harder_or_there_are_but_two_members_nobody_is_blamed() -> None:
    draw = np.random.default_rng(2)
    fit = deployed(draw)
    lots = draw.integers(0, CLASSES, (4, 100))
    assert broken(4, agreed(lots), fit.agreement, fit.rows) is None
    two = deployed(draw, members=2)
    assert broken(2, agreed(named(draw, 100, 2, is_broken=True)), two.agreement, two.rows) is None
    three = deployed(draw, members=3)
    found = broken(3, agreed(named(draw, 100, 3, is_broken=True)), three.agreement, three.rows)
    assert found is not None
    assert found.members == (0,)


def test_a_member_is_back_once_it_has_agreed_on_a_hundred_rows() -> None:
    draw = np.random.default_rng(3)
    fit = deployed(draw)
    sound = agreed(named(draw, 100, is_broken=False))
    spoilt = agreed(named(draw, 100, is_broken=True))
    assert is_back(0, [0], 4, sound, fit.agreement, fit.rows)
    assert not is_back(0, [0], 4, sound[:99], fit.agreement, fit.rows)
    assert not is_back(0, [0], 4, spoilt, fit.agreement, fit.rows)


@pytest.mark.parametrize("off", [(0,), (0, 3)])
def test_without_a_broken_member_the_others_answer_and_plans_ask_it_nothing(off: tuple[int, ...]) -> None:
    draw = np.random.default_rng(4)
    fit = deployed(draw)
    fall = Fall(off, 40, 0.05, 0.85)
    note, made = guarded(begun(NAMES, fit), fit, fall, "now")
    assert note.off == tuple(NAMES[member] for member in off)
    assert str(note).endswith("expected 85%: left out until it agrees again, or labels tell more")
    feedback = begun_anew(begun(NAMES, fit), made, note)
    assert left_out(feedback, made) == note.off
    assert refit_due(feedback, fit) is None, "there are no labels to be refitted on"
    again = Fit.from_json(json.loads(json.dumps(made.to_json())))
    assert again == made
    assert again.evidence is not None
    EvidenceStates.from_json(again.evidence.to_json())
    labels = draw.integers(0, CLASSES, 1000)
    told = answered(draw, labels, first_is_broken=True)
    rest = tuple(member for member in range(4) if member not in off)
    of_rest = (combined(fit, rest, told[list(rest)]).argmax(axis=1) == labels).mean()
    of_all = (combined(made, (0, 1, 2, 3), told).argmax(axis=1) == labels).mean()
    assert of_all == pytest.approx(of_rest, abs=0.01)
    assert by_plan(made, told, labels) > of_rest - 0.03
    members = tuple(
        EnsembleMember(name, 0.5, 0.0, 0.001, is_broken=number in off) for number, name in enumerate(NAMES)
    )
    for plan in fit_plans(Ensemble(members, again.evidence)):
        assert not any(member in off for choice in plan.choices for member in choice.ask)


def test_all_is_as_deployed_once_it_agrees_again() -> None:
    fit = deployed(np.random.default_rng(5))
    note, made = guarded(begun(NAMES, fit), fit, Fall((0,), 40, 0.05, 0.85), "now")
    feedback = begun_anew(begun(NAMES, fit), made, note)
    again = back(feedback, fit, "later")
    feedback = begun_anew(feedback, fit, again)
    assert (again.number, again.off) == (2, ())
    assert str(again) == "a agrees with the others again: answers as deployed again"
    assert left_out(feedback, fit) == ()
    assert left_out(replace(feedback, refit=None), fit) == ()
