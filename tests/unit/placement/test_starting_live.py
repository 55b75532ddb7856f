"""Workers that come up one after the other begin as one plan says, and go on from what is there."""

from __future__ import annotations

from collections.abc import Mapping

from server.placement.core import Placement
from server.placement.policies.lru import LeastRecentlyUsed
from server.placement.policy import Capacity

ONE, TWO = Capacity(max_models=1), Capacity(max_models=2)
RATES = {"a": 10.0, "b": 300.0, "c": 250.0, "d": 20.0}


def took_s(rows: int) -> float:
    return 0.005 + 0.001 * rows


def placement(workers: int) -> Placement:
    core = Placement(LeastRecentlyUsed(), apart=True, workers=workers)
    for turn, key in enumerate("abcd", 1):
        core.know(key, 10, last_used_s=turn)
        core.serve(key, (key,), 0.1, [took_s], 64)
    return core


def up(core: Placement, name: str, capacity: Capacity, rates: Mapping[str, float]) -> str:
    """The models, in the order in which the worker is offered them."""
    core.worker_up(name, capacity, "cpu", [(key,) for key in "abcd"], lambda key: rates.get(key, 0.0))
    return "".join(key for group in core.state(0.0, {}).workers[name].offers for key in group)


def fill(core: Placement) -> dict[str, set[str]]:
    """What every worker holds once nothing more is loaded."""
    while steps := core.steps(0.0, {})[0]:
        for step in steps:
            core.loaded(0.0, step.worker, step.load, 10, 0.1)
            core.over(step.worker)
    return {name: set(core.resident(name)) for name in core.state(0.0, {}).workers}


def test_two_workers_share_what_is_busy_and_hold_everything_between_them() -> None:
    core = placement(workers=2)
    first, second = up(core, "w0", TWO, RATES), up(core, "w1", TWO, RATES)
    assert {first[0], second[0]} == {"b", "c"}, "the busiest first, one on each"
    held = fill(core)
    assert held["w0"] | held["w1"] == set("abcd")


def test_a_worker_alone_begins_with_the_busiest() -> None:
    core = placement(workers=1)
    assert up(core, "w0", TWO, RATES)[:2] == "bc"
    assert fill(core) == {"w0": {"b", "c"}}


def test_without_rates_the_last_used_come_first_and_each_is_somewhere_before_any_is_twice() -> None:
    core = placement(workers=2)
    assert up(core, "w0", ONE, {})[0] == "d"
    assert up(core, "w1", ONE, {})[0] == "c"
    assert fill(core) == {"w0": {"d"}, "w1": {"c"}}


def test_free_room_takes_copies_of_the_others() -> None:
    core = placement(workers=2)
    up(core, "w0", Capacity(), RATES)
    up(core, "w1", Capacity(), RATES)
    assert fill(core) == {"w0": set("abcd"), "w1": set("abcd")}


def test_a_worker_that_comes_again_begins_with_what_the_others_lack() -> None:
    core = placement(workers=2)
    up(core, "w0", TWO, RATES)
    up(core, "w1", TWO, RATES)
    before = fill(core)
    core.worker_down("w0")
    up(core, "w0", TWO, RATES)
    assert fill(core)["w0"] == before["w0"]


def test_without_word_of_rates_offers_stay_in_their_order() -> None:
    core = placement(workers=1)
    core.worker_up("w0", TWO, "cpu", [("d",), ("a",), ("b",)])
    assert core.state(0.0, {}).workers["w0"].offers == (("d",), ("a",), ("b",))
