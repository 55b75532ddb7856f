"""What a policy could do that knew the load: the cheapest plan of copies over time, found backwards.

Of one function. Each second one of some sets of copies serves: the least of what they cost, of what late rows
cost, and of what it costs to load the next set beside the last. Late rows are estimated as the policy
`forecast` does it, from the rates that rows come by, not from when chance has each come; the plan is then
carried out in the simulator.
"""

from __future__ import annotations

from collections.abc import Sequence

from server.capacity.outlook import tail_share
from server.capacity.policy import (
    Action,
    Decision,
    Downgrade,
    Drop,
    Fleet,
    Replicate,
    State,
    Upgrade,
    Variant,
)
from tests.benchmarks.capacity_fleet import Scene

LATE_ROW = 3.0  # the price of a late row: what `forecast` begins with
_Copies = tuple[str, int]  # of which variant, and how many


class Oracle:
    """Carries out the plan of one scene."""

    name = "oracle"
    every_s = 0.5

    def __init__(self, scene: Scene) -> None:
        self._plan = _plan(scene)

    def decide(self, fleet: Fleet, state: State) -> Decision:
        """What must begin now to be ready when the plan has it."""
        variant, count = state.get("set", self._plan[0])
        for second in range(int(fleet.now_s), min(len(self._plan), int(fleet.now_s) + 10)):
            wanted = self._plan[second]
            if wanted == (variant, count):
                continue
            if fleet.now_s < second - fleet.variants[wanted[0]].load_s - 1e-6:
                break
            actions = _changed(fleet, (variant, count), wanted)
            return Decision(actions, {"set": list(wanted)})
        return Decision((), {"set": [variant, count]})


def _changed(fleet: Fleet, before: _Copies, after: _Copies) -> tuple[Action, ...]:
    there = [(one.variant, one.worker) for one in fleet.copies if one.state in ("ready", "loading")]
    variant = fleet.variants[after[0]]
    places = sorted(name for name, one in fleet.workers.items() if one.device == variant.device)
    if before[0] == after[0]:
        if after[1] < before[1]:
            return tuple(Drop(*place) for place in there[after[1] :])
        free = [name for name in places if (after[0], name) not in there]
        return tuple(Replicate(after[0], name) for name in free[: after[1] - before[1]])
    more = [Replicate(after[0], name) for name in places[: after[1] - 1]]
    dearer = variant.size_bytes >= fleet.variants[before[0]].size_bytes
    make = Upgrade if dearer else Downgrade
    return (*more, make(after[0], places[after[1] - 1], tuple(there)))


def _plan(scene: Scene) -> list[_Copies]:
    """The set of each second. Bellman's principle, from the end to the beginning."""
    (function,) = scene.functions
    first = (scene.copies[0].variant, 1)
    sets = [first] + [
        (one.name, count)
        for one in scene.variants.values()
        for count in range(1, (3 if one.device == "cpu" else 1) + 1)
        if (one.name, count) != first
    ]
    costs = [[_second(scene, one, rate) for one in sets] for rate in scene.rates[function]]
    changes = [[_change(scene, before, after) for after in sets] for before in sets]
    value = [0.0] * len(sets)
    following: list[list[int]] = []
    for second in reversed(range(len(costs))):
        ahead = [costs[second][place] + value[place] for place in range(len(sets))]
        chosen = [
            _least([change + worth for change, worth in zip(row, ahead, strict=True)]) for row in changes
        ]
        value = [changes[place][best] + ahead[best] for place, best in enumerate(chosen)]
        following.append(chosen)
    plan: list[_Copies] = []
    place = 0
    for chosen in reversed(following):
        place = chosen[place] if plan else 0
        plan.append(sets[place])
    return plan


def _least(values: Sequence[float]) -> int:
    return min(range(len(values)), key=values.__getitem__)


def _price(scene: Scene, copies: _Copies) -> float:
    variant = scene.variants[copies[0]]
    return copies[1] * scene.devices[variant.device].price_per_gb_s * variant.size_bytes / 1e9


def _change(scene: Scene, before: _Copies, after: _Copies) -> float:
    """What loads is paid for beside what serves meanwhile."""
    variant = scene.variants[after[0]]
    if before[0] == after[0]:
        more = max(0, after[1] - before[1])
        return _price(scene, (after[0], more)) * variant.load_s
    return _price(scene, after) * variant.load_s


def _second(scene: Scene, copies: _Copies, rate: float) -> float:
    """What a second at that rate costs with these copies."""
    variant: Variant = scene.variants[copies[0]]
    (goal_s,) = scene.functions.values()
    gives = copies[1] * variant.rows_per_s
    late = max(0.0, rate - gives)
    if 0 < rate < gives:
        slack_s = max(0.0, goal_s - variant.batch_s(variant.max_batch))
        late += rate * tail_share(rate / gives, copies[1], gives * slack_s)
    return _price(scene, copies) + LATE_ROW * late
