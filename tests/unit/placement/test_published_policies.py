"""What sets each published placement policy apart: who is loaded first, and who leaves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from server.placement.policies.clockwork import Clockwork
from server.placement.policies.greedy_dual import Gdsf, LfuDa
from server.placement.policies.least_recent import LruBlocking, LruOverlapped
from server.placement.policies.modelmesh import ModelMesh
from server.placement.policy import (
    Evict,
    Fetch,
    GroupKeys,
    ModelState,
    PlacementDecision,
    PlacementPolicy,
    PlacementState,
    WaitingRows,
)
from tests.unit.placement.states import loading, state, wish, worker

NOW_S = 10.0


def known(before: PlacementState, **models: dict[str, Any]) -> PlacementState:
    """The same, where more is known of some models."""
    changed: Mapping[str, ModelState] = {
        **before.models,
        **{key: replace(before.models[key], **fields) for key, fields in models.items()},
    }
    return replace(before, models=changed)


def waiting(before: PlacementState, **rows: WaitingRows) -> PlacementState:
    """The same, where so many rows wait for functions of one model, and wish for those that are nowhere."""
    waited_for: dict[GroupKeys, WaitingRows] = {(key,): each for key, each in rows.items()}
    held = {key for one in before.workers.values() for key in one.resident}
    wishes = tuple(replace(wish(key), by_rows=True) for key in rows if key not in held)
    return replace(before, waited_for=waited_for, wishes=wishes)


def actions_of(policy: PlacementPolicy, seen: PlacementState, now_s: float = NOW_S) -> list[tuple[str, str]]:
    return [(type(one).__name__, one.model) for one in policy.decide(seen, now_s).actions]


# ── lru, as published ────────────────────────────────────────────────────────────────────────────────


def test_lru_loads_what_was_served_longest_ago_and_evicts_what_was_used_longest_ago() -> None:
    seen = waiting(state(worker("w", "a", "b")), c=WaitingRows(9), d=WaitingRows(1))
    seen = known(seen, a={"served_s": 5.0}, b={"served_s": 4.0}, c={"served_s": 3.0}, d={"served_s": 2.0})
    assert actions_of(LruOverlapped(), seen) == [("Evict", "b"), ("Fetch", "d")]


def test_to_be_loaded_is_a_use() -> None:
    seen = waiting(state(worker("w", "a", "b", since_s=8.0)), c=WaitingRows(1))
    there = seen.workers["w"]
    older = replace(there, resident={**there.resident, "a": replace(there.resident["a"], since_s=6.0)})
    seen = known(replace(seen, workers={"w": older}), a={"served_s": 7.0}, b={"served_s": 1.0})
    assert actions_of(LruOverlapped(), seen) == [("Evict", "a"), ("Fetch", "c")]


def test_a_resident_model_whose_turn_it_is_holds_up_the_link_if_loads_block() -> None:
    seen = waiting(state(worker("w", "a", "b")), a=WaitingRows(1), c=WaitingRows(1))
    first = known(seen, a={"served_s": 1.0}, b={"served_s": 5.0}, c={"served_s": 3.0})
    assert actions_of(LruBlocking(), first) == []
    assert actions_of(LruOverlapped(), first) == [("Evict", "a"), ("Fetch", "c")]
    served = known(first, a={"served_s": 9.0})
    assert actions_of(LruBlocking(), served) == [("Evict", "b"), ("Fetch", "c")]


def test_rows_that_are_gone_load_nothing() -> None:
    seen = waiting(state(worker("w", "a", "b")), c=WaitingRows(1))
    gone = replace(seen, waited_for={})
    for policy in (LruOverlapped(), LruBlocking(), LfuDa(), Gdsf(), ModelMesh(), Clockwork()):
        assert actions_of(policy, seen), policy.name
        assert not actions_of(policy, gone), policy.name


# ── lfu-da, gdsf ─────────────────────────────────────────────────────────────────────────────────────


def remembering(policy: PlacementPolicy, seen: PlacementState) -> tuple[PlacementDecision, PlacementState]:
    """What it decides, and the state that remembers it."""
    decision = policy.decide(seen, NOW_S)
    assert decision.memory is not None
    return decision, replace(seen, memory=decision.memory)


def test_lfu_da_evicts_what_was_asked_for_least_since_it_came() -> None:
    _, seen = remembering(LfuDa(), state(worker("w", "a", "b")))
    _, seen = remembering(LfuDa(), known(seen, a={"rows": 3}, b={"rows": 2}))
    assert actions_of(LfuDa(), waiting(seen, c=WaitingRows(1))) == [("Evict", "b"), ("Fetch", "c")]


def test_lfu_da_ages_so_that_what_was_popular_once_leaves_in_the_end() -> None:
    _, seen = remembering(LfuDa(), known(state(worker("w", "a", "b")), a={"rows": 0}))
    seen = known(seen, a={"rows": 5})  # and never again
    for turn in range(1, 20):
        coming = "bcdef"[turn % 5]
        key = next(key for key in seen.workers["w"].resident if key != "a")
        seen = known(seen, **{key: {"rows": seen.models[key].rows + 1}})
        if coming == key:
            continue
        decision, seen = remembering(LfuDa(), waiting(seen, **{coming: WaitingRows(1)}))
        leaving = next(one.model for one in decision.actions if isinstance(one, Evict))
        if leaving == "a":
            assert 3 <= turn < 10
            return
        seen = replace(seen, workers={"w": worker("w", "a", coming)})
    raise AssertionError("it stayed for ever")


def test_gdsf_keeps_what_is_small_and_dear_to_load() -> None:
    seen = known(
        state(worker("w", "a", "b"), sizes={"a": 10, "b": 40}),
        a={"load_s": {"cpu": 0.1}},
        b={"load_s": {"cpu": 0.1}},
    )
    _, seen = remembering(Gdsf(), known(seen, a={"rows": 2}, b={"rows": 3}))
    assert actions_of(Gdsf(), waiting(seen, c=WaitingRows(1)))[0] == ("Evict", "b")
    dear = known(state(worker("w", "a", "b")), a={"load_s": {"cpu": 0.1}}, b={"load_s": {"cpu": 0.4}})
    _, dear = remembering(Gdsf(), known(dear, a={"rows": 2}, b={"rows": 2}))
    assert actions_of(Gdsf(), waiting(dear, c=WaitingRows(1)))[0] == ("Evict", "a")


# ── clockwork ────────────────────────────────────────────────────────────────────────────────────────


def demand(seen: PlacementState, **rows: WaitingRows) -> PlacementState:
    """A row takes 10 ms, its goal is 100 ms, a load takes 50 ms."""
    cost = {"fixed_s": 0.01, "goal_s": 0.1}
    return known(waiting(seen, **rows), **dict.fromkeys("abcdef", cost))


def test_clockwork_loads_what_has_most_demand_that_is_not_met() -> None:
    seen = demand(state(worker("w", "a", "b")), c=WaitingRows(2), d=WaitingRows(5))
    seen = known(seen, a={"served_s": 5.0}, b={"served_s": 4.0})
    assert actions_of(Clockwork(), seen) == [("Evict", "b"), ("Fetch", "d")]


def test_clockwork_counts_no_rows_that_a_load_would_be_too_late_for() -> None:
    soon, later = (NOW_S + 0.03,) * 5, (NOW_S + 0.08,) * 2
    rows = {"c": WaitingRows(2, due_s=later), "d": WaitingRows(5, due_s=soon)}
    assert ("Fetch", "c") in actions_of(Clockwork(), demand(state(worker("w", "a", "b")), **rows))
    lost = demand(state(worker("w", "a", "b")), d=WaitingRows(5, due_s=soon))
    assert actions_of(Clockwork(), lost) == []


def test_clockwork_makes_a_copy_of_what_its_worker_cannot_do_within_the_goal() -> None:
    workers = worker("v", "a", "b"), worker("w", "c", "d")
    assert actions_of(Clockwork(), demand(state(*workers), a=WaitingRows(5))) == []
    decision = Clockwork().decide(demand(state(*workers), a=WaitingRows(30)), NOW_S)
    assert Fetch("w", "a") in decision.actions


# ── modelmesh ────────────────────────────────────────────────────────────────────────────────────────


def test_modelmesh_goes_where_there_is_room_and_else_where_the_oldest_model_is() -> None:
    roomy = waiting(state(worker("v", "a", "b"), worker("w", "d")), c=WaitingRows(1))
    assert ModelMesh().decide(roomy, NOW_S).actions == (Fetch("w", "c"),)
    full = waiting(state(worker("v", "a", "b"), worker("w", "d", "e")), c=WaitingRows(1))
    full = known(full, a={"served_s": 4.0}, b={"served_s": 5.0}, d={"served_s": 3.0}, e={"served_s": 6.0})
    assert ModelMesh().decide(full, NOW_S).actions == (Evict("w", "d"), Fetch("w", "c"))


def test_modelmesh_does_not_churn() -> None:
    seen = waiting(state(worker("w", "a", "b")), c=WaitingRows(1))
    seen = known(seen, a={"served_s": 9.7}, b={"served_s": 9.8})
    decision = ModelMesh().decide(seen, NOW_S)
    assert decision.actions == ()
    assert decision.until_s == 9.7 + 10 * 0.05
    assert actions_of(ModelMesh(), seen, decision.until_s) == [("Evict", "a"), ("Fetch", "c")]


def test_modelmesh_copies_what_more_than_2000_rows_a_minute_come_for() -> None:
    workers = worker("v", "a", "b"), worker("w", "c")
    hot = known(state(*workers), a={"arrivals": 5 * 40.0, "arrived_s": NOW_S})
    assert ModelMesh().decide(hot, NOW_S).actions == (Fetch("w", "a"),)
    warm = known(state(*workers), a={"arrivals": 5 * 30.0, "arrived_s": NOW_S})
    assert ModelMesh().decide(warm, NOW_S).actions == ()


def test_a_model_on_its_way_is_not_loaded_twice() -> None:
    workers = worker("v", "a", "b", moving=loading("c")), worker("w", "d", "e")
    seen = demand(state(*workers), c=WaitingRows(3))
    for policy in (LruOverlapped(), LruBlocking(), LfuDa(), Gdsf(), ModelMesh(), Clockwork()):
        assert actions_of(policy, seen) == [], policy.name
