"""The links of simulated devices: models leave and come over simulated time, while the devices compute.

The very placement that serves decides (`server.placement.core`); this is its shell here. A load takes what it
is told to; one that is given up leaves the link idle at once; a model leaves when its last batch is over.
Knows no queue, and of batches only how many of each model are under way.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from server.placement.core import Placement, Step
from server.placement.policy import Capacity, GroupKeys, PlacementPolicy, WaitingRows

__all__ = ["LinkedDevice", "SimulatedLinks"]

_LONG_AGO_S = -3600.0  # when what is resident at the beginning was loaded


@dataclass(frozen=True, slots=True)
class LinkedDevice:
    """What a device may hold, 0 = no limit; `load_s`: model → what loading it there takes.

    told_s: the same as the placement is told it; None = the truth. kind: "" = its name. node: where it is; a
    load begins when the model is there, which it is already if another device of the node holds it.
    """

    name: str
    places: int
    capacity_bytes: int
    load_s: Mapping[str, float]
    resident: tuple[str, ...] | None = None  # at the beginning, least recently used first; None = what fits
    told_s: Mapping[str, float] | None = None
    kind: str = ""
    node: str = ""
    is_far: bool = False


class SimulatedLinks:
    """`later(at_s, step)` has `moved` called then; `show(now_s, device, resident)` informs the scheduler.

    sizes: model → bytes. nodes: node → bytes a second of its link, over which models come one by one.
    groups: what is served, in the order in which devices are filled at the beginning.
    tells_moves: `show` when a link gets busy and idle, too.
    """

    def __init__(
        self,
        policy: PlacementPolicy,
        devices: list[LinkedDevice],
        groups: list[GroupKeys],
        sizes: Mapping[str, int],
        later: Callable[[float, Step], None],
        show: Callable[[float, str, frozenset[str]], None],
        *,
        tells_moves: bool = False,
        nodes: Mapping[str, float] | None = None,
        spread: bool = False,
    ) -> None:
        self._core = Placement(policy, apart=True, spread=spread, workers=len(devices))
        self._devices = {device.name: device for device in devices}
        self._groups = groups
        self._sizes = sizes
        self._later = later
        self._show = show
        self._tells_moves = tells_moves
        self._nodes = nodes or {}
        self._node_free_s = dict.fromkeys(self._nodes, -math.inf)
        self._began_s: dict[str, float] = {}  # by device: when its load began
        self._running: Counter[tuple[str, str]] = Counter()  # (device, model) → batches
        self._leaving: dict[str, Step] = {}  # device → what waits for its last batches
        self._loading: dict[str, Step] = {}  # device → what comes
        self._ask_at_s = -math.inf  # when the placement is to be asked: at once where something has changed
        self.loads = 0  # since the beginning
        for key, size_bytes in sizes.items():
            self._core.know(key, size_bytes)

    def serve(
        self,
        name: str,
        group: GroupKeys,
        goal_s: float,
        latencies_s: Sequence[Callable[[int], float]],
        max_batch: int,
        *,
        in_part: bool = False,
    ) -> None:
        """A function, as the placement's core is told of it."""
        self._core.serve(name, group, goal_s, latencies_s, max_batch, in_part=in_part)

    def fill(self) -> None:
        """What is resident at the beginning."""
        for device in self._devices.values():
            capacity = Capacity(device.capacity_bytes, device.places)
            offers = self._groups if device.resident is None else ()
            kind = device.kind or device.name
            self._core.worker_up(device.name, capacity, kind, offers, node=device.node, is_far=device.is_far)
            for turn, key in enumerate(device.resident or ()):
                self._core.used(_LONG_AGO_S, [key], turn)
                self._arrive(_LONG_AGO_S, Step(device.name, (), key))
        while steps := self._core.steps(_LONG_AGO_S, {})[0]:
            for step in steps:
                for key in step.evict:
                    self._core.evicted(step.worker, key)
                if step.load:
                    self._arrive(_LONG_AGO_S, step)
                self._core.over(step.worker)
        for name in self._devices:
            self._show(0.0, name, self._core.resident(name))

    @property
    def everything_is_everywhere(self) -> bool:
        """Whether every device holds all that is served: then nothing ever moves."""
        return all(self._core.resident(name).issuperset(self._sizes) for name in self._devices)

    def is_moving(self, device: str) -> bool:
        """Whether the device's link is busy."""
        return self._core.is_moving(device)

    def swap_s(self, model: str, device: str) -> float:
        """What loading the model there should take."""
        return self._core.expected_s(model, device)

    def arrived(self, now_s: float, group: GroupKeys, rows: int) -> None:
        """Interactive rows came, let in or not."""
        self._core.arrived(now_s, group, rows)

    def lost(self, group: GroupKeys, rows: int) -> None:
        """Rows were refused."""
        self._core.lost(group, rows)

    def came(self, now_s: float, group: GroupKeys) -> None:
        """Rows came that wait for the group."""
        if self._core.want(now_s, group, by_rows=True):
            self._ask_at_s = now_s

    def sent(self, now_s: float, device: str, group: GroupKeys) -> None:
        """A batch leaves for the device."""
        self._core.used(now_s, group, now_s - _LONG_AGO_S, device)
        self._running.update((device, key) for key in group)

    def over(self, now_s: float, device: str, group: GroupKeys) -> None:
        """A batch is over; what waited for that may leave."""
        self._running.subtract((device, key) for key in group)
        self._core.idle(group, device)
        if device in self._leaving:
            self._go_on(now_s, self._leaving.pop(device))

    def moved(self, now_s: float, step: Step, waited_for: Mapping[GroupKeys, WaitingRows]) -> None:
        """The step's load is over, unless it was given up."""
        if self._loading.get(step.worker) is not step:
            return
        del self._loading[step.worker]
        self._arrive(now_s, step)
        self.loads += 1
        self._core.over(step.worker)
        self._ask_at_s = now_s
        self._changed(now_s, step.worker, waited_for)

    @property
    def ask_at_s(self) -> float:
        """When the placement is to be asked."""
        return self._ask_at_s

    def act(self, now_s: float, waited_for: Mapping[GroupKeys, WaitingRows]) -> bool:
        """Begin what the placement decides: whether anything."""
        steps, self._ask_at_s = self._core.steps(now_s, waited_for)
        for ended in self._core.take_ended():
            if ended.reason == "resident":  # as live: other devices may have room for it too
                self._core.offer(ended.group)
                self._ask_at_s = now_s
        for step in steps:
            if step.abort:
                self._abort(now_s, step.worker)
                continue
            if step.evict or self._tells_moves:
                self._changed(now_s, step.worker, waited_for)
            self._go_on(now_s, step)
        return bool(steps)

    def _go_on(self, now_s: float, step: Step) -> None:
        if any(self._running[step.worker, key] for key in step.evict):
            self._leaving[step.worker] = step
            return
        for key in step.evict:
            self._core.evicted(step.worker, key)
        if step.load:
            self._loading[step.worker] = step
            self._began_s[step.worker] = now_s
            there_s = self._there_s(now_s, self._devices[step.worker], step.load)
            self._later(there_s + self._devices[step.worker].load_s[step.load], step)
        else:
            self._core.over(step.worker)
            self._ask_at_s = now_s
            if self._tells_moves:
                self._show(now_s, step.worker, self._core.resident(step.worker))

    def _there_s(self, now_s: float, device: LinkedDevice, key: str) -> float:
        """When the model is on the device's node."""
        if device.node not in self._nodes or any(
            other.node == device.node and key in self._core.resident(other.name)
            for other in self._devices.values()
        ):
            return now_s
        begins_s = max(now_s, self._node_free_s[device.node])
        there_s = begins_s + self._sizes[key] / self._nodes[device.node]
        self._node_free_s[device.node] = there_s
        return there_s

    def _abort(self, now_s: float, device: str) -> None:
        leaving = self._leaving.get(device)
        if leaving is not None:
            self._leaving[device] = replace(leaving, load="")
        else:
            del self._loading[device]
            self._core.over(device)
            if self._tells_moves:
                self._show(now_s, device, self._core.resident(device))
        self._ask_at_s = now_s

    def _arrive(self, now_s: float, step: Step) -> None:
        device = self._devices[step.worker]
        load_s = (device.load_s if device.told_s is None else device.told_s)[step.load]
        began_s = self._began_s.pop(step.worker, None)
        if device.node in self._nodes and began_s is not None:
            load_s = now_s - began_s
        self._core.loaded(now_s, step.worker, step.load, self._sizes[step.load], load_s)

    def _changed(self, now_s: float, device: str, waited_for: Mapping[GroupKeys, WaitingRows]) -> None:
        self._show(now_s, device, self._core.resident(device))
        for group in waited_for:
            self.came(now_s, group)
