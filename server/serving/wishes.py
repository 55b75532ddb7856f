"""Functions by wish, live: which candidate answers a call, and what was decided of late.

    call ─→ goals ─→ kept decision ───────────────────────────────→ the call, of the chosen candidate
                 └─→ what is known of each candidate now ─→ decide ─┘

A decision is kept for all calls with the same goals until an epoch ends: what is resident has changed, or
how long workers are busy, or how many rows come, each by so much that it may matter; in any case after
`_HOLDS_S`. Bulk rows have no goal of their own and wait for whoever is cheapest, so for them it is decided as
on an idle server. The rule itself is `server.catalog.wishes`. Runs on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from gpu_worker.tasks.metrics import METRICS
from server.catalog.functions import Form, Function, ModelVersion, forms_of
from server.catalog.wishes import Decision, Estimate, Goals, HeldOut, check_had, decide, held_out_of
from server.ensemble.selection import TYPICAL_ROWS
from server.errors import NoMembers
from server.observability.metrics import Metrics
from server.scheduling.latency_model import LatencyModel
from server.serving.calls import Call
from server.serving.lost_files import lost_file
from server.supervision import Tasks

__all__ = ["Decided", "Wishes", "Workers"]

log = logging.getLogger("ml_udf.server.wishes")

_LOOK_S = 0.1  # between looks at the workers
_HOLDS_S = 2.0  # l̂ is learned all the time
_FADE_S = 1.0  # of the rate at which rows come
_LEAST_S = 0.001  # of waiting that is told from none
_MOST_KEPT = 4096  # decisions of an epoch
_MOST_GOALS = 32  # of one function, that are shown
_SPREAD_S = 30.0  # between two tries to have the better candidate resident
_SOON_S = 1e-6  # of a load of which nobody knows how long it takes


class Workers(Protocol):
    """What is up, what it holds, and how busy it is."""

    def holdings(self) -> Iterable[tuple[str, frozenset[str], str]]:
        """Each worker, the keys of what it holds, and its kind."""
        ...

    def held_changes(self) -> int:
        """How often what workers hold has changed."""
        ...

    def backlog_s(self) -> Mapping[str, float]:
        """By worker, how long an interactive row that came now would wait there."""
        ...

    def current(self, function: Function) -> Function:
        """That version of a function as it answers now. Raises `VersionGone`."""
        ...


@dataclass(slots=True)
class Decided:
    """What was decided last for calls of a function with some goals. row_class: of their rows.

    since: Unix time from which on the same model answers them, met or not · rows: that were asked since this
    server began, degraded_rows of them while nothing kept all goals · changes: how often another model was
    chosen
    """

    function: str
    version: int
    row_class: str
    decision: Decision
    since: float
    rows: int = 0
    degraded_rows: int = 0
    changes: int = 0

    def told(self) -> dict[str, Any]:
        """As views show it."""
        decision = self.decision
        return {
            "function": self.function,
            "version": self.version,
            "class": self.row_class,
            "goals": decision.goals.told(),
            "chosen": decision.chosen,
            "is_met": decision.is_met,
            "reason": decision.reason,
            "candidates": [each.told() for each in decision.weighed],
            "since": self.since,
            "rows": self.rows,
            "degraded_rows": self.degraded_rows,
            "changes": self.changes,
        }


@dataclass(slots=True)
class _Kept:
    """A decision of this epoch. function: as the chosen candidate answers it."""

    function: Function
    decided: Decided


@dataclass(slots=True)
class _Known:
    """Of a served version: its candidates, as functions by key, and what is known of how right each is."""

    candidates: Sequence[ModelVersion]
    functions: dict[str, Function]
    held_out: dict[str, HeldOut | None]
    merits: dict[str, float]
    measured: set[str] = field(default_factory=set)  # of which it is known what they take
    decided: OrderedDict[tuple[Goals, str], Decided] = field(default_factory=OrderedDict)
    came: int = 0  # interactive rows since the last look
    rate: float = 0.0  # rows a second, of late


@dataclass(slots=True)
class _Prospect:
    """What holds of a candidate for any number of rows. ahead: by kind of device its l̂ there, and on the
    worker that could begin first how long rows are in line, and how long the model loads.
    """

    key: str
    low: float | None
    merit: float
    cost: float
    device_s: float  # a row takes of a device
    is_guess: bool
    latencies: Sequence[LatencyModel]
    ahead: Sequence[tuple[float, float, LatencyModel]]


@dataclass(slots=True)
class _Sight:
    """The workers as they were looked at last."""

    looked_s: float = -math.inf
    began_s: float = -math.inf  # of the epoch
    held_changes: int = 0
    workers: Sequence[tuple[str, frozenset[str], str]] = ()
    backlog_s: Mapping[str, float] = field(default_factory=dict)
    level: tuple[object, ...] = ()


class Wishes:
    """latency_of: l̂ of a model. load_s(model, device): what a load takes there. spread: has a model loaded
    wherever there is room, evicting nothing. held_out: what is known of how often a model is right.
    """

    def __init__(
        self,
        workers: Workers,
        latency_of: Callable[[ModelVersion], LatencyModel],
        load_s: Callable[[ModelVersion, str], float],
        spread: Callable[[tuple[ModelVersion, ...]], Any],
        metrics: Metrics,
        tasks: Tasks | None = None,
        clock: Callable[[], float] = time.monotonic,
        held_out: Callable[[ModelVersion], HeldOut | None] = held_out_of,
        measured: Callable[[], int] = lambda: 0,
        price_per_s: Callable[[ModelVersion, str], float | None] | None = None,
        *,
        loads_able: bool = True,
    ) -> None:
        """measured: another number as soon as `held_out` may say something else. price_per_s: of a device of
        that kind while it runs the model, None where that is not known yet; no such function = nobody said
        prices, and a cost is counted in seconds. loads_able: whether a wish for
        accuracy has the better of two able candidates loaded where there is room; not where a capacity policy
        says which of them there are.
        """
        self._loads_able = loads_able
        self._price_per_s = price_per_s
        self._measured = measured
        self._measured_at = measured()
        self._workers = workers
        self._latency_of = latency_of
        self._load_s = load_s
        self._spread = spread
        self._metrics = metrics
        self._tasks = tasks or Tasks()
        self._clock = clock
        self._held_out = held_out
        self._known: dict[str, _Known] = {}  # by function's key
        self._kept: dict[tuple[object, ...], _Kept] = {}
        self._estimated: dict[tuple[str, Form, int, bool], list[Estimate]] = {}  # in this epoch
        self._prospects: dict[tuple[str, Form], list[_Prospect]] = {}  # in this epoch
        self._sight = _Sight()
        self._spread_at_s: dict[str, float] = {}
        self._lost: dict[str, str] = {}  # by model key, which file is gone and what to do
        self.epoch = 0

    # ── calls ───────────────────────────────────────────────────────────────────────────────────────────

    def answered_by(self, call: Call) -> Call:
        """The call, asked of the candidate that its goals choose; of other functions as it is.

        Raises `NoMembers` where no candidate is accurate enough for the call's own `min_accuracy`, or where
        none is for that and fast enough for its own `slo_s` even while nobody else asks; `VersionGone`.
        """
        function = call.function
        if function.wants is None or function.is_candidate or call.members is not None:
            return call
        self._workers.current(function)
        self._look()
        rows = len(call.rows)
        kept = self._kept_for(function, call, rows)
        decided = kept.decided
        decided.rows += rows
        if call.row_class == "interactive":
            self._known[function.key].came += rows
        if not decided.decision.is_met:
            decided.degraded_rows += rows
            self._metrics.of(function).degraded_rows += rows
        return call.answered_by(kept.function, decided.decision.reason)

    def at_rest(self, function: Function) -> Decision:
        """What is decided of a function while nobody asks, all candidates resident.

        Raises `BadOption`, with the nearest that can be had, where none keeps what is wished.
        """
        self._look()
        goals, known = _goals(function, None, None, 1), self._known_of(function)
        return check_had(
            function.name, goals, self._estimates(function, known, function.form, 1, is_idle=True)
        )

    def is_measured(self, model: ModelVersion) -> bool:
        """Whether it is known what the model takes, on any kind of device."""
        learned = self._latency_of(model)
        return any(learned.kinds(form) for form in forms_of(model.task, model.input.form))

    async def look_for_files(self, models: Iterable[ModelVersion]) -> None:
        """Find out which of them have lost a file: those answer no wish, until it is back."""
        named = {model.key: model for model in models}
        found = await asyncio.to_thread(lambda: {key: lost_file(model) for key, model in named.items()})
        files = {key: file for key, file in found.items() if file is not None}
        lost = {key: f"whose file {file.path.name} is gone ({file.remedy})" for key, file in files.items()}
        before = {key for key in named if key in self._lost}
        for key in lost.keys() - before:
            log.error("a candidate has lost a file model=%s path=%s", key, files[key].path)
        for key in before - lost.keys():
            log.info("a candidate has its file again model=%s", key)
            if not self.is_measured(named[key]):
                self._tasks.once("spread", self._spread((named[key],)), f"spread {key}")
        if lost.keys() != before:
            self._lost = {key: why for key, why in self._lost.items() if key not in named} | lost
            self._end_epoch(self._clock())

    def has_its_files(self, model: ModelVersion) -> bool:
        """Whether all files of the model were there when they were looked for last."""
        return model.key not in self._lost

    def decided(self, function: Function) -> list[Decided]:
        """What was decided of its calls of late, by their goals, the last asked first."""
        known = self._known.get(function.key)
        return [] if known is None else list(reversed(known.decided.values()))

    def forget(self, function: Function) -> None:
        """It is served no longer."""
        self._known.pop(function.key, None)
        self._end_epoch(self._clock())

    def _kept_for(self, function: Function, call: Call, rows: int) -> _Kept:
        is_bulk = call.row_class == "bulk"
        together = 1 if is_bulk and call.slo_s is None else min(_bucket(rows), function.max_batch)
        key = (function.key, call.form, call.min_accuracy, call.slo_s, together, is_bulk)
        kept = self._kept.get(key)
        if kept is None or kept.decided.version != function.version:
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            kept = self._kept[key] = self._decided_now(function, call, together, is_bulk=is_bulk)
        return kept

    def _decided_now(self, function: Function, call: Call, rows: int, *, is_bulk: bool) -> _Kept:
        goals = _goals(function, call.min_accuracy, call.slo_s, rows)
        known = self._known.get(function.key)
        if known is None:
            known = self._known[function.key] = self._known_of(function)
        try:
            decision = decide(goals, self._estimates(function, known, call.form, rows, is_idle=is_bulk))
        except NoMembers as exc:
            raise NoMembers(f"{function.name}: {exc.message}") from exc
        if not is_bulk:
            self._prefer(function, known, goals, decision, call.form)
        if not decision.is_met and call.min_accuracy is not None and call.slo_s is not None:
            idle = self._estimates(function, known, call.form, rows, is_idle=True)
            check_had(function.name, goals, idle)
        return _Kept(known.functions[decision.chosen], self._noted(function, known, call, decision))

    def _noted(self, function: Function, known: _Known, call: Call, decision: Decision) -> Decided:
        goals = (decision.goals, call.row_class)
        before = known.decided.pop(goals, None)
        if before is None:
            before = Decided(function.name, function.version, call.row_class, decision, time.time())
            while len(known.decided) >= _MOST_GOALS:
                known.decided.popitem(last=False)
        elif (before.decision.chosen, before.decision.is_met) != (decision.chosen, decision.is_met):
            before.changes += before.decision.chosen != decision.chosen
            before.since = time.time()
            log.info(
                "wish decided anew function=%s goals=%s: %s",
                function.name,
                decision.goals.told(),
                decision.reason,
            )
        before.decision = decision
        known.decided[goals] = before
        return before

    def _prefer(
        self, function: Function, known: _Known, goals: Goals, decision: Decision, form: Form
    ) -> None:
        """Have the candidate loaded, where there is room, that would be chosen if it were resident."""
        if all(each.load_s == 0.0 for each in decision.estimates):
            return
        if not self._loads_able and goals.min_accuracy is not None:
            return
        idle = self._estimates(function, known, form, goals.rows, is_idle=True)
        best = decide(goals, idle).chosen
        absent = best != decision.chosen and not any(best in held for _, held, _ in self._sight.workers)
        if not absent or self._spread_at_s.get(best, -math.inf) > self._clock() - _SPREAD_S:
            return
        self._spread_at_s[best] = self._clock()
        model = next(each for each in function.candidates if each.key == best)
        self._tasks.once("spread", self._spread((model,)), f"spread {best}")

    # ── what is known of the candidates ─────────────────────────────────────────────────────────────────

    def _known_of(self, function: Function) -> _Known:
        return _Known(
            function.candidates,
            {each.key: function.by(each) for each in function.candidates},
            {each.key: self._held_out(each) for each in function.candidates},
            {each.key: _merit(each) for each in function.candidates},
        )

    def _estimates(
        self, function: Function, known: _Known, form: Form, rows: int, *, is_idle: bool
    ) -> list[Estimate]:
        """is_idle: as if nobody asked anything, and all candidates were resident."""
        key = (function.key, form, rows, is_idle)
        found = self._estimated.get(key) if function.key in self._known else None
        if found is None:
            found = self._estimated_now(function, known, form, rows, is_idle=is_idle)
            if function.key in self._known:
                self._estimated[key] = found
        return found

    def _estimated_now(
        self, function: Function, known: _Known, form: Form, rows: int, *, is_idle: bool
    ) -> list[Estimate]:
        prospects = self._prospects.get((function.key, form)) if function.key in self._known else None
        if prospects is None:
            prospects = [self._prospect(model, function, known, form) for model in function.candidates]
            if function.key in self._known:
                self._prospects[function.key, form] = prospects
        found = []
        of_devices = known.rate / max(1, len(self._sight.workers))
        for one in prospects:
            wait_s, load_s, share = 0.0, 0.0, 0.0
            if is_idle:
                batch_s = min([latency_s(rows) for latency_s in one.latencies])
            else:
                share = of_devices * one.device_s
                wait_s, load_s, latency_s = one.ahead[0]
                batch_s = latency_s(rows)
                for other_wait_s, other_load_s, latency_s in one.ahead[1:]:
                    other_s = latency_s(rows)
                    if other_wait_s + other_load_s + other_s < wait_s + load_s + batch_s:
                        wait_s, load_s, batch_s = other_wait_s, other_load_s, other_s
            found.append(
                Estimate(
                    one.key,
                    one.low,
                    one.merit,
                    batch_s,
                    one.cost,
                    wait_s,
                    load_s,
                    share,
                    one.is_guess,
                    self._price_per_s is not None,
                    self._lost.get(one.key, ""),
                )
            )
        return found

    def _prospect(self, model: ModelVersion, function: Function, known: _Known, form: Form) -> _Prospect:
        sight, learned = self._sight, self._latency_of(model)
        typical = min(TYPICAL_ROWS, function.max_batch)
        devices = dict.fromkeys(device for _, _, device in sight.workers) or {"": None}
        latencies = {device: learned.on(device, form) if device else learned for device in devices}
        row_s = {device: latency_s(typical) / typical for device, latency_s in latencies.items()}
        device_s = min(row_s.values())
        cost, is_cost_known = 1000 * device_s, True
        if self._price_per_s is not None:
            prices = [(seconds, self._price_per_s(model, device)) for device, seconds in row_s.items()]
            costs = [1000 * seconds * price for seconds, price in prices if price is not None]
            cost, is_cost_known = min(costs, default=0.0), bool(costs)
        held_out = known.held_out[model.key]
        low = None if held_out is None else held_out.low
        merit = known.merits[model.key] if low is None else low
        if model.key not in known.measured and self.is_measured(model):
            known.measured.add(model.key)
        is_guess = model.key not in known.measured or not is_cost_known
        soonest: dict[str, tuple[float, float]] = {}
        for name, held, device in sight.workers:
            wait_s = sight.backlog_s.get(name, 0.0)
            load_s = 0.0 if model.key in held else max(_SOON_S, self._load_s(model, device))
            before = soonest.get(device)
            if before is None or wait_s + load_s < before[0] + before[1]:
                soonest[device] = wait_s, load_s
        ahead = [(*waits_s, latencies[device]) for device, waits_s in soonest.items()]
        return _Prospect(
            model.key,
            low,
            merit,
            cost,
            device_s,
            is_guess,
            list(latencies.values()),
            ahead or [(0.0, _SOON_S, learned)],
        )

    def _look(self) -> None:
        """Look at the workers, if it is time; an epoch ends where they are otherwise."""
        now_s = self._clock()
        sight = self._sight
        since_s = now_s - sight.looked_s
        if since_s < _LOOK_S:
            if self._workers.held_changes() != sight.held_changes:
                # A row that is asked of what has just been evicted would have it loaded again.
                self._see()
                self._end_epoch(now_s)
            return
        if self._measured() != self._measured_at:
            self._measured_at = self._measured()
            for known in self._known.values():
                known.held_out = {each.key: self._held_out(each) for each in known.candidates}
            sight.level = ()
        sight.looked_s = now_s
        self._see()
        for known in self._known.values():
            fades = math.exp(-since_s / _FADE_S)
            known.rate = known.rate * fades + (1 - fades) * known.came / since_s
            known.came = 0
        level = (
            tuple(sight.workers),
            tuple(_level(sight.backlog_s.get(name, 0.0), _LEAST_S) for name, _, _ in sight.workers),
            tuple(_level(known.rate, 1.0) for known in self._known.values()),
        )
        if level != sight.level or now_s - sight.began_s >= _HOLDS_S:
            sight.level = level
            self._end_epoch(now_s)

    def _see(self) -> None:
        self._sight.held_changes = self._workers.held_changes()
        self._sight.workers = list(self._workers.holdings())
        self._sight.backlog_s = self._workers.backlog_s()

    def _end_epoch(self, now_s: float) -> None:
        self._sight.began_s = now_s
        self.epoch += 1
        self._kept.clear()
        self._estimated.clear()
        self._prospects.clear()


def _goals(function: Function, min_accuracy: float | None, slo_s: float | None, rows: int) -> Goals:
    """What is asked: by the call, else by the wish."""
    wants = function.wants
    assert wants is not None, "only functions by wish have goals"
    if slo_s is None and wants.slo_ms is not None:
        slo_s = wants.slo_ms / 1000
    return Goals(wants.min_accuracy if min_accuracy is None else min_accuracy, slo_s, wants.cost, rows)


def _merit(model: ModelVersion) -> float:
    """By which the better of two models is told whose accuracies are not known: their score."""
    score = model.score or {}
    metric, value = METRICS.get(str(score.get("metric"))), score.get("value")
    known = metric is not None and isinstance(value, int | float)
    return metric.merit(float(value)) if known and metric is not None and value is not None else 0.0


def _bucket(rows: int) -> int:
    """The power of two from `rows` on."""
    return 1 << max(0, rows - 1).bit_length()


def _level(value: float, least: float) -> int:
    """Of what is above the least: two steps for twice as much."""
    return 0 if value <= least else 1 + round(2 * math.log2(value / least))
