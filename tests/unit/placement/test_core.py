"""The placement's state is what the workers said, whatever they said and in whatever order."""

from __future__ import annotations

import pytest

from server.placement.core import Placement, Step
from server.placement.policies.lru import LeastRecentlyUsed
from server.placement.policies.value import ValueOfResidency
from server.placement.policy import (
    Capacity,
    Evict,
    Fetch,
    PlacementDecision,
    PlacementState,
    WaitingRows,
)


def placement(places: int = 2, *, apart: bool = False) -> Placement:
    core = Placement(LeastRecentlyUsed(), apart=apart)
    core.worker_up("w", Capacity(max_models=places), "cpu")
    return core


def carry_out(core: Placement, now_s: float = 0.0) -> list[Step]:
    """Do all that is decided, at once."""
    done: list[Step] = []
    while steps := core.steps(now_s, {})[0]:
        for step in steps:
            for key in step.evict:
                core.evicted(step.worker, key)
            if step.load:
                core.loaded(now_s, step.worker, step.load, 10, 0.05)
            core.over(step.worker)
        done += steps
    return done


def test_a_wish_comes_true_and_is_told_once() -> None:
    core = placement()
    assert core.want(0.0, ("a", "b"))
    assert not core.want(0.0, ("a", "b"))
    carry_out(core)
    assert core.is_resident(("a", "b"))
    assert [(ended.group, ended.reason) for ended in core.take_ended()] == [(("a", "b"), "resident")]
    assert core.take_ended() == []


def test_what_is_leaving_is_out_of_sight_and_takes_its_place_until_it_has_left() -> None:
    core = placement(places=1)
    core.want(0.0, ("a",))
    carry_out(core)
    core.want(1.0, ("b",))
    ((step,), _) = core.steps(1.0, {})
    assert step == Step("w", ("a",), "b")
    assert core.resident("w") == frozenset()
    assert set(core.state(1.0, {}).workers["w"].resident) == {"a"}
    assert core.steps(1.0, {})[0] == [], "its link is busy"


def test_a_model_is_larger_than_was_known() -> None:
    core = Placement(LeastRecentlyUsed())
    core.worker_up("w", Capacity(capacity_bytes=15), "cpu")
    core.want(0.0, ("a",))
    core.steps(0.0, {})
    assert core.refused("w", "a", 12), "that is news"
    core.over("w")
    assert core.steps(0.0, {})[0] == [Step("w", (), "a")]
    assert not core.refused("w", "a", 12)
    core.over("w")
    core.refused("w", "a", 16)
    assert [ended.reason for ended in core.take_ended()] == ["too_large"]


def test_a_load_under_which_two_workers_die_is_given_up() -> None:
    core, error = placement(), RuntimeError("gone")
    core.want(0.0, ("a",))
    for ends in (False, True):
        core.steps(0.0, {})
        core.worker_down("w")
        core.failed("w", "a", error, died=True)
        core.worker_up("w", Capacity(), "cpu")
        assert [(one.reason, one.error) for one in core.take_ended()] == ([("failed", error)] if ends else [])


def test_a_wish_that_is_withdrawn_begins_nothing_more() -> None:
    core = placement()
    core.want(0.0, ("a", "b"))
    ((step,), _) = core.steps(0.0, {})
    core.withdraw(("a", "b"))
    core.loaded(0.0, "w", step.load, 10, 0.05)
    core.over("w")
    assert core.steps(0.0, {})[0] == []
    assert core.resident("w") == {"a"}


def test_an_offer_that_nobody_takes_up_is_over() -> None:
    core = placement(places=1)
    core.want(0.0, ("a",))
    carry_out(core)
    core.offer(("b",))
    assert core.is_offered(("b",))
    carry_out(core)
    assert not core.is_offered(("b",))
    assert core.resident("w") == {"a"}


def test_rows_that_came_of_late_are_a_rate_that_fades() -> None:
    core = placement()
    for turn in range(500):
        core.arrived(turn * 0.1, ("a",), 4)
    assert core.state(50.0, {}).models["a"].arrivals_per_s(50.0) == pytest.approx(40, rel=0.05)
    assert core.state(100.0, {}).models["a"].arrivals_per_s(100.0) < 0.01


def test_the_link_says_when_it_should_be_idle_again() -> None:
    core = placement(places=1)
    core.want(0.0, ("a",))
    carry_out(core)
    core.forget("w", ["a"])
    core.want(5.0, ("a",))
    core.steps(5.0, {})
    moving = core.state(5.0, {}).workers["w"].moving
    assert moving is not None
    assert moving.ends_s == pytest.approx(5.05)


def test_members_apart_are_resident_only_where_they_may_be() -> None:
    for apart in (True, False):
        core = placement(places=1, apart=apart)
        core.worker_up("v", Capacity(max_models=1), "cpu")
        core.want(0.0, ("a", "b"))
        carry_out(core)
        assert core.is_resident(("a", "b")) == apart
        assert [one.reason for one in core.take_ended()] == ["resident" if apart else "too_large"]


class Wrong:
    """Decides what it was made with."""

    name = "wrong"

    def __init__(self, *actions: Fetch | Evict) -> None:
        self._actions = actions

    def decide(self, state: PlacementState, now_s: float) -> PlacementDecision:
        return PlacementDecision(self._actions)


class Raising(Wrong):
    def decide(self, state: PlacementState, now_s: float) -> PlacementDecision:
        raise RuntimeError("a bug")


@pytest.mark.parametrize(
    "policy",
    [
        Wrong(Fetch("nobody", "a")),
        Wrong(Fetch("w", "unheard of")),
        Wrong(Fetch("w", "a"), Fetch("w", "b")),
        Wrong(Evict("w", "a")),
        Wrong(Fetch("w", "large")),
        Raising(),
    ],
)
def test_a_policy_that_decides_what_cannot_be_done_is_put_aside_for_lru(policy: Wrong) -> None:
    core = Placement(policy)
    core.know("b", 10)
    core.know("large", 1000)
    core.worker_up("w", Capacity(capacity_bytes=100), "cpu")
    core.want(0.0, ("a",))
    carry_out(core)
    assert core.resident("w") == {"a"}
    fault = core.take_fault()
    assert fault is not None
    assert fault.policy == "wrong"
    assert core.take_fault() is None, "told once"


def test_a_size_that_was_learned_elsewhere_while_a_load_was_under_way_is_news_to_it() -> None:
    core = placement()
    core.worker_up("v", Capacity(capacity_bytes=30), "cpu", offers=[("a",)])
    core.offer(("a",))
    assert len(core.steps(0.0, {})[0]) == 2
    core.loaded(0.0, "w", "a", 40, 0.05)
    assert core.refused("v", "a", 40)


def test_what_one_load_teaches_of_a_kind_of_device_is_seen_of_all_models_at_once() -> None:
    core = placement()
    for key in ("a", "b"):
        core.know(key, size_bytes=100)
    core.loaded(0.0, "w", "a", 100, 0.4)
    before_s = core.state(0.0, {}).models["b"].load_s["cpu"]
    core.loaded(1.0, "w", "a", 100, 0.8)
    assert before_s == pytest.approx(0.4)
    assert core.state(1.0, {}).models["b"].load_s["cpu"] > before_s
    assert dict(core.state(1.0, {}).models["b"].load_s) == core.state(1.0, {}).models["b"].load_s


def test_what_policies_saw_of_a_model_is_not_shown_again_once_it_has_changed() -> None:
    core = placement()
    core.know("a", size_bytes=10)
    assert core.state(0.0, {}).models["a"].size_bytes == 10
    core.loaded(0.0, "w", "a", 30, 0.1)
    assert core.state(0.0, {}).models["a"].size_bytes == 30
    core.serve("f", ("a",), 0.5)
    assert core.state(0.0, {}).models["a"].goal_s == 0.5
    assert core.state(0.0, {}).used_bytes == {"w": 30}


def test_an_offer_is_over_once_its_models_are_there() -> None:
    core = placement()
    core.offer(("a",))
    assert core.is_offered(("a",))
    carry_out(core)
    assert core.is_resident(("a",))
    assert not core.is_offered(("a",))


def test_a_model_that_no_function_has_is_forgotten_once_it_has_left() -> None:
    core = placement(places=1)
    for key in ("a", "b"):
        core.serve(key, (key,), 0.5)
    core.want(0.0, ("a",))
    carry_out(core)
    core.used(0.0, ["a"], 7.0, "w")
    core.idle(["a"], "w")
    core.serve_no_more("a")
    core.steps(1.0, {})
    assert core.take_forgotten() == [], "it is still there"
    core.want(1.0, ("b",))
    carry_out(core, 1.0)
    core.steps(2.0, {})
    assert core.take_forgotten() == ["a"]
    assert set(core.state(2.0, {}).models) == {"b"}
    assert set(core.last_used()) == {"b"}
    assert core.take_forgotten() == []


def test_a_model_of_which_another_function_is_left_or_that_is_served_anew_is_not_forgotten() -> None:
    core = placement()
    core.know("a", size_bytes=10)
    core.serve("f", ("a", "b"), 0.5)
    core.serve("g", ("a",), 0.5)
    core.serve_no_more("f")
    core.serve("g", ("a",), 0.1)
    core.steps(0.0, {})
    assert core.take_forgotten() == ["b"]
    assert core.state(0.0, {}).models["a"].size_bytes == 10
    core.serve_no_more("g")
    core.serve("h", ("a",), 0.1)
    core.steps(0.0, {})
    assert core.take_forgotten() == []
    assert core.state(0.0, {}).models["a"].size_bytes == 10


def test_a_model_that_is_gone_is_nobodys_successor() -> None:
    core = Placement(ValueOfResidency())
    core.worker_up("w", Capacity(max_models=2), "cpu")
    for key in "abc":
        core.serve(key, (key,), 0.2)
    for turn in range(30):
        core.arrived(turn / 10, ("abc"[turn % 3],))
    assert core.state(3.0, {}).visits.next[("b",)][0] == ("c",)
    core.serve_no_more("c")
    core.steps(3.0, {})
    assert core.take_forgotten() == ["c"]
    visits = core.state(3.0, {}).visits
    assert "c" not in str((visits.last, visits.next, visits.rows))
    core.arrived(3.1, ("a",))
    core.arrived(3.2, ("b",))
    core.steps(3.3, {("a",): WaitingRows(1, (3.5,))})
    assert core.take_fault() is None


def test_what_rows_wanted_is_wanted_no_more_once_none_waited_for_it_for_a_minute() -> None:
    core = Placement(LeastRecentlyUsed())
    core.want(0.0, ("rows",), by_rows=True)
    core.want(0.0, ("somebody",))
    core.steps(50.0, {("rows",): WaitingRows(1)})
    core.steps(100.0, {})
    assert core.is_wanted(("rows",)), "rows were seen less than a minute ago"
    core.steps(200.0, {})
    assert not core.is_wanted(("rows",))
    assert [(ended.group, ended.reason) for ended in core.take_ended()] == [(("rows",), "unasked")]
    assert core.is_wanted(("somebody",))
    assert core.want(201.0, ("rows",), by_rows=True), "new rows may want it again"
