"""`infaas`: INFaaS's rules, and `replicate`, the same without upgrades.

Every 2 s. A function's load is held against what its copies give by their profiles, each as if it had its
device for itself. Within 5 % of that: copies of a CPU's variant, at most two in all, or an upgrade where
that is too few or their loads take over 1.5 times the upgrade's. A GPU's variant is upgraded to larger
batches, and copied where there are none. Down: where the load would fit, 10 times running for CPUs and 20
times for others. A worker more where all of a kind are busy for over 80 % of their time, or all of them are
contended; what shares a contended device is copied to a quieter one.

Sources: INFaaS (Romero et al.), section 5, Algorithm 2, and the thresholds of section 6. The paper calls the
cost of either way "a function of model load latency, resource consumption, and hardware cost" and says no
more; its public code (`InfaasScaler` in stanford-mast/INFaaS) has the loads' time, 1.5 times, and two copies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from server.capacity.policy import (
    Action,
    Copy,
    Decision,
    Downgrade,
    Drop,
    Fleet,
    FunctionLoad,
    Replicate,
    State,
    Upgrade,
    Variant,
    Warm,
    Worker,
    WorkerDown,
    WorkerUp,
    checked,
)

__all__ = ["Infaas"]

_BUSY = 0.80  # of a worker's time: more is overload
_SLACK = 0.05  # of what the copies give: kept for spikes
_LONGER = 1.5  # times the upgrade's load: copies that take longer are not made
_MOST_CPU_COPIES = 2
_CPU_TIMES, _OTHER_TIMES = 10, 20  # decisions running that a saving must stand
_LATE = 0.05  # of a function's rows: its latency is above its profile


class Infaas:
    """See the module's docstring. keep_warm: the variant that an upgrade would take lies in host memory.

    most_cpu_copies: of one function; without upgrades there is no bound.
    """

    every_s = 2.0

    def __init__(
        self,
        name: str = "infaas",
        *,
        upgrades: bool = True,
        keep_warm: bool = False,
        most_cpu_copies: int = _MOST_CPU_COPIES,
    ) -> None:
        self.name = name
        self._upgrades = upgrades
        self._most_cpu_copies = most_cpu_copies
        self._keep_warm = keep_warm

    def decide(self, fleet: Fleet, state: State) -> Decision:
        """What the rules say, once in `every_s`; the first time nothing, as no load is known."""
        then_s = state.get("at_s")
        if then_s is not None and fleet.now_s - then_s < self.every_s - 1e-6:
            return Decision((), state)
        known = state.get("functions", {})
        functions = {
            one.name: _Seen(one, known.get(one.name), then_s, fleet.now_s) for one in fleet.functions
        }
        actions: list[Action] = []
        for seen in functions.values():
            actions += self._about_function(fleet, seen)
        contended = self._contended(fleet, functions)
        actions += self._away_from(fleet, functions, contended)
        idle: dict[str, int] = {}
        actions += self._about_workers(fleet, contended, state.get("idle", {}), idle)
        remembered = {
            "at_s": fleet.now_s,
            "functions": {name: seen.to_json() for name, seen in functions.items()},
            "idle": idle,
        }
        return Decision(checked(fleet, actions)[0], remembered)

    # ── a function's copies ──────────────────────────────────────────────────────────────────────────

    def _about_function(self, fleet: Fleet, seen: _Seen) -> list[Action]:
        if seen.rows_per_s is None:
            return []
        copies = [one for one in fleet.by_function[seen.load.name] if one.state in ("ready", "loading")]
        choices = fleet.choices(seen.load)
        if not choices or (not copies and not seen.rows_per_s):
            return []
        gives = sum(fleet.variants[one.variant].rows_per_s for one in copies)
        if seen.rows_per_s > gives * (1 - _SLACK):
            seen.times = 0
            return self._up(fleet, seen, copies, choices, gives)
        if any(one.state == "loading" for one in copies):
            return []
        return self._down(fleet, seen, copies, choices, gives) + self._warmed(fleet, seen, copies, choices)

    def _up(
        self, fleet: Fleet, seen: _Seen, copies: list[Copy], choices: Sequence[Variant], gives: float
    ) -> list[Action]:
        needed = (seen.rows_per_s or 0.0) / (1 - _SLACK)
        why = f"{seen.rows_per_s:.0f} rows/s, {gives:.0f} can be had"
        copied = self._copied(fleet, seen, copies, choices, needed - gives)
        upgraded = self._upgraded(fleet, copies, choices, needed) if self._upgrades else None
        if upgraded is None or self._rather_copies(copies, copied, upgraded[0], needed - gives):
            return [Replicate(variant.name, worker.name, reason=why) for variant, worker in copied]
        variant, worker = upgraded
        if not copies:
            return [Replicate(variant.name, worker.name, reason=why)]
        places = tuple((one.variant, one.worker) for one in copies)
        return [Upgrade(variant.name, worker.name, places, reason=why)]

    def _rather_copies(
        self,
        copies: Sequence[Copy],
        copied: Sequence[tuple[Variant, Worker]],
        upgraded: Variant,
        missing: float,
    ) -> bool:
        """Whether copies come before the upgrade: on CPUs, if so few suffice and load as quickly."""
        if not copied or copied[0][0].device != "cpu":
            return False
        loads_s = sum(one.load_s for one, _ in copied)
        return (
            len(copies) + len(copied) <= self._most_cpu_copies
            and sum(one.rows_per_s for one, _ in copied) >= missing
            and loads_s <= _LONGER * upgraded.load_s
        )

    def _copied(
        self, fleet: Fleet, seen: _Seen, copies: list[Copy], choices: Sequence[Variant], missing: float
    ) -> list[tuple[Variant, Worker]]:
        """Copies of the variant that runs, or of the cheapest if none does, until they give what is missing.

        Of a CPU's; of another device's one, on another device.
        """
        running = {one.variant for one in copies}
        variant = max(
            (one for one in choices if one.name in running),
            key=lambda one: one.rows_per_s,
            default=choices[0],
        )
        wanted = math.ceil(max(missing, 1e-9) / variant.rows_per_s)
        taken = {one.worker for one in copies}
        places = _quietest(fleet, variant, without=taken)[: wanted if variant.device == "cpu" else 1]
        return [(variant, worker) for worker in places]

    def _upgraded(
        self, fleet: Fleet, copies: list[Copy], choices: Sequence[Variant], needed: float
    ) -> tuple[Variant, Worker] | None:
        """The cheapest variant of which one copy gives all that is needed, and where; else the largest."""
        most = max((fleet.variants[one.variant].rows_per_s for one in copies), default=0.0)
        larger = [one for one in choices if one.rows_per_s > most]
        for variant in [one for one in larger if one.rows_per_s >= needed] or larger[-1:]:
            there = [fleet.workers[one.worker] for one in copies]
            same = [one for one in there if one.device == variant.device and _fits(fleet, variant, one)]
            places = same or _quietest(fleet, variant, without=set())
            if places:
                return variant, places[0]
        return None

    def _down(
        self, fleet: Fleet, seen: _Seen, copies: list[Copy], choices: Sequence[Variant], gives: float
    ) -> list[Action]:
        wanted = self._saving(fleet, seen, copies, choices, gives)
        if not wanted:
            seen.times = 0
            return []
        seen.times += 1
        device = fleet.variants[copies[0].variant].device
        if seen.times < (_CPU_TIMES if device == "cpu" else _OTHER_TIMES):
            return []
        seen.times = 0
        return wanted

    def _saving(
        self, fleet: Fleet, seen: _Seen, copies: list[Copy], choices: Sequence[Variant], gives: float
    ) -> list[Action]:
        """What would be done if the load stays as it is: one copy less, or cheaper ones instead."""
        rows_per_s = seen.rows_per_s or 0.0
        why = f"{rows_per_s:.0f} rows/s, {gives:.0f} can be had"
        last = max(copies, key=lambda one: (fleet.copy_price_per_s(fleet.variants[one.variant]), one.worker))
        variant = fleet.variants[last.variant]
        if len(copies) > 1 and rows_per_s <= (gives - variant.rows_per_s) * (1 - _SLACK):
            return [Drop(last.variant, last.worker, reason=why)]
        if len(copies) > 1 or variant.device == "cpu" or not self._upgrades:
            return []
        place = ((last.variant, last.worker),)
        for cheaper in choices:
            if fleet.copy_price_per_s(cheaper) >= fleet.copy_price_per_s(variant):
                break
            wanted = max(1, math.ceil(rows_per_s / (1 - _SLACK) / cheaper.rows_per_s))
            if cheaper.device == variant.device:
                places = [fleet.workers[last.worker]]
            else:
                places = _quietest(fleet, cheaper, without=set())
            costs = wanted * fleet.copy_price_per_s(cheaper)
            if (
                wanted <= (min(len(places), self._most_cpu_copies) if cheaper.device == "cpu" else 1)
                and places
                and costs < fleet.copy_price_per_s(variant)
            ):
                more = [Replicate(cheaper.name, one.name, reason=why) for one in places[1:wanted]]
                return [*more, Downgrade(cheaper.name, places[0].name, place, self._keep_warm, reason=why)]
        return []

    def _warmed(
        self, fleet: Fleet, seen: _Seen, copies: list[Copy], choices: Sequence[Variant]
    ) -> list[Action]:
        """What the next upgrade would take comes into host memory; what was there for another leaves."""
        if not self._keep_warm or not copies:
            return []
        gives = sum(fleet.variants[one.variant].rows_per_s for one in copies)
        following = self._upgraded(fleet, copies, choices, gives * (1 + _SLACK))
        warm = [one for one in fleet.by_function[seen.load.name] if one.state == "warm"]
        wanted = (following[0].name, following[1].name) if following else None
        actions: list[Action] = [
            Drop(one.variant, one.worker, reason="another variant would be next")
            for one in warm
            if (one.variant, one.worker) != wanted
        ]
        there = {(one.variant, one.worker) for one in warm}
        if wanted and following and following[0].device != "cpu" and wanted not in there:
            actions.append(Warm(*wanted, reason="the next upgrade"))
        return actions

    # ── workers ──────────────────────────────────────────────────────────────────────────────────────

    def _contended(self, fleet: Fleet, functions: dict[str, _Seen]) -> set[str]:
        """Workers that are overloaded, or on which two variants answer later than their profiles say."""
        found = set()
        for name, copies in fleet.by_worker.items():
            late = {
                fleet.variants[one.variant].function
                for one in copies
                if one.state == "ready" and functions[fleet.variants[one.variant].function].late > _LATE
            }
            if len(copies) > 1 and (fleet.workers[name].busy > _BUSY or len(late) > 1):
                found.add(name)
        return found

    def _away_from(self, fleet: Fleet, functions: dict[str, _Seen], contended: set[str]) -> list[Action]:
        """The most asked function of each contended worker is copied to the quietest other one."""
        actions: list[Action] = []
        for name in sorted(contended):
            there = [one for one in fleet.by_worker[name] if one.state == "ready"]
            if not there or fleet.workers[name].device == "cpu":
                continue
            busiest = max(
                there, key=lambda one: functions[fleet.variants[one.variant].function].rows_per_s or 0.0
            )
            function = fleet.variants[busiest.variant].function
            if any(one.state == "loading" for one in fleet.by_function[function]):
                continue
            without = contended | {one.worker for one in fleet.by_function[function]}
            places = _quietest(fleet, fleet.variants[busiest.variant], without=without)
            if places and places[0].busy <= _BUSY:
                actions.append(Replicate(busiest.variant, places[0].name, reason=f"{name} is contended"))
        return actions

    def _about_workers(
        self, fleet: Fleet, contended: set[str], idle_before: State, idle: dict[str, int]
    ) -> list[Action]:
        actions: list[Action] = []
        for kind in fleet.devices:
            workers = [one for one in fleet.workers.values() if one.device == kind and one.state == "ready"]
            if any(one.device == kind and one.state == "joining" for one in fleet.workers.values()):
                continue
            if workers and all(one.busy > _BUSY or one.name in contended for one in workers):
                actions.append(WorkerUp(kind, reason=f"every {kind} worker is busy for over {_BUSY:.0%}"))
            for worker in workers:
                if fleet.by_worker[worker.name]:
                    continue
                idle[worker.name] = idle_before.get(worker.name, 0) + 1
                if idle[worker.name] >= _OTHER_TIMES:
                    actions.append(WorkerDown(worker.name, reason="it holds nothing"))
        return actions


class _Seen:
    """A function's load since the last decision, and how often running a saving was seen."""

    def __init__(self, load: FunctionLoad, before: State | None, then_s: float | None, now_s: float) -> None:
        self.load = load
        self.times = 0
        self.rows_per_s: float | None = None
        self.late = 0.0
        if before is not None and then_s is not None and now_s > then_s:
            arrived = max(0, load.arrived - before["arrived"])
            self.times = before["times"]
            self.rows_per_s = arrived / (now_s - then_s)
            self.late = max(0, load.late - before["late"]) / max(1, arrived)

    def to_json(self) -> dict[str, Any]:
        return {"arrived": self.load.arrived, "late": self.load.late, "times": self.times}


def _fits(fleet: Fleet, variant: Variant, worker: Worker) -> bool:
    return (
        worker.state == "ready"
        and worker.device == variant.device
        and fleet.free_bytes(worker) >= variant.size_bytes
        and all(one.variant != variant.name for one in fleet.by_worker[worker.name])
    )


def _quietest(fleet: Fleet, variant: Variant, without: set[str]) -> list[Worker]:
    """Where a copy may go, by how much of their time the workers are busy, then by how much they hold."""
    able = [one for one in fleet.workers.values() if one.name not in without and _fits(fleet, variant, one)]
    return sorted(able, key=lambda one: (round(one.busy, 1), len(fleet.by_worker[one.name]), one.name))
