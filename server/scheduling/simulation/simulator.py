"""The scheduler against simulated devices: discrete events around the very core that serves.

Time passes only from event to event, so a minute of load takes as long as its decisions. The same load and
seed give the same result to the byte. What is simulated: arrivals, what a batch takes (l(b), jitter), what
a load of a model takes, on a link beside the device (`links.py`), and whether the answers are right, of
functions whose rows are asked of some of their members (`Following`). Knows nothing of HTTP or processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from heapq import heapify, heappop, heappush
from random import Random
from typing import Any

from server.ensemble.selection import Ensemble, SelectionPolicy
from server.placement.policies.by_name import placement_named
from server.placement.policy import GroupKeys, WaitingRows
from server.scheduling.arbitration import Arbitration, least_recently_served
from server.scheduling.bulk_sharing import bulk_sharing_named
from server.scheduling.core import (
    AnswerKnown,
    BatchTimes,
    FunctionSpec,
    Idle,
    MemberSpec,
    MemberTime,
    RefuseRows,
    RunBatch,
    Scheduler,
    Slice,
    Submission,
    WorkerView,
)
from server.scheduling.policy import RowClass
from server.scheduling.simulation.ensembles import MemberOutcomes
from server.scheduling.simulation.links import LinkedDevice, SimulatedLinks

__all__ = [
    "ClosedLoop",
    "Following",
    "FunctionLoad",
    "FunctionResult",
    "MemberLoad",
    "SimulatedDevice",
    "SimulatedNode",
    "SimulationResult",
    "TenantLoad",
    "TenantResult",
    "Workload",
    "simulate",
]


@dataclass(frozen=True, slots=True)
class MemberLoad:
    """One member of a simulated function: a model, which other functions may have too."""

    name: str
    latency_s: Callable[[int], float]  # its passes alone, without what members of one batch share
    predicted_s: Callable[[int], float] | None = None  # l̂(b) of it alone; None = the truth
    size_bytes: int = 0
    accuracy: float = 1.0


@dataclass(frozen=True, slots=True)
class Following:
    """Rows are asked of the members that a policy selects; its ensemble's are the function's, by name.

    outcomes: what every subset answers to held-out rows; each row that arrives is one of them.
    """

    ensemble: Ensemble
    policy: SelectionPolicy
    outcomes: MemberOutcomes


@dataclass(frozen=True, slots=True)
class TenantLoad:
    """What one tenant asks of a function, beside what arrives of nobody in particular.

    rows: of a scan, that begins at `begins_s`: so many in all, in requests of `rows_per_request`, of which
    `in_flight` are under way at a time
    """

    name: str
    weight: float = 1.0
    arrivals_s: Sequence[float] = ()
    rows_per_request: int = 1
    row_class: RowClass = "interactive"
    rows: int = 0
    in_flight: int = 8
    begins_s: float = 0.0
    ends_s: float = math.inf  # nothing more of the scan is asked from then on


@dataclass(frozen=True, slots=True)
class FunctionLoad:
    """One simulated function: what arrives, what is promised, what batches really take.

    A function without `members` has one, of its own name. Where nothing is `followed`, all of them answer
    every row, and every answer is right.
    """

    name: str
    arrivals_s: Sequence[float]
    slo_s: float
    max_batch: int
    latency_s: Callable[[int], float]  # the truth, l(b); where there are `members`, what they share
    predicted_s: Callable[[int], float] | None = None  # l̂(b) as the scheduler has it; None = the truth
    batch_sizes: tuple[int, ...] = ()  # () = the powers of two up to max_batch
    rows_per_request: int = 1
    bulk_rows: int = 0  # of a scan
    bulk_at_s: float = 0.0  # when it begins
    refuses: bool = True  # the SLO is a deadline; otherwise late rows are answered late
    size_bytes: int = 0  # of its model
    policy: str = "goodput"
    policy_options: Mapping[str, Any] = field(default_factory=dict)
    members: tuple[MemberLoad, ...] = ()
    followed: Following | None = None
    tenants: tuple[TenantLoad, ...] = ()
    row_bytes: int = 0  # on a network
    prefix: str = ""  # what its one member shares with other functions' (`latency_s` of it), as in the core

    @property
    def group(self) -> GroupKeys:
        """The models that answer it."""
        return tuple(member.name for member in self.all_members)

    @property
    def all_members(self) -> tuple[MemberLoad, ...]:
        """Its members; where none are given the one that it is."""
        alone = MemberLoad(self.name, _no_time, self.predicted_s or self.latency_s, self.size_bytes)
        return self.members or (alone,)

    def predicted_of(self, member: MemberLoad) -> Callable[[int], float]:
        """l̂(b) of a batch on that member alone, as the scheduler has it."""
        return member.predicted_s or partial(_alone_s, self, member)


@dataclass(frozen=True, slots=True)
class SimulatedDevice:
    """One simulated worker: `places` models and `capacity_bytes` fit on it, 0 = as many as the other allows.

    One model at a time moves over its link, at `link_bytes_per_s`. resident: what it holds at the beginning,
    least recently used first; None = as many of the functions as fit, in their order. kind: as workers tell
    it, "" = its name; devices of one kind share an l̂. pace: what a batch takes there, of what it is said to
    take. node: of the workload's nodes, "" = none.
    """

    name: str = "device-0"
    places: int | None = None
    in_flight_limit: int = 1
    capacity_bytes: int = 0
    link_bytes_per_s: float = math.inf
    resident: tuple[str, ...] | None = None
    kind: str = ""
    pace: float = 1.0
    node: str = ""


@dataclass(frozen=True, slots=True)
class SimulatedNode:
    """A machine whose devices share a network link to the server. models_bytes_per_s: from where models are.

    Rows go over it one batch after the other; each is on its way for `way_s` in each direction besides. What
    a network shares between rows and models is not simulated: each has the rate for its own.
    """

    name: str
    rows_bytes_per_s: float = math.inf
    models_bytes_per_s: float = math.inf
    way_s: float = 0.0
    is_far: bool = True


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """So many clients, each of whom sends its next row when its last one is answered, or refused.

    order: the functions asked for, one after the other, whoever is next; when it ends, so do the clients.
    """

    clients: int
    order: Sequence[str]


@dataclass(frozen=True, slots=True)
class Workload:
    """All of a simulation."""

    functions: tuple[FunctionLoad, ...]
    devices: tuple[SimulatedDevice, ...] = (SimulatedDevice(),)
    swap_s: float = 0.0  # of a load, whatever the model's size
    jitter: float = 0.0  # standard deviation of ln(what a batch takes / l(b))
    seed: int = 0
    arbitration: Arbitration = least_recently_served
    placement: str = "value"
    placement_options: Mapping[str, Any] = field(default_factory=dict)
    loads_block: bool = False  # a device computes nothing while a model moves over its link
    closed_loop: ClosedLoop | None = None  # beside what arrives by itself
    bulk_sharing: str = "backfill"
    tells_tenants: bool = True  # whether the scheduler knows whose rows are whose
    told_swaps: float = 1.0  # what the placement is told that loads take / what they do
    nodes: tuple[SimulatedNode, ...] = ()
    spread: bool = False  # members that are apart are on as many nodes as may be
    prefix_batching: bool = True

    def load_s(self, model: MemberLoad, device: SimulatedDevice) -> float:
        """What it takes to load the model there."""
        return self.swap_s + model.size_bytes / device.link_bytes_per_s


@dataclass(slots=True)
class TenantResult:
    """Rows of one tenant of a function. latencies_s, came_s: of the requests that were answered, whole."""

    offered: int = 0
    answered: int = 0
    refused: int = 0
    latencies_s: list[float] = field(default_factory=list)
    came_s: list[float] = field(default_factory=list)
    answered_at_s: list[tuple[float, int]] = field(default_factory=list)  # when, and how many rows

    def quantile_s(self, share: float, begin_s: float = 0.0) -> float:
        """Latency that `share` of the answered requests that came since then stay within; nan for none."""
        pairs = zip(self.latencies_s, self.came_s, strict=True)
        return _quantile_s([latency_s for latency_s, came_s in pairs if came_s >= begin_s], share)

    def rate(self, begin_s: float, end_s: float) -> float:
        """Rows answered a second between these times."""
        rows = sum(rows for at_s, rows in self.answered_at_s if begin_s <= at_s < end_s)
        return rows / (end_s - begin_s)


@dataclass(slots=True)
class FunctionResult:
    """Interactive rows of one function, offered = good + late + refused, and its scan.

    `right` of the good ones are answered rightly. `latencies_s` of those answered, in order of their answers.
    """

    offered: int = 0
    good: int = 0
    right: int = 0
    late: int = 0
    refused: int = 0
    batches: int = 0
    bulk_answered: int = 0
    bulk_done_s: float = 0.0  # when the last bulk row was answered
    latencies_s: list[float] = field(default_factory=list)
    overdue_at_s: list[float] = field(default_factory=list)  # when rows turned late or were refused

    @property
    def goodput(self) -> float:
        """Share of the offered rows answered within the SLO."""
        return self.good / self.offered if self.offered else 1.0

    @property
    def right_share(self) -> float:
        """Share of the offered rows answered rightly within the SLO."""
        return self.right / self.offered if self.offered else 1.0

    def quantile_s(self, share: float) -> float:
        """Latency that `share` of the answered rows stay within; nan if none were."""
        return _quantile_s(self.latencies_s, share)


@dataclass(slots=True)
class SimulationResult:
    """What happened, by function, and over all."""

    functions: dict[str, FunctionResult]
    tenants: dict[tuple[str, str], TenantResult] = field(default_factory=dict)  # by function and tenant
    duration_s: float = 0.0
    busy_s: float = 0.0
    swaps: int = 0  # loads after the beginning

    @property
    def total(self) -> FunctionResult:
        """All functions as one."""
        total = FunctionResult()
        for result in self.functions.values():
            total.offered += result.offered
            total.good += result.good
            total.right += result.right
            total.late += result.late
            total.refused += result.refused
            total.batches += result.batches
            total.bulk_answered += result.bulk_answered
            total.bulk_done_s = max(total.bulk_done_s, result.bulk_done_s)
            total.latencies_s += result.latencies_s
            total.overdue_at_s += result.overdue_at_s
        return total

    def to_json(self) -> dict[str, Any]:
        """Plain values, without the row-by-row lists."""
        rows = {**self.functions, "": self.total}
        return {
            "duration_s": self.duration_s,
            "busy_s": self.busy_s,
            "swaps": self.swaps,
            "functions": {name: _summary(result) for name, result in rows.items() if name},
            "total": _summary(rows[""]),
        }


def simulate(load: Workload) -> SimulationResult:
    """Run a load to its end: every row is answered or refused. Raises ValueError for a bad specification."""
    return _Simulation(load).run()


@dataclass(slots=True)
class _TenantRequest:
    """A request of a tenant: `left` of its rows have no answer."""

    function: FunctionLoad
    tenant: TenantLoad
    came_s: float
    left: int
    of_scan: bool


@dataclass(slots=True)
class _RowsUnderWay:
    """Rows on their way: `batches` of them, on different devices, are not back yet."""

    batches: int


class _Evidence:
    """Which held-out row every row of a followed function is, and who has answered it."""

    def __init__(self, followed: Following, seed: str) -> None:
        self._outcomes = followed.outcomes
        self._places = {member.name: 1 << at for at, member in enumerate(followed.ensemble.members)}
        self._random = Random(seed)
        self._rows: dict[tuple[int, int], int] = {}
        self._subsets: dict[tuple[int, int], int] = {}

    def came(self, request_id: int, rows: int) -> None:
        """Rows arrived."""
        for row in range(rows):
            self._rows[request_id, row] = self._random.randrange(self._outcomes.rows)

    def answered(self, slices: Sequence[Slice], member: str) -> list[float]:
        """A member has answered these rows: how sure all are that have, row by row."""
        sure: list[float] = []
        for key in _rows_of(slices):
            subset = self._subsets[key] = self._subsets.get(key, 0) | self._places[member]
            sure.append(self._outcomes.confidence[subset][self._rows[key]])
        return sure

    def right(self, part: Slice, members: Sequence[str]) -> int:
        """How many of these rows those members answer rightly."""
        subset = sum(self._places[name] for name in members)
        return sum(bool(self._outcomes.correct[subset][self._rows[key]]) for key in _rows_of((part,)))


class _Simulation:
    """One run: the clock, the events, the rows in flight."""

    def __init__(self, load: Workload) -> None:
        self._load = load
        self._random = Random(f"{load.seed} devices")
        self._functions = {function.name: function for function in load.functions}
        self._members = {f.name: {member.name: member for member in f.all_members} for f in load.functions}
        self._evidence = {
            function.name: _Evidence(function.followed, f"{load.seed} rows {function.name}")
            for function in load.functions
            if function.followed is not None
        }
        self._scheduler = Scheduler(
            arbitration=load.arbitration,
            bulk_sharing=bulk_sharing_named(load.bulk_sharing),
            prefix_batching=load.prefix_batching,
        )
        self._result = SimulationResult({name: FunctionResult() for name in self._functions})
        self._arrived_s: dict[int, float] = {}  # interactive request → arrival
        self._events: list[tuple[float, int, str, Any]] = []  # time, tie-break, kind, what
        self._event_count = 0
        self._free_s: dict[str, float] = {}
        self._is_still = True  # every device holds everything: nothing ever moves
        self._devices = {device.name: device for device in load.devices}
        self._nodes = {node.name: node for node in load.nodes}
        self._way_free_s = dict.fromkeys(self._nodes, 0.0)  # by node: when its link has sent all rows
        self._paces = {device.name: device.pace for device in load.devices if device.pace != 1.0}
        self._links = SimulatedLinks(
            placement_named(load.placement, load.placement_options),
            [_linked(load, device) for device in load.devices],
            [function.group for function in load.functions],
            {model.name: model.size_bytes for function in load.functions for model in function.all_members},
            lambda at_s, step: self._push(at_s, "moved", step),
            self._show,
            tells_moves=load.loads_block,
            nodes={node.name: node.models_bytes_per_s for node in load.nodes},
            spread=load.spread,
        )
        self._order = iter(load.closed_loop.order if load.closed_loop is not None else ())
        self._clients: set[int] = set()  # requests of the closed loop that are not answered yet
        self._requests_of_tenants: dict[int, _TenantRequest] = {}
        self._scanned: dict[tuple[str, str], int] = {}  # rows of a tenant's scan that were asked already
        for function in load.functions:
            for tenant in function.tenants:
                self._result.tenants[function.name, tenant.name] = TenantResult()

    def run(self) -> SimulationResult:
        for function in self._load.functions:
            spec = _spec(function, self._swap_of, self._paces)
            self._scheduler.configure(0.0, spec)
            self._links.serve(
                *(spec.name, function.group, spec.slo_s),
                *([member.latency for member in spec.members], spec.max_batch),
                in_part=spec.pooled,
            )
            if (followed := function.followed) is not None:
                self._scheduler.follow(0.0, function.name, "", followed.ensemble, followed.policy)
        self._free_s = dict.fromkeys(self._devices, 0.0)
        self._links.fill()
        self._is_still = self._links.everything_is_everywhere
        self._plan_arrivals()
        wake_s = self._act(0.0)
        while self._events or wake_s < math.inf:
            now_s = min(self._events[0][0] if self._events else math.inf, wake_s)
            while self._events and self._events[0][0] <= now_s:
                _, _, kind, what = heappop(self._events)
                if kind == "arrival":
                    self._arrive(now_s, what)
                elif kind == "client":
                    self._clients.add(len(self._arrived_s))
                    self._arrive(now_s, what)
                elif kind == "scan":
                    self._scan(now_s, what)
                elif kind == "tenant":
                    self._tenant_asks(now_s, *what)
                elif kind == "moved":
                    self._links.moved(now_s, what, self._waited_for())
                else:
                    self._finish(now_s, *what)
            wake_s = self._act(now_s)
            self._result.duration_s = now_s
        for name, (rows, _) in self._scheduler.queue_depth().items():
            self._result.functions[name].refused += rows  # for which the placement never made room
        self._result.swaps = self._links.loads
        return self._result

    def _scan(self, now_s: float, function: FunctionLoad) -> None:
        number = list(self._functions).index(function.name)
        rows = function.bulk_rows
        self._scheduler.submit(now_s, Submission(-1 - number, function.name, rows, rows, row_class="bulk"))
        if not self._is_still:
            self._links.came(now_s, function.group)

    def _plan_arrivals(self) -> None:
        for function in self._load.functions:
            for time_s in function.arrivals_s:
                self._event_count += 1
                self._events.append((time_s, self._event_count, "arrival", function))
            if function.bulk_rows:
                self._event_count += 1
                self._events.append((function.bulk_at_s, self._event_count, "scan", function))
            for tenant in function.tenants:
                times_s = [(time_s, False) for time_s in tenant.arrivals_s]
                times_s += [(tenant.begins_s, True)] * (tenant.in_flight if tenant.rows else 0)
                for time_s, of_scan in times_s:
                    self._event_count += 1
                    self._events.append((time_s, self._event_count, "tenant", (function, tenant, of_scan)))
        heapify(self._events)
        for _ in range(self._load.closed_loop.clients if self._load.closed_loop is not None else 0):
            self._ask_next(0.0)

    def _ask_next(self, now_s: float) -> None:
        """A client of the closed loop sends its next row."""
        name = next(self._order, None)
        if name is not None:
            self._push(now_s, "client", self._functions[name])

    def _over(self, now_s: float, request_ids: Iterable[int]) -> None:
        """Requests have all their answers, or none to expect; whose client waits for that goes on."""
        if self._clients:
            for request_id in self._clients.intersection(request_ids):
                self._clients.remove(request_id)
                self._ask_next(now_s)

    def _push(self, at_s: float, kind: str, what: object) -> None:
        self._event_count += 1
        heappush(self._events, (at_s, self._event_count, kind, what))

    def _arrive(self, now_s: float, function: FunctionLoad) -> None:
        request_id = len(self._arrived_s)
        self._arrived_s[request_id] = now_s
        result = self._result.functions[function.name]
        rows = function.rows_per_request
        result.offered += rows
        if function.name in self._evidence:
            self._evidence[function.name].came(request_id, rows)
        rejection = self._scheduler.submit(
            now_s,
            Submission(
                request_id=request_id,
                function=function.name,
                rows=rows,
                nbytes=rows,
                deadline_s=now_s + function.slo_s if function.refuses else math.inf,
            ),
        )
        if rejection is not None:
            result.refused += rows
            result.overdue_at_s += [now_s] * rows
            self._over(now_s, [request_id])
        if not self._is_still:
            self._links.arrived(now_s, function.group, rows)
            if rejection is not None:
                self._links.lost(function.group, rows)
            self._links.came(now_s, function.group)

    def _tenant_asks(self, now_s: float, function: FunctionLoad, tenant: TenantLoad, of_scan: bool) -> None:
        rows, key = tenant.rows_per_request, (function.name, tenant.name)
        if of_scan:
            asked = self._scanned.get(key, 0)
            rows = min(rows, tenant.rows - asked)
            if rows < 1 or now_s >= tenant.ends_s:
                return
            self._scanned[key] = asked + rows
        request_id = len(self._arrived_s)
        self._arrived_s[request_id] = now_s
        request = _TenantRequest(function, tenant, now_s, rows, of_scan)
        self._requests_of_tenants[request_id] = request
        self._result.tenants[key].offered += rows
        if function.name in self._evidence:
            self._evidence[function.name].came(request_id, rows)
        is_due = function.refuses and tenant.row_class == "interactive"
        rejection = self._scheduler.submit(
            now_s,
            Submission(
                request_id=request_id,
                function=function.name,
                rows=rows,
                nbytes=rows,
                deadline_s=now_s + function.slo_s if is_due else math.inf,
                row_class=tenant.row_class,
                tenant=tenant.name if self._load.tells_tenants else "",
                weight=tenant.weight,
            ),
        )
        if rejection is not None:
            self._tenant_refused(now_s + (rejection.retry_after_s or 0.01), request_id, rows)
        if not self._is_still:
            self._links.came(now_s, function.group)

    def _tenant_refused(self, again_s: float, request_id: int, rows: int) -> None:
        """Rows of a tenant are refused; a scan goes on with others."""
        request = self._requests_of_tenants[request_id]
        self._result.tenants[request.function.name, request.tenant.name].refused += rows
        request.left -= rows
        if not request.left:
            self._tenant_request_over(again_s, request_id)

    def _tenant_answered(self, now_s: float, part: Slice) -> None:
        request = self._requests_of_tenants[part.request_id]
        result = self._result.tenants[request.function.name, request.tenant.name]
        result.answered += part.rows
        result.answered_at_s.append((now_s, part.rows))
        request.left -= part.rows
        if not request.left:
            result.latencies_s.append(now_s - request.came_s)
            result.came_s.append(request.came_s)
            self._tenant_request_over(now_s, part.request_id)

    def _tenant_request_over(self, now_s: float, request_id: int) -> None:
        request = self._requests_of_tenants.pop(request_id)
        if request.of_scan:
            self._push(now_s, "tenant", (request.function, request.tenant, True))

    def _act(self, now_s: float) -> float:
        """Carry out what the scheduler and the placement want; when one of them wants to be asked again."""
        until_s = self._schedule(now_s)
        if self._is_still:
            return until_s
        while self._links.ask_at_s <= now_s:
            if not self._links.act(now_s, self._waited_for()) and self._links.ask_at_s <= now_s:
                break  # a policy that would be asked again at once
            until_s = self._schedule(now_s)
        if not self._events and not self._scheduler.waiting(0):
            return until_s
        return min(until_s, max(self._links.ask_at_s, math.nextafter(now_s, math.inf)))

    def _swap_of(self, model: str) -> Callable[[str], float]:
        return lambda device: self._links.swap_s(model, device)

    def _waited_for(self) -> dict[GroupKeys, WaitingRows]:
        return {
            self._functions[name].group: WaitingRows(one.rows, one.due_s, one.fillers, one.deadline_s)
            for name, one in self._scheduler.waiting().items()
        }

    def _schedule(self, now_s: float) -> float:
        """Carry out what the scheduler wants; when it wants to be asked again."""
        while True:
            action = self._scheduler.next_action(now_s)
            if isinstance(action, Idle):
                return action.until_s
            if isinstance(action, RunBatch):
                whole = _RowsUnderWay(1 + len(action.beside))
                for batch in (action, *action.beside):
                    self._start(now_s, batch, whole)
            elif isinstance(action, AnswerKnown):
                for part, members in action.parts:
                    self._answer(now_s, self._functions[action.function], part, members)
            elif isinstance(action, RefuseRows):
                result = self._result.functions[action.function]
                slices = [part for part in action.slices if part.request_id not in self._requests_of_tenants]
                for part in action.slices:
                    if part.request_id in self._requests_of_tenants:
                        self._tenant_refused(now_s, part.request_id, part.rows)
                rows = sum(part.rows for part in slices)
                result.refused += rows
                result.overdue_at_s += [now_s] * rows
                self._over(now_s, [part.request_id for part in action.slices])
                if not self._is_still:
                    self._links.lost(self._functions[action.function].group, rows)

    def _start(self, now_s: float, batch: RunBatch, whole: _RowsUnderWay) -> None:
        function = self._functions[batch.function]
        shared_s = function.latency_s(batch.rows + sum(rider.rows for rider in batch.riders))
        members = self._members[batch.function]
        passes_s = [members[name].latency_s(batch.rows) for name in batch.members]
        for rider in batch.riders:
            (name,) = rider.members
            passes_s.append(self._members[rider.function][name].latency_s(rider.rows))
        pace = math.exp(self._random.gauss(0.0, self._load.jitter)) if self._load.jitter else 1.0
        pace *= self._paces.get(batch.worker, 1.0)
        took_s = (shared_s + sum(passes_s)) * pace
        if not self._is_still:
            self._links.sent(now_s, batch.worker, batch.members)
        there_s, way_s = self._sent(now_s, batch, function)
        finish_s = max(there_s, self._free_s[batch.worker]) + took_s
        self._free_s[batch.worker] = finish_s
        self._result.busy_s += took_s
        self._result.functions[batch.function].batches += 1
        each = tuple(MemberTime(pass_s * pace, shared_s * pace) for pass_s in passes_s)
        worked = BatchTimes(took_s, finish_s - there_s, each)
        self._push(finish_s + way_s, "finish", (batch, worked, whole))

    def _sent(self, now_s: float, batch: RunBatch, function: FunctionLoad) -> tuple[float, float]:
        """When a batch is on its device, and how long its answer is on the way back."""
        node = self._nodes.get(self._devices[batch.worker].node)
        if node is None:
            return now_s, 0.0
        sent_s = max(now_s, self._way_free_s[node.name])
        sent_s += batch.rows * function.row_bytes / node.rows_bytes_per_s
        self._way_free_s[node.name] = sent_s
        return sent_s + node.way_s, node.way_s

    def _finish(self, now_s: float, batch: RunBatch, worked: BatchTimes, whole: _RowsUnderWay) -> None:
        sure: Sequence[float] = ()
        if batch.choices:
            sure = self._evidence[batch.function].answered(batch.slices, batch.members[0])
        self._scheduler.finished(now_s, batch.batch_id, worked=worked, sure=sure)
        if not self._is_still:
            self._links.over(now_s, batch.worker, batch.members)
        whole.batches -= 1
        if whole.batches or batch.choices:
            return  # its rows wait for other members, or for what is decided of them
        for one in (batch, *batch.riders):
            for part in one.slices:
                self._answer(now_s, self._functions[one.function], part, one.members)

    def _answer(self, now_s: float, function: FunctionLoad, part: Slice, members: Sequence[str]) -> None:
        result = self._result.functions[function.name]
        if part.request_id in self._requests_of_tenants:
            self._tenant_answered(now_s, part)
            return
        if part.request_id not in self._arrived_s:
            result.bulk_answered += part.rows
            result.bulk_done_s = now_s
            return
        latency_s = now_s - self._arrived_s[part.request_id]
        result.latencies_s += [latency_s] * part.rows
        if latency_s <= function.slo_s + 1e-9:  # a plan that meets the SLO exactly is not late by rounding
            result.good += part.rows
            evidence = self._evidence.get(function.name)
            result.right += part.rows if evidence is None else evidence.right(part, members)
        else:
            result.late += part.rows
            result.overdue_at_s += [now_s] * part.rows
        self._over(now_s, [part.request_id])

    def _show(self, now_s: float, name: str, resident: frozenset[str]) -> None:
        limit = self._devices[name].in_flight_limit
        if self._load.loads_block and self._links.is_moving(name):
            limit = 0
        kind = self._devices[name].kind or name
        node = self._nodes.get(self._devices[name].node)
        is_far = node is not None and node.is_far
        view = WorkerView(name, True, resident, limit, device=kind, is_far=is_far)
        self._scheduler.set_worker(now_s, view)


def _linked(load: Workload, device: SimulatedDevice) -> LinkedDevice:
    load_s = {
        model.name: load.load_s(model, device)
        for function in load.functions
        for model in function.all_members
    }
    told_s = {name: took_s * load.told_swaps for name, took_s in load_s.items()}
    is_far = any(node.name == device.node and node.is_far for node in load.nodes)
    return LinkedDevice(
        *(device.name, device.places or 0, device.capacity_bytes, load_s, device.resident, told_s),
        kind=device.kind,
        node=device.node,
        is_far=is_far,
    )


@dataclass(frozen=True, slots=True)
class _TrueLatency:
    """What batches really take on each device, as the scheduler is told where nothing else is."""

    latency_s: Callable[[int], float]
    paces: Mapping[str, float]
    pace: float = 1.0

    def __call__(self, rows: int) -> float:
        return self.latency_s(rows) * self.pace

    def of_worker(self, worker: str) -> _TrueLatency:
        return replace(self, pace=self.paces.get(worker, 1.0))


def _predicted_of(
    function: FunctionLoad, member: MemberLoad, paces: Mapping[str, float]
) -> Callable[[int], float]:
    told_s = member.predicted_s if function.members else function.predicted_s
    predicted_s = function.predicted_of(member)
    return _TrueLatency(predicted_s, paces) if paces and told_s is None else predicted_s


def _spec(
    function: FunctionLoad,
    swap_of: Callable[[str], Callable[[str], float]],
    paces: Mapping[str, float],
) -> FunctionSpec:
    sizes = function.batch_sizes or _powers_of_two(function.max_batch)
    return FunctionSpec(
        name=function.name,
        slo_s=function.slo_s,
        max_batch=function.max_batch,
        batch_sizes=sizes,
        members=tuple(
            MemberSpec(m.name, m.accuracy, _predicted_of(function, m, paces), swap_of(m.name))
            for m in function.all_members
        ),
        policy=function.policy,
        policy_options=function.policy_options,
        pooled=function.followed is not None,
        prefix=function.prefix,
    )


def _rows_of(slices: Sequence[Slice]) -> Iterator[tuple[int, int]]:
    return ((part.request_id, part.offset + row) for part in slices for row in range(part.rows))


def _alone_s(function: FunctionLoad, member: MemberLoad, rows: int) -> float:
    return function.latency_s(rows) + member.latency_s(rows)


def _quantile_s(latencies_s: Sequence[float], share: float) -> float:
    if not latencies_s:
        return math.nan
    ordered = sorted(latencies_s)
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]


def _no_time(rows: int) -> float:
    return 0.0


def _powers_of_two(most: int) -> tuple[int, ...]:
    sizes = [1 << power for power in range(most.bit_length()) if 1 << power < most]
    return (*sizes, most)


def _summary(result: FunctionResult) -> dict[str, Any]:
    counts = {key: value for key, value in asdict(result).items() if not isinstance(value, list)}
    latency = {f"p{round(share * 100)}_s": result.quantile_s(share) for share in (0.5, 0.99)}
    return {**counts, "goodput": result.goodput, **latency}
