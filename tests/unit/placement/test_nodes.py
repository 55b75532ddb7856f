"""Placement over several machines: what their links take, what their workers share, whose rows are near."""

from __future__ import annotations

import pytest

from server.placement.core import Placement, Step
from server.placement.policies.by_name import placement_named
from server.placement.policies.value import ValueOfResidency
from server.placement.policy import Capacity, PlacementState, WaitingRows

MB = 1 << 20


def placement(*workers: tuple[str, str], far: bool = False) -> Placement:
    """Workers, each with its node, of places for two models; m0 to m9 are known, of 100 MB each."""
    core = Placement(ValueOfResidency(), apart=True, workers=len(workers))
    for number in range(10):
        core.know(f"m{number}", 100 * MB)
    for name, node in workers:
        core.worker_up(name, Capacity(max_models=2), "gpu", node=node, is_far=far and node != "here")
    return core


def load(core: Placement, worker: str, key: str, took_s: float) -> None:
    core.begin(0.0, Step(worker, (), key))
    core.loaded(0.0, worker, key, 100 * MB, took_s)
    core.over(worker)


def asked(core: Placement, key: str) -> list[Step]:
    """What is done for ten rows that wait, without a goal."""
    core.want(1.0, (key,), by_rows=True)
    return core.steps(1.0, {(key,): WaitingRows(10, fillers=10)})[0]


def test_a_load_takes_what_the_links_of_its_node_take():
    core = placement(("a0", "a"), ("b0", "b"))
    load(core, "a0", "m0", 0.1)
    load(core, "b0", "m1", 2.0)
    state = core.state(1.0, {})
    expected = state.models["m9"].load_s
    assert expected["gpu @ b"] > 10 * expected["gpu @ a"]
    assert core.link_bytes_per_s("a0") == 100 * MB / 0.1
    assert core.link_bytes_per_s("b0") == 100 * MB / 2.0


def test_what_rows_wait_for_comes_over_the_quicker_link():
    core = placement(("b0", "b"), ("a0", "a"))
    load(core, "b0", "m1", 2.0)
    load(core, "a0", "m0", 0.1)
    assert [(step.worker, step.load) for step in asked(core, "m5")] == [("a0", "m5")]


def test_a_copy_costs_less_where_another_worker_of_the_node_holds_the_model():
    core = placement(("a0", "a"), ("a1", "a"), ("b0", "b"))
    load(core, "a0", "m0", 2.0)
    load(core, "a1", "m0", 0.1)
    load(core, "b0", "m1", 2.0)
    load(core, "b0", "m2", 2.0)
    expected = core.state(1.0, {}).models
    assert expected["m1"].load_s["gpu @ b"] < 0.2, "there already: as a load from memory on the other node"
    assert expected["m1"].load_s["gpu @ a"] > 1.0, "it has to come there first"
    core.evicted("b0", "m1")
    assert core.state(1.0, {}).models["m1"].load_s["gpu @ b"] > 1.0


def test_of_links_that_are_alike_the_one_of_a_worker_is_taken_whose_rows_are_near():
    core = placement(("b0", "b"), ("here0", "here"), ("c0", "c"), far=True)
    assert [step.worker for step in asked(core, "m5")] == ["here0"]


def test_links_of_a_node_that_is_gone_are_asked_no_more_and_known_again_when_it_comes_back():
    core = placement(("a0", "a"), ("b0", "b"))
    load(core, "b0", "m1", 2.0)
    core.worker_down("b0")
    assert list(core.state(1.0, {}).models["m9"].load_s) == ["gpu @ a"]
    core.worker_up("b0", Capacity(max_models=2), "gpu", node="b")
    assert core.state(1.0, {}).models["m9"].load_s["gpu @ b"] > 1.0


def test_the_state_with_nodes_is_the_same_after_it_was_written_and_read():
    core = placement(("a0", "a"), ("b0", "b"), far=True)
    load(core, "a0", "m0", 0.1)
    state = core.state(1.0, {})
    again = PlacementState.from_json(state.to_json())
    assert again.workers == state.workers
    assert again.models["m9"].load_s == dict(state.models["m9"].load_s)


def test_without_nodes_workers_of_one_kind_share_a_link_and_nothing_is_near():
    core = placement(("w0", ""), ("w1", ""))
    load(core, "w0", "m0", 2.0)
    assert dict(core.state(1.0, {}).models["m0"].load_s) == {"gpu": 2.0}


@pytest.mark.parametrize("policy", ["value", "lru"])
@pytest.mark.parametrize("spread", [False, True])
def test_members_apart_are_packed_on_a_node_or_spread_so_that_some_survive_its_loss(
    policy: str, spread: bool
):
    core = Placement(placement_named(policy), apart=True, spread=spread, workers=4)
    for key in ("m0", "m1"):
        core.know(key, 100 * MB)
    nodes = {"a0": "a", "a1": "a", "b0": "b", "b1": "b"}
    for name, node in nodes.items():
        core.worker_up(name, Capacity(max_models=1), "gpu", node=node)
    core.want(0.0, ("m0", "m1"))
    for now_s in (0.0, 1.0, 2.0):
        for step in core.steps(now_s, {})[0]:
            core.begin(now_s, step)
            core.loaded(now_s, step.worker, step.load, 100 * MB, 0.1)
            core.over(step.worker)
    held = {name: set(one.resident) for name, one in core.state(3.0, {}).workers.items()}
    assert sorted(key for keys in held.values() for key in keys) == ["m0", "m1"]
    rows_travel_to = {nodes[name] for name, keys in held.items() if keys}
    assert len(rows_travel_to) == (2 if spread else 1)
    for lost in rows_travel_to:
        survives = set().union(*(keys for name, keys in held.items() if nodes[name] != lost))
        assert len(survives) == (1 if spread else 0)
