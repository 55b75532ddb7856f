"""The contract of capacity policies: which copies of which variants run, and on how many workers.

Pure: a policy sees a `Fleet`, plain values with their time, and answers with actions and with what it
remembers from then on. Who carries them out, the live server or a simulator, asks every `Policy.every_s`,
tells in the next `Fleet` what has become of the actions, and keeps the state (plain JSON values).

The rules that whoever carries out may rely on, and `checked` enforces:
- `Upgrade` and `Downgrade` make before they break: the old copies leave when the new one is ready.
- A function that has a copy is never left without one that is ready or will be.
- Workers of a kind stay within its least and most.

Sources: INFaaS (Romero et al.), sections 5 and 6.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal, Protocol

__all__ = [
    "ACTIONS",
    "Action",
    "Copy",
    "Decision",
    "DeviceKind",
    "Downgrade",
    "Drop",
    "Fleet",
    "FunctionLoad",
    "MakePolicy",
    "Policy",
    "Replicate",
    "State",
    "Upgrade",
    "Variant",
    "Worker",
    "WorkerDown",
    "WorkerUp",
    "action_from_json",
    "action_to_json",
    "checked",
]

State = Mapping[str, Any]
"""What a policy remembers: plain JSON values. {} at first."""

GB = 1e9


# ── what a policy sees ───────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """One kind of worker, what it costs, and how many of it there may be.

    price_per_gb_s: of a copy that lies on such a device. price_per_hour: of a worker, whatever it holds.
    warm_price_per_gb_s: of a copy in the worker's host memory. memory_bytes, join_s: of a worker that is not
    there yet; join_s: from when it is wanted until it is ready for copies.
    """

    name: str
    least: int
    most: int
    join_s: float = 0.0
    memory_bytes: int = 0  # 0 = not bounded
    price_per_gb_s: float = 0.0
    price_per_hour: float = 0.0
    warm_price_per_gb_s: float = 0.0


@dataclass(frozen=True)
class Variant:
    """One way to run a model. profile: (rows, seconds) of measured batches, rows ascending; the last row
    count is the most that it takes. warm_load_s: from host memory. accuracy: on held-out rows; None = not
    measured."""

    name: str
    function: str
    device: str
    profile: tuple[tuple[int, float], ...]
    size_bytes: int
    load_s: float
    warm_load_s: float | None = None  # None = as long as from disk
    accuracy: float | None = None

    @property
    def max_batch(self) -> int:
        """Rows of the largest batch."""
        return self.profile[-1][0]

    @cached_property
    def rows_per_s(self) -> float:
        """Of one copy that has its worker for itself, in the measured batches that give most."""
        return max(rows / seconds for rows, seconds in self.profile)

    @cached_property
    def _best(self) -> dict[float, tuple[float, float]]:
        return {}

    def best_within(self, limit_s: float) -> tuple[float, float]:
        """Rows/s of one copy in the batches that give most and take at most so long each, and their seconds;
        in batches of one row where none is as short."""
        if limit_s not in self._best:
            largest = max(1, self.largest_within(limit_s))
            sizes = (largest, *(rows for rows, _ in self.profile if rows <= largest))
            seconds, best = max(
                ((self.batch_s(rows), rows) for rows in sizes), key=lambda one: one[1] / one[0]
            )
            self._best[limit_s] = best / seconds, seconds
        return self._best[limit_s]

    def batch_s(self, rows: int) -> float:
        """l̂: seconds of a batch, piecewise linear between what was measured."""
        before = self.profile[0]
        if rows <= before[0]:
            return before[1]
        for point in self.profile[1:]:
            if rows <= point[0]:
                share = (rows - before[0]) / (point[0] - before[0])
                return before[1] + share * (point[1] - before[1])
            before = point
        return before[1] * rows / before[0]

    def largest_within(self, goal_s: float) -> int:
        """Rows of the largest batch that takes at most so long; 0 = not even one row does."""
        least, most = 0, self.max_batch
        while least < most:
            middle = (least + most + 1) // 2
            if self.batch_s(middle) <= goal_s:
                least = middle
            else:
                most = middle - 1
        return least


@dataclass(frozen=True, slots=True)
class FunctionLoad:
    """Rows that the same variants may answer: of one function, or of all that share a model.

    goal_s: the strictest of their goals; inf = none. arrived, late: rows since the server has started, so
    that nothing is lost if a policy is asked late; late: over the goal, refused ones among them. waiting:
    rows in the queue now. min_accuracy: variants below it are not for these rows.
    """

    name: str
    goal_s: float
    arrived: int
    late: int = 0
    waiting: int = 0
    min_accuracy: float | None = None


WorkerState = Literal["joining", "ready", "leaving"]
CopyState = Literal["loading", "ready", "leaving", "warm"]


@dataclass(frozen=True, slots=True)
class Worker:
    """A process that owns a device and runs one batch at a time, of whichever of its copies.

    busy: share of its time that batches took of late. since_s: when its state began. blocked: it may not be
    ended, as somebody else (a training trial) works on it.
    """

    name: str
    device: str
    state: WorkerState = "ready"
    memory_bytes: int = 0  # 0 = not bounded
    busy: float = 0.0
    since_s: float = 0.0
    blocked: bool = False


@dataclass(frozen=True, slots=True)
class Copy:
    """A variant on a worker. warm: in its host memory alone, from where it loads quickly. ready_s: when it
    is expected to be ready, where it loads."""

    variant: str
    worker: str
    state: CopyState = "ready"
    ready_s: float = 0.0


@dataclass(frozen=True)
class Fleet:
    """All that a policy sees, at `now_s` of any clock that only goes on."""

    now_s: float
    functions: tuple[FunctionLoad, ...]
    variants: Mapping[str, Variant]
    devices: Mapping[str, DeviceKind]
    workers: Mapping[str, Worker]
    copies: tuple[Copy, ...] = ()

    @cached_property
    def by_function(self) -> Mapping[str, tuple[Copy, ...]]:
        """The copies of each function's variants, in their order."""
        found: dict[str, list[Copy]] = {one.name: [] for one in self.functions}
        for copy in self.copies:
            found.setdefault(self.variants[copy.variant].function, []).append(copy)
        return {name: tuple(copies) for name, copies in found.items()}

    @cached_property
    def by_worker(self) -> Mapping[str, tuple[Copy, ...]]:
        """The copies on each worker's device: ready, on their way there, and leaving; not the warm ones."""
        found: dict[str, list[Copy]] = {name: [] for name in self.workers}
        for copy in self.copies:
            if copy.state != "warm":
                found[copy.worker].append(copy)
        return {name: tuple(copies) for name, copies in found.items()}

    @cached_property
    def _variants_of(self) -> Mapping[str, tuple[Variant, ...]]:
        """By function, of kinds of devices that there may be; the cheapest copy first."""
        found: dict[str, list[Variant]] = {}
        for one in self.variants.values():
            if one.device in self.devices:
                found.setdefault(one.function, []).append(one)
        return {
            name: tuple(sorted(all_, key=lambda one: (self.copy_price_per_s(one), one.rows_per_s, one.name)))
            for name, all_ in found.items()
        }

    def choices(self, function: FunctionLoad) -> tuple[Variant, ...]:
        """The variants that may answer its rows: accurate enough, of a device kind that there may be, and
        one row within the goal; if none is, the quickest. The cheapest copy first."""
        least = function.min_accuracy
        able = [
            one
            for one in self._variants_of.get(function.name, ())
            if least is None or one.accuracy is None or one.accuracy >= least
        ]
        quick = [one for one in able if one.batch_s(1) <= function.goal_s]
        if not quick and able:
            quick = [min(able, key=lambda one: (one.batch_s(1), one.name))]
        return tuple(quick)

    def copy_price_per_s(self, variant: Variant, state: CopyState = "ready") -> float:
        """What a copy costs a second, without its worker."""
        kind = self.devices[variant.device]
        per_gb_s = kind.warm_price_per_gb_s if state == "warm" else kind.price_per_gb_s
        return per_gb_s * variant.size_bytes / GB

    def price_per_s(self) -> float:
        """What all of it costs a second: copies by their bytes, workers by the hour."""
        copies = sum(self.copy_price_per_s(self.variants[one.variant], one.state) for one in self.copies)
        workers = sum(self.devices[one.device].price_per_hour for one in self.workers.values())
        return copies + workers / 3600

    def free_bytes(self, worker: Worker) -> float:
        """Room on its device; inf = not bounded."""
        if not worker.memory_bytes:
            return math.inf
        used = sum(self.variants[one.variant].size_bytes for one in self.by_worker[worker.name])
        return worker.memory_bytes - used

    def to_json(self) -> dict[str, Any]:
        """Plain values, of which `from_json` makes the same fleet. An endless goal is None."""
        return {
            "now_s": self.now_s,
            "functions": [
                {**asdict(one), "goal_s": one.goal_s if one.goal_s < math.inf else None}
                for one in self.functions
            ],
            "variants": [{**asdict(one), "profile": list(one.profile)} for one in self.variants.values()],
            "devices": [asdict(one) for one in self.devices.values()],
            "workers": [asdict(one) for one in self.workers.values()],
            "copies": [asdict(one) for one in self.copies],
        }

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Fleet:
        """What `to_json` has written. Raises KeyError, TypeError for anything else."""
        functions = (
            FunctionLoad(**{**one, "goal_s": math.inf if one["goal_s"] is None else one["goal_s"]})
            for one in plain["functions"]
        )
        variants = (
            Variant(**{**one, "profile": tuple((rows, seconds) for rows, seconds in one["profile"])})
            for one in plain["variants"]
        )
        return cls(
            now_s=plain["now_s"],
            functions=tuple(functions),
            variants={one.name: one for one in variants},
            devices={one["name"]: DeviceKind(**one) for one in plain["devices"]},
            workers={one["name"]: Worker(**one) for one in plain["workers"]},
            copies=tuple(Copy(**one) for one in plain["copies"]),
        )


# ── what it answers ──────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Replicate:
    """One more copy of the variant, on that worker; from its host memory, where one is there."""

    kind: ClassVar[str] = "replicate"
    variant: str
    worker: str
    reason: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Warm:
    """A copy into the worker's host memory, from where it loads quickly when it is wanted."""

    kind: ClassVar[str] = "warm"
    variant: str
    worker: str
    reason: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Upgrade:
    """A copy of a variant that takes more rows; when it is ready, those of `instead_of` leave.

    instead_of: (variant, worker). keep_warm: they stay in host memory.
    """

    kind: ClassVar[str] = "upgrade"
    variant: str
    worker: str
    instead_of: tuple[tuple[str, str], ...]
    keep_warm: bool = False
    reason: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Downgrade:
    """A copy of a cheaper variant; when it is ready, those of `instead_of` leave. Fields as of `Upgrade`."""

    kind: ClassVar[str] = "downgrade"
    variant: str
    worker: str
    instead_of: tuple[tuple[str, str], ...]
    keep_warm: bool = False
    reason: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Drop:
    """The copy takes no more rows, finishes those it has, and leaves. keep_warm: it stays in host
    memory. A copy that is in host memory alone leaves that."""

    kind: ClassVar[str] = "drop"
    variant: str
    worker: str
    keep_warm: bool = False
    reason: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class WorkerUp:
    """One more worker of the kind."""

    kind: ClassVar[str] = "worker_up"
    device: str
    reason: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class WorkerDown:
    """The worker takes no new rows, finishes, and ends. What it alone holds is elsewhere first."""

    kind: ClassVar[str] = "worker_down"
    worker: str
    reason: str = field(default="", compare=False)


Action = Replicate | Warm | Upgrade | Downgrade | Drop | WorkerUp | WorkerDown
ACTIONS: Mapping[str, type[Action]] = {
    one.kind: one for one in (Replicate, Warm, Upgrade, Downgrade, Drop, WorkerUp, WorkerDown)
}


@dataclass(frozen=True, slots=True)
class Decision:
    """actions: in their order; () = nothing. state: what is remembered from now on."""

    actions: tuple[Action, ...]
    state: State


class Policy(Protocol):
    """How capacity follows the load. `every_s`: how often it is asked at least; oftener does no harm."""

    name: str
    every_s: float

    def decide(self, fleet: Fleet, state: State) -> Decision:
        """What to do now. The same fleet and state give the same decision."""
        ...


MakePolicy = Callable[[], Policy]


def action_to_json(action: Action) -> dict[str, Any]:
    """Plain values, `kind` among them."""
    plain = {"kind": action.kind, **asdict(action)}
    if "instead_of" in plain:
        plain["instead_of"] = [list(place) for place in plain["instead_of"]]
    return plain


def action_from_json(plain: Mapping[str, Any]) -> Action:
    """What `action_to_json` has written. Raises KeyError, TypeError for anything else."""
    values = {name: value for name, value in plain.items() if name != "kind"}
    if "instead_of" in values:
        values["instead_of"] = tuple((variant, worker) for variant, worker in values["instead_of"])
    return ACTIONS[plain["kind"]](**values)


# ── what may be done ─────────────────────────────────────────────────────────────────────────────────


def checked(fleet: Fleet, actions: Iterable[Action]) -> tuple[tuple[Action, ...], tuple[str, ...]]:
    """The actions that may be done, and why each of the others may not.

    For whoever carries out decisions of anybody's policy: a copy where none is (or that is there already), a
    worker that is not ready, no room, the last copy of a function, a worker less than the least or one more
    than the most.
    """
    allowed: list[Action] = []
    refused: list[str] = []
    ledger = _Ledger(fleet)
    for action in actions:
        fault = ledger.fault(action)
        if fault:
            refused.append(f"{action.kind}: {fault}")
        else:
            ledger.take(action)
            allowed.append(action)
    return tuple(allowed), tuple(refused)


class _Ledger:
    """What is there while actions are taken one after the other."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._copies = {(one.variant, one.worker): one.state for one in fleet.copies}
        self._free = {worker.name: fleet.free_bytes(worker) for worker in fleet.workers.values()}
        self._leaving = {one.name for one in fleet.workers.values() if one.state == "leaving"}
        self._coming = dict.fromkeys(fleet.devices, 0)

    def fault(self, action: Action) -> str:
        """Why it may not be done; "" = it may."""
        if isinstance(action, WorkerUp):
            return self._no_worker_more(action.device)
        if isinstance(action, WorkerDown):
            return self._no_worker_less(action.worker)
        place = (action.variant, action.worker)
        if isinstance(action, Drop):
            if self._copies.get(place) in (None, "leaving"):
                return f"no copy of {action.variant} is on {action.worker}"
            return "" if self._copies[place] == "warm" else self._last_copy(place)
        return self._no_copy_more(action)

    def take(self, action: Action) -> None:
        """It will be done."""
        if isinstance(action, WorkerUp):
            self._coming[action.device] += 1
        elif isinstance(action, WorkerDown):
            self._leaving.add(action.worker)
        elif isinstance(action, Drop):
            self._copies[action.variant, action.worker] = "leaving"
        elif isinstance(action, Warm):
            self._copies[action.variant, action.worker] = "warm"
        else:
            self._copies[action.variant, action.worker] = "loading"
            self._free[action.worker] -= self._fleet.variants[action.variant].size_bytes
            for place in () if isinstance(action, Replicate) else action.instead_of:
                self._copies[place] = "leaving"

    def _of_kind(self, device: str) -> int:
        there = [one for one in self._fleet.workers.values() if one.device == device]
        return sum(one.name not in self._leaving for one in there) + self._coming[device]

    def _no_worker_more(self, device: str) -> str:
        if device not in self._fleet.devices:
            return f"no device kind {device!r}"
        most = self._fleet.devices[device].most
        return f"{most} workers of {device} are the most" if self._of_kind(device) >= most else ""

    def _no_worker_less(self, name: str) -> str:
        worker = self._fleet.workers.get(name)
        if worker is None or name in self._leaving:
            return f"no worker {name!r} that could leave"
        if worker.blocked:
            return f"{name} is needed by somebody else"
        least = self._fleet.devices[worker.device].least
        return (
            f"{least} workers of {worker.device} are the least"
            if self._of_kind(worker.device) <= least
            else ""
        )

    def _no_copy_more(self, action: Replicate | Warm | Upgrade | Downgrade) -> str:
        variant = self._fleet.variants.get(action.variant)
        worker = self._fleet.workers.get(action.worker)
        if variant is None or worker is None or variant.device != worker.device:
            return f"{action.variant} cannot be on {action.worker}"
        if worker.state != "ready" or action.worker in self._leaving:
            return f"{action.worker} is not ready"
        there = self._copies.get((action.variant, action.worker))
        if there is not None and (there != "warm" or isinstance(action, Warm)):
            return f"a copy of {action.variant} is on {action.worker} already"
        if isinstance(action, Warm):
            return ""
        if variant.size_bytes > self._free[action.worker]:
            return f"{action.worker} has no room for {action.variant}"
        if isinstance(action, Replicate):
            return ""
        gone = [place for place in action.instead_of if self._copies.get(place) in (None, "leaving", "warm")]
        return f"no copy of {gone[0][0]} is on {gone[0][1]}" if gone else ""

    def _last_copy(self, leaving: tuple[str, str]) -> str:
        variants = self._fleet.variants
        function = variants[leaving[0]].function
        others = (
            place
            for place, state in self._copies.items()
            if state == "ready" and place != leaving and variants[place[0]].function == function
        )
        return "" if any(others) else f"it is the last copy of {function} that is ready"
