"""Which models a device begins with: squishy bin packing (Nexus, SOSP 2019), with memory.

Pure. A *session* is what is asked of the models of one function: rows a second, within a goal. Its batch is
squishy: rows gather for a *duty cycle*, then run as one batch, so that a shorter cycle means smaller batches,
which take more of the device's time a row. A row waits for a cycle at most and then for its batch; both
together are within its goal.

    saturate   a session that fills devices by itself gets whole devices
    residue    the others, the one that takes most time first, each to the device that it fills best: the
               cycle there becomes the shortest of all its sessions, and their batches shrink to it

The paper looks for the fewest devices. Ours are given, and their memory bounds what they hold as well: so the
bound of a device's time is not 1 but tried from high to low, and the packing counts by which most rows are
served. With few sessions that spreads them, and copies the busiest where no other model needs the room; with
too many none is left out for want of time, only of memory, those first that are worth least for their size.
A cycle in which no row came costs nothing here: the scheduler that goes on from this keeps no empty turns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from server.placement.policy import Capacity, GroupKeys

__all__ = ["DeviceStart", "Session", "Turn", "by_use", "starting_placement"]

_BOUNDS = 12  # of a device's time that are tried
_LEAST_WORTH = 0.05  # of a row whose goal could wait for a load, or that has none


@dataclass(frozen=True, slots=True)
class Session:
    """What is asked of a group, and what that takes.

    latencies: of each member, seconds of a batch by its rows. load_s: of all members. last_used_s: Unix time.
    """

    latencies: Mapping[str, Callable[[int], float]]
    rows_per_s: float = 0.0
    goal_s: float = math.inf
    max_batch: int = 256
    load_s: float = 0.0
    last_used_s: float = 0.0

    @property
    def group(self) -> GroupKeys:
        """The models that it needs."""
        return tuple(self.latencies)

    def latency_s(self, rows: int) -> float:
        """Of a batch, by all members."""
        return sum(latency_s(rows) for latency_s in self.latencies.values())

    def full_batch(self) -> int:
        """The largest whose rows wait for one such batch and then run in the next, within the goal (≥ 1)."""
        return self._largest(lambda rows: 2 * self.latency_s(rows))

    def cycle_s(self, rows_per_s: float) -> float:
        """The longest duty cycle that the goal allows at that rate."""
        rows = self._largest(lambda rows: self.latency_s(rows) + rows / rows_per_s)
        alone_s = self.latency_s(rows)
        return max(alone_s, min(rows / rows_per_s, self.goal_s - alone_s))

    def batch_rows(self, rows_per_s: float, cycle_s: float) -> int:
        """That gather in a cycle, and no more than end within the goal after it, where that can be met."""
        gathered = max(1, math.ceil(min(self.max_batch, rows_per_s * cycle_s - 1e-9)))
        if cycle_s + self.latency_s(gathered) <= self.goal_s or 2 * self.latency_s(1) > self.goal_s:
            return gathered
        return self._largest(lambda rows: cycle_s + self.latency_s(rows))

    def busy(self, rows_per_s: float, cycle_s: float) -> float:
        """Share of a device's time that it takes."""
        rows = self.batch_rows(rows_per_s, cycle_s)
        return rows_per_s * self.latency_s(rows) / rows

    def _largest(self, takes_s: Callable[[int], float]) -> int:
        low, high = 1, max(1, self.max_batch)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if takes_s(middle) <= self.goal_s else (low, middle - 1)
        return low


@dataclass(frozen=True, slots=True)
class Turn:
    """What a session has of a device: `rows_per_s` of it are served there, `batch_rows` in each cycle."""

    session: Session
    rows_per_s: float
    batch_rows: int


@dataclass(frozen=True, slots=True)
class DeviceStart:
    """What a device begins with. turns: in the order in which their models are best loaded.

    cycle_s: inf where nothing is known to come. busy: the share of its time that is spoken for.
    """

    turns: tuple[Turn, ...] = ()
    cycle_s: float = math.inf
    busy: float = 0.0

    @property
    def groups(self) -> tuple[GroupKeys, ...]:
        """The models, in the order in which they are best loaded."""
        return tuple(turn.session.group for turn in self.turns)


def starting_placement(
    sessions: Iterable[Session],
    sizes: Mapping[str, int],
    devices: Mapping[str, Capacity],
    held: Mapping[str, Collection[str]] | None = None,
) -> dict[str, DeviceStart]:
    """What each device begins with, so that most rows are served within their goals.

    sizes: model → bytes. held: what devices have already; it stays. A group that no device can hold whole is
    divided into its members. Who is worth most for its size is loaded first; sessions for which no rows are
    known to come follow, the last used first.
    """
    if not devices:
        return {}
    units = _valued(_divided(sessions, sizes, devices), sizes, devices)
    first = _pack(units, sizes, devices, held or {}, math.inf)
    peak = max(node.busy for node in first)
    bounds = [peak * (2 * len(devices)) ** (-step / _BOUNDS) for step in range(_BOUNDS + 1)] if peak else []
    tried = [first, *(_pack(units, sizes, devices, held or {}, bound) for bound in bounds)]
    best = max(tried, key=_goodness)
    return {node.name: _start_of(node) for node in best}


def by_use(sessions: Iterable[Session]) -> list[Session]:
    """Those with most rows first; of equals, the last used."""
    return sorted(sessions, key=lambda session: (session.rows_per_s, session.last_used_s), reverse=True)


@dataclass(frozen=True, slots=True)
class _Unit:
    """A session, what its being there is worth, and the share of all memory that it takes."""

    session: Session
    worth: float  # of a second
    share: float

    @property
    def density(self) -> tuple[float, float]:
        return self.worth / max(self.share, 1e-12), self.session.last_used_s


@dataclass(slots=True, eq=False)
class _Node:
    """A device while it is packed."""

    name: str
    capacity: Capacity
    keys: set[str]
    turns: list[tuple[_Unit, float]] = field(default_factory=list)  # with rows a second
    cycle_s: float = math.inf
    busy: float = 0.0

    def has_room(self, group: GroupKeys, sizes: Mapping[str, int]) -> bool:
        return self.capacity.fits([sizes.get(key, 0) for key in self.keys.union(group)])

    def has(self, unit: _Unit) -> bool:
        return any(other is unit for other, _ in self.turns)

    def merged(self, unit: _Unit, rows_per_s: float, own_s: float) -> tuple[float, float]:
        """The cycle, and how busy it would be, with that session too; its goal allows a cycle of `own_s`."""
        if own_s >= self.cycle_s:  # the batches of the others stay as they are
            return self.cycle_s, self.busy + unit.session.busy(rows_per_s, self.cycle_s)
        turns = (*self.turns, (unit, rows_per_s))
        return own_s, sum(unit.session.busy(rate, own_s) for unit, rate in turns if rate)

    def add(self, unit: _Unit, rows_per_s: float) -> None:
        if rows_per_s:
            own_s = unit.session.cycle_s(rows_per_s)
            self.cycle_s, self.busy = self.merged(unit, rows_per_s, own_s)
        self.turns.append((unit, rows_per_s))
        self.keys.update(unit.session.group)


def _divided(
    sessions: Iterable[Session], sizes: Mapping[str, int], devices: Mapping[str, Capacity]
) -> list[Session]:
    found: list[Session] = []
    for session in sessions:
        held = [sizes.get(key, 0) for key in session.group]
        if len(session.group) < 2 or any(capacity.fits(held) for capacity in devices.values()):
            found.append(session)
        else:
            load_s = session.load_s / len(session.group)
            parts = [{key: latency_s} for key, latency_s in session.latencies.items()]
            found += [replace(session, latencies=part, load_s=load_s) for part in parts]
    return found


def _valued(
    sessions: Sequence[Session], sizes: Mapping[str, int], devices: Mapping[str, Capacity]
) -> list[_Unit]:
    coming = [session for session in sessions if session.rows_per_s > 0]
    mean_s = sum(session.load_s for session in coming) / max(1, len(coming))
    behind_s = mean_s * max(0, len(coming) - 1) / len(devices)  # others whose loads would come first
    memory = sum(capacity.capacity_bytes for capacity in devices.values())
    places = sum(capacity.max_models for capacity in devices.values())
    units = []
    for session in sessions:
        absent_s = 2 * session.load_s + behind_s
        late_s = absent_s + session.latency_s(4) - session.goal_s
        missed = 1.0 if not absent_s else min(1.0, max(_LEAST_WORTH, late_s / absent_s))
        in_bytes = sum(sizes.get(key, 0) for key in session.group) / memory if memory else 0.0
        in_places = len(session.group) / places if places else 0.0
        units.append(_Unit(session, session.rows_per_s * missed, max(in_bytes, in_places)))
    return sorted(units, key=lambda unit: unit.density, reverse=True)


def _pack(
    units: Sequence[_Unit],
    sizes: Mapping[str, int],
    devices: Mapping[str, Capacity],
    held: Mapping[str, Collection[str]],
    bound: float,
) -> list[_Node]:
    """One packing, in which devices are busy up to `bound` where that can be. units: the worthiest first."""
    nodes = [_Node(name, capacity, set(held.get(name, ()))) for name, capacity in devices.items()]
    residues = []
    for unit in units:
        if rate := unit.session.rows_per_s:
            residues.append((unit, _saturate(nodes, unit, rate, sizes, bound)))
    for unit, rate in _in_turn(residues, sizes, devices):
        _place(nodes, unit, rate, sizes, bound)
    for unit in units:
        group = unit.session.group
        if not unit.session.rows_per_s and not any(node.keys.issuperset(group) for node in nodes):
            room = [node for node in nodes if node.has_room(group, sizes)]
            if room:
                min(room, key=lambda node: (len(node.keys), node.busy)).add(unit, 0.0)
    return nodes


def _saturate(
    nodes: Sequence[_Node], unit: _Unit, rate: float, sizes: Mapping[str, int], bound: float
) -> float:
    """Devices that hold it already serve it; such that it fills alone are its own. The rate that is left."""
    rows = unit.session.full_batch()
    whole = bound * rows / max(unit.session.latency_s(rows), 1e-9)
    for node in nodes:
        if rate > 0 and node.keys.issuperset(unit.session.group):
            served = min(rate, whole)
            node.add(unit, served)
            rate -= served
    for node in nodes:
        if rate < whole:
            break
        if not node.turns and node.has_room(unit.session.group, sizes):
            node.add(unit, whole)
            rate -= whole
    return rate


def _in_turn(
    residues: Iterable[tuple[_Unit, float]], sizes: Mapping[str, int], devices: Mapping[str, Capacity]
) -> list[tuple[_Unit, float]]:
    """Those that memory has room for, who take most time first; then the others, the worthiest first."""
    left = [(unit, rate) for unit, rate in residues if rate > 1e-9 * unit.session.rows_per_s]
    used = 0.0
    counted: list[tuple[_Unit, float]] = []
    beyond: list[tuple[_Unit, float]] = []
    for unit, rate in left:
        used += unit.share
        (counted if used <= 1.0 else beyond).append((unit, rate))

    def alone(one: tuple[_Unit, float]) -> float:
        unit, rate = one
        return unit.session.busy(rate, unit.session.cycle_s(rate))

    return [*sorted(counted, key=alone, reverse=True), *beyond]


def _place(nodes: Sequence[_Node], unit: _Unit, rate: float, sizes: Mapping[str, int], bound: float) -> None:
    room = [node for node in nodes if node.has_room(unit.session.group, sizes) and not node.has(unit)]
    if not room:
        return
    own_s = unit.session.cycle_s(rate)
    would_be = {node.name: node.merged(unit, rate, own_s)[1] for node in room}
    within = [node for node in room if node.turns and would_be[node.name] <= bound]
    empty = [node for node in room if not node.turns]
    if within:
        best = max(within, key=lambda node: would_be[node.name])
    elif empty:
        best = empty[0]
    else:
        best = min(room, key=lambda node: would_be[node.name])
    best.add(unit, rate)


def _goodness(nodes: Sequence[_Node]) -> tuple[float, float, float]:
    """First that models are anywhere: a copy in another's place would leave for it at its first row."""
    there = {id(unit): unit.worth for node in nodes for unit, _ in node.turns}
    return (
        round(sum(there.values()), 9),
        round(sum(map(_served, nodes)), 9),
        -max(node.busy for node in nodes),
    )


def _served(node: _Node) -> float:
    """What of a second's worth the device can do."""
    share = min(1.0, 1.0 / node.busy) if node.busy else 1.0
    return share * sum(
        unit.worth * rate / unit.session.rows_per_s for unit, rate in node.turns if unit.session.rows_per_s
    )


def _start_of(node: _Node) -> DeviceStart:
    def rank(turn: tuple[_Unit, float]) -> tuple[float, tuple[float, float]]:
        unit, rate = turn
        part = rate / unit.session.rows_per_s if unit.session.rows_per_s else 0.0
        return part * unit.density[0], unit.density

    turns = tuple(
        Turn(unit.session, rate, unit.session.batch_rows(rate, node.cycle_s) if rate else 0)
        for unit, rate in sorted(node.turns, key=rank, reverse=True)
    )
    return DeviceStart(turns, node.cycle_s, node.busy)
