"""`lru`: wishes in turn, the least recently used leave for them, and offers fill what is free."""

from __future__ import annotations

import pytest

from server.placement.policies.lru import LeastRecentlyUsed
from server.placement.policy import (
    Capacity,
    Evict,
    Fetch,
    PlacementAction,
    PlacementState,
    Residence,
    WorkerPlaces,
)
from tests.unit.placement.states import loading, state, wish, worker


def decided(of: PlacementState, now_s: float = 0.0) -> tuple[PlacementAction, ...]:
    return LeastRecentlyUsed().decide(of, now_s).actions


def test_what_was_used_longest_ago_leaves_for_a_wish() -> None:
    used = {"a": 3.0, "b": 1.0}
    assert decided(state(worker("w", "a", "b"), wishes=(wish("c"),), last_used_s=used)) == (
        Evict("w", "b"),
        Fetch("w", "c"),
    )


def test_nothing_leaves_where_there_is_room() -> None:
    assert decided(state(worker("w", "a"), wishes=(wish("c"),))) == (Fetch("w", "c"),)


def test_the_models_of_a_group_come_one_after_the_other_to_the_same_worker() -> None:
    workers = (worker("v"), worker("w", "a"))
    assert decided(state(*workers, wishes=(wish("a", "b"),))) == (Fetch("w", "b"),)
    assert decided(state(worker("v"), worker("w"), wishes=(wish("a", "b"),))) == (Fetch("v", "a"),)
    busy = (worker("v"), worker("w", moving=loading("a")))
    assert decided(state(*busy, wishes=(wish("a", "b"),))) == ()


def test_a_group_needs_no_more_than_its_worker_lacks() -> None:
    of = state(worker("w", "a", "c", places=2), wishes=(wish("a", "b"),), last_used_s={"c": 9.0})
    assert decided(of) == (Evict("w", "c"), Fetch("w", "b"))


def test_of_equal_workers_an_idle_link_goes_first_then_the_emptiest() -> None:
    workers = (worker("u", moving=loading("f")), worker("v", "a"), worker("w"))
    assert decided(state(*workers, wishes=(wish("c"),))) == (Fetch("w", "c"),)
    assert decided(state(*workers[:2], wishes=(wish("c"),))) == (Fetch("v", "c"),)


def test_workers_that_are_not_counted_on_come_last() -> None:
    workers = (worker("v", "c"), worker("w"))
    assert decided(state(*workers, wishes=(wish("c", without=frozenset("v")),))) == (Fetch("w", "c"),)


def test_an_earlier_wish_has_its_workers_link_to_itself() -> None:
    one = state(worker("w", "a", "b"), wishes=(wish("c"), wish("d")))
    assert decided(one) == (Evict("w", "a"), Fetch("w", "c"))
    two = state(worker("v", "a", "b"), worker("w", "a", "b"), wishes=(wish("c"), wish("d")))
    assert [action for action in decided(two) if isinstance(action, Fetch)] == [
        Fetch("v", "c"),
        Fetch("w", "d"),
    ]


def test_what_rows_wait_for_stays_for_five_of_its_loads_and_then_gives_way() -> None:
    there = {"a": Residence(since_s=10.0, load_s=0.2)}
    of = state(
        WorkerPlaces("w", Capacity(max_models=1), "cpu", there),
        wishes=(wish("c"),),
        waited_for=(("a",), ("c",)),
    )
    early = LeastRecentlyUsed().decide(of, 10.5)
    assert (early.actions, early.until_s) == ((), 11.0)
    assert decided(of, 11.0) == (Evict("w", "a"), Fetch("w", "c"))


def test_a_model_that_loads_in_no_time_stays_for_a_quarter_of_a_second() -> None:
    there = {"a": Residence(since_s=10.0, load_s=0.001)}
    of = state(
        WorkerPlaces("w", Capacity(max_models=1), "cpu", there), wishes=(wish("c"),), waited_for=(("a",),)
    )
    assert LeastRecentlyUsed().decide(of, 10.0).until_s == 10.25


def test_a_fresh_worker_takes_the_groups_in_their_order_until_it_is_full() -> None:
    offers = (("c",), ("b",), ("a",))
    assert decided(state(worker("w", places=2, offers=offers))) == (Fetch("w", "c"),)
    assert decided(state(worker("w", "c", places=2, offers=offers))) == (Fetch("w", "b"),)
    assert decided(state(worker("w", "c", "b", places=2, offers=offers))) == ()


def test_what_rows_wait_for_is_taken_up_first() -> None:
    fresh = worker("w", offers=(("a",), ("b",)))
    assert decided(state(fresh, waited_for=(("b",),))) == (Fetch("w", "b"),)


def test_a_group_that_does_not_fit_is_passed_over_for_a_smaller_one() -> None:
    fresh = WorkerPlaces("w", Capacity(capacity_bytes=50), "cpu", offers=(("a", "b"), ("c",)))
    assert decided(state(fresh, sizes={"a": 40, "b": 40})) == (Fetch("w", "c"),)


def test_a_model_that_two_groups_share_is_loaded_once() -> None:
    half = worker("w", "a", "b", places=3, offers=(("a", "b"), ("b", "c")))
    assert decided(state(half)) == (Fetch("w", "c"),)


def test_nothing_leaves_for_an_offer() -> None:
    assert decided(state(worker("w", "a", "b", offers=(("c",),)))) == ()


def test_a_model_of_whose_load_two_workers_died_is_brought_only_if_it_is_wanted() -> None:
    fresh = worker("w", offers=(("a",), ("b",)))
    assert decided(state(fresh, deaths={"a": 2}, last_used_s={"a": 9.0})) == (Fetch("w", "b"),)
    assert decided(state(worker("w"), deaths={"a": 2}, wishes=(wish("a"),))) == (Fetch("w", "a"),)


@pytest.mark.parametrize("apart", [False, True])
def test_members_that_no_worker_can_hold_together_go_apart_if_they_may(apart: bool) -> None:
    workers = (worker("v", places=1), worker("w", places=1))
    of = state(*workers, wishes=(wish("a", "b"),), apart=apart)
    assert decided(of) == ((Fetch("v", "a"), Fetch("w", "b")) if apart else ())


def test_members_that_fit_on_one_worker_stay_together() -> None:
    workers = (worker("v", places=2), worker("w", places=2))
    assert decided(state(*workers, wishes=(wish("a", "b"),), apart=True)) == (Fetch("v", "a"),)
