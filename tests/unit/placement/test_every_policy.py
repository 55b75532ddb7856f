"""What any placement policy keeps to, whatever comes: capacities, links, and that it comes to an end."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from server.placement.core import Placement, Step
from server.placement.policies.by_name import PLACEMENT_POLICIES, placement_named
from server.placement.policy import (
    Capacity,
    Evict,
    Fetch,
    GroupKeys,
    PlacementDecision,
    PlacementPolicy,
    PlacementState,
    WaitingRows,
)
from server.scheduling.arbitration import MostInTime
from server.scheduling.simulation.arrivals import poisson
from server.scheduling.simulation.simulator import (
    FunctionLoad,
    SimulatedDevice,
    SimulationResult,
    Workload,
    simulate,
)
from tests.unit.scheduling.views import affine


class Eager:
    """As unlike `lru` as may be: whatever is known is brought everywhere, and the oldest leaves for it."""

    name = "eager"

    def decide(self, state: PlacementState, now_s: float) -> PlacementDecision:
        actions: list[Fetch | Evict] = []
        for worker in state.workers.values():
            missing = [key for wish in state.wishes for key in wish.group if key not in worker.resident]
            if worker.moving is not None or not missing:
                continue
            held = sorted(worker.resident, key=lambda key: worker.resident[key].since_s)
            while held and not worker.capacity.fits([state.size_bytes(key) for key in (*held, missing[0])]):
                actions.append(Evict(worker.name, held.pop(0)))
            if worker.capacity.fits([state.size_bytes(key) for key in (*held, missing[0])]):
                actions.append(Fetch(worker.name, missing[0]))
        return PlacementDecision(tuple(actions), now_s + 0.01)


class Idle:
    """Decides nothing, ever."""

    name = "idle"

    def decide(self, state: PlacementState, now_s: float) -> PlacementDecision:
        return PlacementDecision()


_HERE = "tests.unit.placement.test_every_policy"
EVERY = (*PLACEMENT_POLICIES, f"{_HERE}:Eager")
GROUPS: tuple[GroupKeys, ...] = (("a",), ("b",), ("c", "d"), ("a", "e"), ("f", "g", "h"), ("i",))


class World:
    """Workers that do as they are told, at random moments; it complains where they are told too much."""

    def __init__(self, policy: PlacementPolicy, seed: int) -> None:
        self.random = Random(seed)
        self.core = Placement(policy)
        self.now_s = 0.0
        self.sizes = {key: self.random.choice((5, 10, 30)) for key in "abcdefghi"}
        self.capacities = {"u": Capacity(40, 3), "v": Capacity(0, 2), "w": Capacity(60, 0)}
        self.held: dict[str, set[str]] = {}
        self.moving: dict[str, Step] = {}
        for group in GROUPS:
            self.core.serve(str(group), group, 0.2, [lambda rows: 0.01 + 0.001 * rows] * len(group), 16)
        for name in self.capacities:
            self.up(name)

    def up(self, name: str) -> None:
        self.held[name] = set()
        self.core.worker_up(name, self.capacities[name], "cpu", GROUPS)

    def ask(self) -> None:
        due_s = (self.now_s + 0.01, self.now_s + 0.3)
        waiting = WaitingRows(2, due_s, 0, due_s[1:])
        waited_for = {group: waiting for group in GROUPS if self.random.random() < 0.3}
        for _ in range(100):
            state = self.core.state(self.now_s, waited_for)
            assert PlacementState.from_json(json.loads(json.dumps(state.to_json()))) == state
            steps, _ = self.core.steps(self.now_s, waited_for)
            self.core.take_ended()
            assert self.core.take_fault() is None
            if not steps:
                return
            for step in steps:
                if step.abort:
                    given_up = self.moving.pop(step.worker)
                    assert given_up.load == step.abort
                    for key in given_up.evict:
                        self.held[step.worker].discard(key)
                        self.core.evicted(step.worker, key)
                    self.core.over(step.worker)
                    continue
                assert step.worker not in self.moving, "a link moves one model at a time"
                assert self.held[step.worker].issuperset(step.evict)
                assert self.core.resident(step.worker).isdisjoint(step.evict), "what leaves is out of sight"
                self.moving[step.worker] = step
        raise AssertionError("it never came to an end")

    def go_on(self) -> None:
        """One of the links ends what it does."""
        name = self.random.choice(sorted(self.moving))
        step, held = self.moving.pop(name), self.held[name]
        for key in step.evict:
            held.discard(key)
            self.core.evicted(name, key)
        key = step.load
        capacity = self.capacities[name]
        if key and capacity.fits([self.sizes[each] for each in held | {key}]):
            held.add(key)
            self.core.loaded(self.now_s, name, key, self.sizes[key], 0.05)
        elif key and not self.core.refused(name, key, self.sizes[key]):
            raise AssertionError(f"{name} was told to load {key} without room, though its size was known")
        self.core.over(name)

    def die(self, name: str) -> None:
        self.core.worker_down(name)
        step = self.moving.pop(name, None)
        if step is not None and step.load:
            self.core.failed(name, step.load, RuntimeError("its worker died"), died=True)
        self.up(name)

    def run(self, turns: int) -> None:
        for _ in range(turns):
            self.now_s += self.random.choice((0.0, 0.01, 0.3))
            what = self.random.random()
            if what < 0.4:
                self.core.want(self.now_s, self.random.choice(GROUPS))
            elif what < 0.45:
                self.core.used(self.now_s, self.random.choice(GROUPS), self.now_s)
            elif what < 0.5:
                self.core.arrived(self.now_s, self.random.choice(GROUPS), self.random.choice((1, 20)))
            elif what < 0.53:
                self.die(self.random.choice("uvw"))
            elif what < 0.56:
                self.core.withdraw(self.random.choice(GROUPS))
            elif self.moving:
                self.go_on()
            self.ask()
            for name, held in self.held.items():
                assert self.capacities[name].fits([self.sizes[key] for key in held])
                assert self.core.resident(name) <= held


@pytest.mark.parametrize("policy", EVERY)
@pytest.mark.parametrize("seed", range(8))
def test_no_worker_is_told_more_than_it_can_hold_or_its_link_can_move(policy: str, seed: int) -> None:
    World(placement_named(policy), seed).run(200)


@pytest.mark.parametrize("policy", PLACEMENT_POLICIES)
@pytest.mark.parametrize("seed", range(4))
def test_every_wish_comes_true_or_is_known_to_be_impossible(policy: str, seed: int) -> None:
    world = World(placement_named(policy), seed)
    world.run(50)
    for group in GROUPS:
        world.core.want(world.now_s, group)
        for _ in range(200):
            if not world.core.is_wanted(group):
                break
            world.now_s += 0.3
            world.ask()
            if world.moving:
                world.go_on()
        assert not world.core.is_wanted(group)


def busy(placement: str, **fields: Any) -> SimulationResult:
    functions = tuple(
        FunctionLoad(
            name,
            poisson(Random(f"{name}"), 60, 2.0),
            0.3,
            16,
            affine,
            size_bytes=1000,
            bulk_rows=50,
            **fields,
        )
        for name in "abcdef"
    )
    devices = (
        SimulatedDevice("d0", places=2, link_bytes_per_s=50_000, in_flight_limit=2),
        SimulatedDevice("d1", capacity_bytes=2500, in_flight_limit=2),
    )
    return simulate(Workload(functions, devices, 0.02, arbitration=MostInTime(), placement=placement))


@pytest.mark.parametrize("policy", EVERY)
def test_a_simulation_ends_with_every_row_accounted_for_and_is_the_same_each_time(policy: str) -> None:
    result = busy(policy)
    for one in result.functions.values():
        assert one.offered == one.good + one.late + one.refused
        assert one.bulk_answered == 50
    assert result.swaps > 0
    assert result.to_json() == busy(policy).to_json()


def test_a_policy_that_brings_nothing_leaves_rows_refused_and_not_lost() -> None:
    result = busy(f"{_HERE}:Idle", refuses=False)
    assert result.swaps == 0
    for one in result.functions.values():
        assert one.offered <= one.good + one.late + one.refused
    assert result.total.refused > 0


@pytest.mark.parametrize("policy", EVERY)
def test_no_model_leaves_while_a_batch_runs_on_it(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    evicted, left = Placement.evicted, []

    def checked(core: Placement, worker: str, key: str) -> None:
        assert key not in core.state(1e6, {}).running[worker]
        left.append(key)
        evicted(core, worker, key)

    monkeypatch.setattr(Placement, "evicted", checked)
    busy(policy)
    assert left
