"""A fleet over time, event by event: rows come, workers run batches, copies load, and a policy is asked.

Each worker runs one batch at a time, of the function whose first row is due soonest, as many rows as it takes
and as finish by that row's goal. Rows that no ready copy could answer in time any more are refused, and are
late. A worker loads one copy at a time while it runs batches. Batches take what their profiles say times
`slower`; the scheduler knows that (the server's learns it), the policy knows the profiles alone.
"""

from __future__ import annotations

import heapq
import itertools
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from server.capacity.policy import (
    Action,
    Copy,
    DeviceKind,
    Downgrade,
    Drop,
    Fleet,
    FunctionLoad,
    Policy,
    Replicate,
    Upgrade,
    Variant,
    Warm,
    Worker,
    WorkerDown,
    WorkerUp,
    action_to_json,
    checked,
)

ASKED_EVERY_S = 0.5
_BUSY_S = 2.0  # over which a worker's busy share is taken
_UNDONE_S = 30.0  # an action that another one turns round so soon is a reversal
_UP = ("replicate", "upgrade", "worker_up")


@dataclass(frozen=True)
class Scene:
    """What is there at first, and the rows that come: by function, ascending seconds."""

    functions: Mapping[str, float]  # name → goal in seconds
    variants: Mapping[str, Variant]
    devices: Mapping[str, DeviceKind]
    workers: Sequence[Worker]
    copies: Sequence[Copy]
    arrivals: Mapping[str, Sequence[float]]
    until_s: float
    rates: Mapping[str, Sequence[float]] = field(default_factory=dict)  # rows/s by second, behind the chance


@dataclass
class Outcome:
    """What came of it. actions: (seconds, action as JSON). worker_s: of all workers, joining ones among
    them, by kind. decide_ms: of every time that the policy was asked."""

    cost: float = 0.0
    rows: int = 0
    late: int = 0
    actions: list[tuple[float, dict[str, Any]]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    reversals: int = 0
    decide_ms: list[float] = field(default_factory=list)
    worker_s: dict[str, float] = field(default_factory=dict)

    @property
    def late_share(self) -> float:
        return self.late / max(1, self.rows)


class _Function:
    __slots__ = ("armed", "arrivals", "goal_s", "head", "late", "name", "ready")

    def __init__(self, name: str, goal_s: float, arrivals: Sequence[float]) -> None:
        self.name = name
        self.goal_s = goal_s
        self.arrivals = arrivals
        self.head = 0  # the first row that nobody has taken
        self.late = 0
        self.armed = False  # an event will tell of its next row
        self.ready: dict[str, Variant] = {}  # worker → the quickest variant that is ready there


class _Worker:
    __slots__ = ("busy", "busy_s", "copies", "link_free_s", "recent", "seen", "serves")

    def __init__(self, seen: Worker) -> None:
        self.seen = seen
        self.busy = False
        self.busy_s = 0.0
        self.recent: list[tuple[float, float]] = []  # (when, busy seconds until then)
        self.copies: dict[str, Copy] = {}
        self.serves: dict[str, Variant] = {}  # function → the variant that answers here
        self.link_free_s = 0.0


class FleetSimulation:
    """One run of a scene under a policy."""

    def __init__(self, scene: Scene, policy: Policy, *, slower: float = 1.0) -> None:
        self._scene = scene
        self._policy = policy
        self._slower = slower
        self._state: Mapping[str, Any] = {}
        self._now_s = 0.0
        self._charged_s = 0.0
        self._events: list[tuple[float, int, str, Any]] = []
        self._numbers = itertools.count()
        self._functions = {
            name: _Function(name, goal_s, scene.arrivals[name]) for name, goal_s in scene.functions.items()
        }
        self._workers = {one.name: _Worker(one) for one in scene.workers}
        self._instead: dict[tuple[str, str], tuple[tuple[tuple[str, str], ...], bool]] = {}
        self._last: dict[str, tuple[float, bool]] = {}  # whom an action was about → when, and whether up
        self._profile_s = {
            variant.name: [0.0, *(slower * variant.batch_s(rows) for rows in range(1, variant.max_batch + 1))]
            for variant in scene.variants.values()
        }
        self.outcome = Outcome()
        for copy in scene.copies:
            self._workers[copy.worker].copies[copy.variant] = copy
        for name in self._workers:
            self._serve_anew(name)

    def run(self) -> Outcome:
        """To the end of the scene."""
        for function in self._functions.values():
            self._arm(function)
        self._at(0.0, "ask", None)
        handlers: dict[str, Callable[[Any], None]] = {
            "row": self._row_came,
            "free": self._worker_free,
            "loaded": self._loaded,
            "joined": self._joined,
            "ask": self._ask,
        }
        while self._events and self._events[0][0] <= self._scene.until_s:
            self._now_s, _, kind, what = heapq.heappop(self._events)
            handlers[kind](what)
        self._now_s = self._scene.until_s
        self._charge()
        for function in self._functions.values():
            self.outcome.rows += len(function.arrivals)
            self._refuse(function)
            self.outcome.late += function.late
        return self.outcome

    def _at(self, at_s: float, kind: str, what: object) -> None:
        heapq.heappush(self._events, (at_s, next(self._numbers), kind, what))

    # ── rows ─────────────────────────────────────────────────────────────────────────────────────────

    def _arm(self, function: _Function) -> None:
        """An event for its next row; those that wait already are taken by whichever worker gets free."""
        if function.armed or function.head >= len(function.arrivals):
            return
        at_s = function.arrivals[function.head]
        if at_s <= self._now_s and self._now_s > 0:
            return
        function.armed = True
        self._at(at_s, "row", function)

    def _row_came(self, function: _Function) -> None:
        function.armed = False
        if not function.ready:
            self._refuse(function)
            if function.head < len(function.arrivals) and function.arrivals[function.head] <= self._now_s:
                return  # it waits for a copy
            self._arm(function)
            return
        while function.head < len(function.arrivals) and function.arrivals[function.head] <= self._now_s:
            idle = [name for name in function.ready if not self._workers[name].busy]
            if not idle:
                return
            idle.sort(key=lambda name: self._profile_s[function.ready[name].name][1])
            if not any(self._start(name, function) for name in idle):
                break
        self._arm(function)

    def _worker_free(self, name: str) -> None:
        worker = self._workers.get(name)
        if worker is not None:
            worker.busy = False
            self._find_work(name)

    def _find_work(self, name: str) -> None:
        """The function whose first row is due soonest; if there is none, rows to come are waited for."""
        worker = self._workers[name]
        if worker.busy:
            return
        waiting = []
        for function_name in worker.serves:
            function = self._functions[function_name]
            self._refuse(function)
            if function.head < len(function.arrivals) and function.arrivals[function.head] <= self._now_s:
                waiting.append((function.arrivals[function.head] + function.goal_s, function_name))
        for _, function_name in sorted(waiting):
            if self._start(name, self._functions[function_name]):
                return
        for function_name in worker.serves:
            self._arm(self._functions[function_name])

    def _start(self, name: str, function: _Function) -> bool:
        """A batch, if the first row's goal can still be met here."""
        worker, variant = self._workers[name], function.ready[name]
        took_s = self._profile_s[variant.name]
        first = function.head
        arrived = bisect_right(function.arrivals, self._now_s, first)
        left_s = function.arrivals[first] + function.goal_s - self._now_s
        rows = min(variant.max_batch, arrived - first, bisect_right(took_s, left_s) - 1)
        if rows < 1:
            return False
        function.head += rows
        worker.busy = True
        worker.busy_s += took_s[rows]
        self._at(self._now_s + took_s[rows], "free", name)
        return True

    def _refuse(self, function: _Function) -> None:
        """Rows that nobody can answer in time any more: they are late."""
        soonest_s = min((self._profile_s[one.name][1] for one in function.ready.values()), default=0.0)
        latest_s = self._now_s + soonest_s - function.goal_s
        arrivals, head = function.arrivals, function.head
        while head < len(arrivals) and arrivals[head] < latest_s - 1e-12:
            head += 1
        function.late += head - function.head
        function.head = head

    # ── copies and workers ───────────────────────────────────────────────────────────────────────────

    def _serve_anew(self, name: str) -> None:
        """Who answers there, after a copy has come or gone."""
        worker = self._workers[name]
        for function in worker.serves:
            self._functions[function].ready.pop(name, None)
        worker.serves = {}
        if worker.seen.state != "ready":
            return
        ready = [self._scene.variants[one.variant] for one in worker.copies.values() if one.state == "ready"]
        for variant in sorted(ready, key=lambda one: one.rows_per_s):  # the one that gives most stays
            worker.serves[variant.function] = variant
        for function_name, variant in worker.serves.items():
            self._functions[function_name].ready[name] = variant
        self._find_work(name)

    def _loaded(self, place: tuple[str, str]) -> None:
        variant, name = place
        worker = self._workers.get(name)
        copy = worker.copies.get(variant) if worker else None
        if worker is None or copy is None or copy.state != "loading" or copy.ready_s > self._now_s + 1e-9:
            return
        self._charge()
        worker.copies[variant] = replace(copy, state="ready")
        self._serve_anew(name)
        places, keep_warm = self._instead.pop(place, ((), False))
        for old, where in places:
            self._leave(old, where, keep_warm=keep_warm)

    def _leave(self, variant: str, name: str, *, keep_warm: bool) -> None:
        worker = self._workers.get(name)
        if worker is None or variant not in worker.copies:
            return
        self._charge()
        copy = worker.copies.pop(variant)
        if keep_warm and copy.state != "warm":
            worker.copies[variant] = Copy(variant, name, "warm", self._now_s)
        self._serve_anew(name)

    def _load(self, variant: Variant, name: str) -> None:
        self._charge()
        worker = self._workers[name]
        warm = worker.copies.get(variant.name)
        takes_s = variant.load_s
        if warm is not None and variant.warm_load_s is not None:
            takes_s = variant.warm_load_s + max(0.0, warm.ready_s - self._now_s)
        ready_s = max(self._now_s, worker.link_free_s) + takes_s
        worker.link_free_s = ready_s
        worker.copies[variant.name] = Copy(variant.name, name, "loading", ready_s)
        self._at(ready_s, "loaded", (variant.name, name))

    def _joined(self, name: str) -> None:
        worker = self._workers[name]
        worker.seen = replace(worker.seen, state="ready", since_s=self._now_s)

    def _charge(self) -> None:
        """For the time since something last changed."""
        for_s = self._now_s - self._charged_s
        if for_s <= 0:
            return
        self._charged_s = self._now_s
        self.outcome.cost += for_s * self._fleet().price_per_s()
        for worker in self._workers.values():
            kind = worker.seen.device
            self.outcome.worker_s[kind] = self.outcome.worker_s.get(kind, 0.0) + for_s

    # ── the policy ───────────────────────────────────────────────────────────────────────────────────

    def _ask(self, _: object) -> None:
        self._at(self._now_s + ASKED_EVERY_S, "ask", None)
        for worker in self._workers.values():
            kept = [one for one in worker.recent if one[0] > self._now_s - _BUSY_S - 1e-9]
            since_s, before_s = kept[0] if kept else (0.0, 0.0)
            busy = (worker.busy_s - before_s) / max(ASKED_EVERY_S, self._now_s - since_s)
            worker.recent = [*kept, (self._now_s, worker.busy_s)]
            worker.seen = replace(worker.seen, busy=min(1.0, busy))
        fleet = self._fleet()
        began_s = time.thread_time()
        decision = self._policy.decide(fleet, self._state)
        self.outcome.decide_ms.append(1e3 * (time.thread_time() - began_s))
        self._state = decision.state
        allowed, refused = checked(fleet, decision.actions)
        self.outcome.refused += refused
        for action in allowed:
            self._note(action)
            self._carry_out(action)

    def _fleet(self) -> Fleet:
        functions = []
        for one in self._functions.values():
            arrived = bisect_right(one.arrivals, self._now_s, one.head)
            functions.append(FunctionLoad(one.name, one.goal_s, arrived, one.late, arrived - one.head))
        return Fleet(
            self._now_s,
            tuple(functions),
            self._scene.variants,
            self._scene.devices,
            {name: worker.seen for name, worker in self._workers.items()},
            tuple(copy for worker in self._workers.values() for copy in worker.copies.values()),
        )

    def _carry_out(self, action: Action) -> None:
        variants = self._scene.variants
        if isinstance(action, Upgrade | Downgrade):
            self._instead[action.variant, action.worker] = (action.instead_of, action.keep_warm)
        if isinstance(action, Replicate | Upgrade | Downgrade):
            self._load(variants[action.variant], action.worker)
        elif isinstance(action, Warm):
            self._charge()
            there_s = self._now_s + variants[action.variant].load_s
            copy = Copy(action.variant, action.worker, "warm", there_s)
            self._workers[action.worker].copies[action.variant] = copy
        elif isinstance(action, Drop):
            self._leave(action.variant, action.worker, keep_warm=action.keep_warm)
        elif isinstance(action, WorkerUp):
            self._charge()
            kind = self._scene.devices[action.device]
            name = f"{kind.name}-{next(self._numbers)}"
            self._workers[name] = _Worker(
                Worker(name, kind.name, "joining", kind.memory_bytes, since_s=self._now_s)
            )
            self._at(self._now_s + kind.join_s, "joined", name)
        elif isinstance(action, WorkerDown):
            self._charge()
            for function in self._workers[action.worker].serves:
                self._functions[function].ready.pop(action.worker, None)
            del self._workers[action.worker]

    def _note(self, action: Action) -> None:
        """What was done, and whether it turns round what was done to the same one a short time ago."""
        if isinstance(action, Warm):
            return
        if isinstance(action, Drop) and self._workers[action.worker].copies[action.variant].state == "warm":
            return
        self.outcome.actions.append((round(self._now_s, 3), action_to_json(action)))
        if isinstance(action, WorkerUp):
            whom = action.device
        elif isinstance(action, WorkerDown):
            whom = self._workers[action.worker].seen.device
        else:
            whom = self._scene.variants[action.variant].function
        up = action.kind in _UP
        before = self._last.get(whom)
        if before is not None and before[1] != up and self._now_s - before[0] <= _UNDONE_S:
            self.outcome.reversals += 1
        self._last[whom] = (self._now_s, up)
