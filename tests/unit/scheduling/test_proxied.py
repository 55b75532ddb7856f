"""Rows of a function with a proxy, in the core: who is asked, what is answered early, what never is."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from server.ensemble.cascade import cascade_of
from server.ensemble.policies.proxied import Proxied, ProxyPlace, proxy_evidence
from server.ensemble.proxy import ProxyFit, ProxyLevel
from server.ensemble.selection import Ensemble
from server.scheduling.core import AnswerKnown, Idle, RefuseRows, RunBatch, Scheduler, WorkerView
from tests.unit.scheduling.test_pooled_functions import ENSEMBLE, asked, pooled

LEVELS = (ProxyLevel(0.9, 0.5, 0.8, 0.95, 0.92), ProxyLevel(0.98, 0.9, 0.4, 0.99, 0.985))
FIT = ProxyFit("m0", ("m1", "m2"), 0.9, 1.0, LEVELS, 0.7, 400, 600)
OUTSIDE = ProxyPlace(0, 0b110)  # a proxy that is no member
INSIDE = ProxyPlace(0, 0b111)
FULL = {OUTSIDE: {"m1", "m2"}, INSIDE: {"m0", "m1", "m2"}}


def ensemble(place: ProxyPlace, without: str = "") -> Ensemble:
    members = tuple(
        replace(member, is_held=str(number) not in without) for number, member in enumerate(ENSEMBLE.members)
    )
    return Ensemble(members, proxy_evidence(FIT, place, 3))


def core(place: ProxyPlace = OUTSIDE, **held: str) -> Scheduler:
    scheduler = Scheduler()
    scheduler.configure(0.0, pooled())
    held = held or {"w": "012"}
    gone = "".join(each for each in "012" if not any(each in members for members in held.values()))
    known = ensemble(place, gone)
    scheduler.follow(0.0, "e", "", known, Proxied(known, FIT, place))
    for name, members in held.items():
        scheduler.set_worker(0.0, WorkerView(name, True, frozenset(f"m{each}" for each in members)))
    return scheduler


def drained(scheduler: Scheduler, sure_of: dict[int, float], now_s: float = 0.0, every_s: float = 0.004):
    """Run until nothing is to be done: by row of request 1 who answered it, and who was asked of it."""
    answered: dict[int, set[str]] = {}
    of: dict[int, set[str]] = {row: set() for row in sure_of}
    for _ in range(10_000):
        action = scheduler.next_action(now_s)
        if isinstance(action, Idle):
            if action.until_s == float("inf"):
                return answered, of
            now_s = max(now_s, action.until_s) + 1e-6
            continue
        assert not isinstance(action, RefuseRows)
        if isinstance(action, AnswerKnown):
            for part, members in action.parts:
                for row in range(part.offset, part.offset + part.rows):
                    assert row not in answered, "no row is answered twice"
                    answered[row] = set(members)
            continue
        assert isinstance(action, RunBatch)
        now_s += every_s
        for batch in (action, *action.beside):
            rows = [row for part in batch.slices for row in range(part.offset, part.offset + part.rows)]
            for row in rows:
                assert not of[row] & set(batch.members), "nobody is asked twice"
                of[row] |= set(batch.members)
                if not batch.choices and of[row] - {"m0"} == {"m1", "m2"}:
                    answered.setdefault(row, of[row])  # the shell answers when all are there
            sure = [sure_of[row] for row in rows] if batch.choices else ()
            scheduler.finished(now_s, batch.batch_id, sure=sure)
    raise AssertionError("it never ends")


SURE = {row: [0.2, 0.6, 0.95][row % 3] for row in range(30)}


@pytest.mark.parametrize("place", [OUTSIDE, INSIDE])
@pytest.mark.parametrize("row_class", ["bulk", "interactive"])
@pytest.mark.parametrize("held", [{"w": "012"}, {"a": "0", "b": "12"}, {"a": "01", "b": "2"}])
@pytest.mark.parametrize(("least", "from_"), [(None, 0.5), (0.5, 0.5), (0.95, 0.9), (0.98, 0.9)])
def test_rows_stop_at_the_proxy_where_it_is_as_sure_as_the_agreement_needs(
    place, row_class, held, least, from_
):
    scheduler = core(place, **held)
    scheduler.submit(0.0, asked(1, 30, row_class=row_class, min_accuracy=least, slo_s=1e3))
    answered, of = drained(scheduler, SURE)
    assert sorted(of) == sorted(SURE)
    for row, sure in SURE.items():
        assert of[row] == ({"m0"} if sure >= from_ else {"m0", "m1", "m2"}), row
    assert scheduler.queue_depth() == {"e": (0, 0)}
    assert set(answered) == set(SURE)


@pytest.mark.parametrize("place", [OUTSIDE, INSIDE])
@pytest.mark.parametrize("row_class", ["bulk", "interactive"])
@pytest.mark.parametrize("least", [0.99, 1.0])
def test_what_no_threshold_shows_goes_to_the_full_function_at_once(place, row_class, least):
    scheduler = core(place)
    scheduler.submit(0.0, asked(1, 12, row_class=row_class, min_accuracy=least, slo_s=1e3))
    _, of = drained(scheduler, dict.fromkeys(range(12), 1.0))
    assert all(asked_of == FULL[place] for asked_of in of.values())


@pytest.mark.parametrize("row_class", ["bulk", "interactive"])
def test_a_proxy_that_nobody_holds_is_not_waited_for(row_class):
    scheduler = core(OUTSIDE, w="12")
    scheduler.submit(0.0, asked(1, 6, row_class=row_class, slo_s=1e3))
    _, of = drained(scheduler, dict.fromkeys(range(6), 1.0))
    assert all(asked_of == {"m1", "m2"} for asked_of in of.values())


@pytest.mark.parametrize("row_class", ["bulk", "interactive"])
def test_an_unsure_proxy_is_no_answer_while_nobody_holds_the_others(row_class):
    scheduler = core(OUTSIDE, w="0")
    scheduler.submit(0.0, asked(1, 4, row_class=row_class, slo_s=1e3))
    answered, _ = drained(scheduler, {0: 0.1, 1: 0.1, 2: 0.99, 3: 0.99})
    assert set(answered) == {2, 3}
    assert scheduler.queue_depth()["e"][0] == 2
    scheduler.set_worker(0.1, WorkerView("late", True, frozenset({"m0", "m1", "m2"})))
    _, of = drained(scheduler, {0: 0.1, 1: 0.1}, 0.1)
    assert of == {0: {"m1", "m2"}, 1: {"m1", "m2"}}


@pytest.mark.parametrize("seed", range(4))
def test_at_its_goal_no_row_is_answered_by_an_unsure_proxy(seed: int):
    random = Random(seed)
    scheduler = core(OUTSIDE)
    sure = {row: random.choice([0.2, 0.95]) for row in range(64)}
    scheduler.submit(0.0, asked(1, 64, slo_s=0.01))
    answered, of = drained(scheduler, sure, every_s=0.02)
    assert set(answered) == set(sure), "late, but answered"
    for row, asked_of in of.items():
        if sure[row] < 0.5:
            assert {"m1", "m2"} <= asked_of


@pytest.mark.parametrize("row_class", ["bulk", "interactive"])
@pytest.mark.parametrize(("times", "first"), [(0.9, {"m0"}), (1.1, {"m1", "m2"})])
def test_a_proxy_is_asked_while_it_saves_time(row_class: str, times: float, first: set[str]):
    """It answers 0.8 of the rows: 0.2 of the full function's time are left, and 0.8 are what it may take."""
    known = costing(0.8 * times)
    policy = Proxied(known, FIT, OUTSIDE)
    scheduler = Scheduler()
    scheduler.configure(0.0, pooled())
    scheduler.follow(0.0, "e", "", known, policy)
    scheduler.set_worker(0.0, WorkerView("w", True, frozenset({"m0", "m1", "m2"})))
    scheduler.submit(0.0, asked(1, 6, row_class=row_class, slo_s=1e3))
    _, of = drained(scheduler, dict.fromkeys(range(6), 1.0))
    assert all(asked_of == first for asked_of in of.values())
    assert policy.plans[-1].device_s <= policy.plans[0].device_s
    assert not OUTSIDE.is_asked_first(policy.plans[1]), "where it answers 0.4 it saves nothing"


def costing(share: float) -> Ensemble:
    """The proxy takes this share of what the full function takes of a row."""
    known = ensemble(OUTSIDE)
    full_s = known.members[1].cost_s + known.members[2].cost_s
    return replace(
        known, members=(replace(known.members[0], fixed_s=0.0, per_row_s=share * full_s), *known.members[1:])
    )


@pytest.mark.parametrize(("shared", "gear"), [(0.0, 2), (0.9, 0)])
def test_bulk_rows_pass_a_proxy_by_that_costs_more_than_to_read_a_row_once(shared: float, gear: int):
    known = costing(0.7)
    policy = Proxied(known, FIT, OUTSIDE)
    shared_s = shared * known.members[1].cost_s
    cascade = cascade_of(known, policy, shared_s)
    assert cascade is not None
    assert cascade.accuracy == policy.plans[gear].accuracy
    assert (cascade.first.ask == (0,)) == (gear == 2)


def test_a_plan_says_what_a_row_costs_and_how_often_it_agrees():
    policy = Proxied(ensemble(OUTSIDE), FIT, OUTSIDE)
    full, strict, deployed = policy.plans
    assert [plan.accuracy for plan in policy.plans] == [1.0, 0.98, 0.9]
    costs_s = [member.cost_s for member in ENSEMBLE.members]
    assert full.device_s == pytest.approx(costs_s[1] + costs_s[2])
    assert deployed.device_s == pytest.approx(costs_s[0] + 0.2 * (costs_s[1] + costs_s[2]))
    assert strict.device_s == pytest.approx(costs_s[0] + 0.6 * (costs_s[1] + costs_s[2]))
    assert policy.init() == {"gear": 2}
