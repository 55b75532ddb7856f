"""The fleet as this server sees it: what capacity policies decide on, read from the live parts.

A *function* of a policy is what the same variants may answer: a model that is asked by its name, or those
variants of one that are alike to functions by wish (`alike.py`). An ensemble's members are functions of their
own, each with the goal of the strictest served function that asks it. A variant on a kind of device is called
`KEY@KIND`.

A variant of which nothing has changed is the same object in every fleet: hundreds of fleets are remembered.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from server.capacity.alike import Alike, HeldOutOf, alike
from server.capacity.policy import (
    Copy,
    CopyState,
    DeviceKind,
    Fleet,
    FunctionLoad,
    Variant,
    Worker,
    WorkerState,
)
from server.capacity.prices import Price
from server.capacity.workforce import Workforce
from server.catalog.functions import ModelVersion
from server.catalog.latencies import Latencies
from server.catalog.wishes import held_out_of
from server.observability.metrics import Metrics
from server.observability.stats import FunctionStats
from server.placement.policy import WaitingRows
from server.placement.residency import Group, Residency
from server.serving.dispatcher import Dispatcher
from server.workers.pool import WorkerStatus

__all__ = ["FleetReader", "kind_of", "model_of"]

_ROWS = (1, 4, 16, 64, 256)  # sizes of batches at which l̂ is read
_FIRST_JOIN_S = 10.0  # what a worker takes to join, until one has
_STATES: Mapping[str, WorkerState] = {"up": "ready", "leaving": "leaving"}


def kind_of(device: str) -> str:
    """The kind of a worker's device, as prices name it: `cuda` of `cuda:0`."""
    return device.partition(":")[0]


def model_of(variant: str) -> str:
    """The key of the model that a variant of a fleet is."""
    return variant.rpartition("@")[0]


@dataclass(slots=True)
class _Count:
    """Rows since the start; they do not fall when a function goes that had counted some."""

    seen: int = 0
    total: int = 0

    def at(self, seen: int) -> int:
        """What there is in all, as so many are counted now."""
        self.total += max(0, seen - self.seen)
        self.seen = seen
        return self.total


class FleetReader:
    """`memory_bytes(worker's capacity)`: what a worker may hold; 0 = no bound. prices: by device kind.

    With no prices a worker costs 1 a second, and what it holds nothing. held_out: what is known of how often
    a model is right, as wishes know it.
    """

    def __init__(
        self,
        workforce: Workforce,
        residency: Residency,
        dispatcher: Dispatcher,
        latencies: Latencies,
        metrics: Metrics,
        prices: Mapping[str, Price] | None = None,
        clock: Callable[[], float] = time.monotonic,
        held_out: HeldOutOf = held_out_of,
    ) -> None:
        self._held_out = held_out
        self._workforce = workforce
        self._residency = residency
        self._dispatcher = dispatcher
        self._latencies = latencies
        self._metrics = metrics
        self._prices = prices
        self._clock = clock
        self._arrived: dict[str, _Count] = {}
        self._late: dict[str, _Count] = {}
        self._states: dict[str, tuple[str, float]] = {}  # worker → its state, and since when
        self._models: dict[str, ModelVersion] = {}
        self._variants_before: dict[str, Variant] = {}
        self._files_bytes: dict[str, int] = {}  # of models that were loaded nowhere yet
        self._device_names: dict[str, str] = {}  # by kind, as the placement calls them

    def model(self, variant: str) -> ModelVersion | None:
        """The model version that a variant of the last fleet is."""
        return self._models.get(model_of(variant))

    def read(self) -> Fleet:
        """All that a policy sees, now."""
        now_s = self._clock()
        stats = dict(self._metrics.items())
        answered = {key for key, counted in stats.items() if counted.rows}
        by_model = alike(
            self._dispatcher.served(),
            lambda function: (function.name, function.version) in answered,
            self._held_out,
        )
        self._models = {key: group.models[key] for key, group in by_model.items()}
        workers = self._workers(now_s)
        devices = self._devices(workers.values())
        before = self._variants_before
        found = (one for kind in devices for one in self._variants(kind, by_model))
        variants = {one.name: before[one.name] if before.get(one.name) == one else one for one in found}
        self._variants_before = variants
        self._files_bytes = {key: size for key, size in self._files_bytes.items() if key in self._models}
        demand = self._dispatcher.demand()
        groups = {group.name: group for group in by_model.values()}
        return Fleet(
            now_s,
            tuple(self._load(groups[name], demand, stats) for name in sorted(groups)),
            variants,
            devices,
            workers,
            tuple(self._copies(workers, variants)),
        )

    def _load(
        self,
        group: Alike,
        demand: Mapping[Group, WaitingRows],
        stats: Mapping[tuple[str, int], FunctionStats],
    ) -> FunctionLoad:
        late = sum(
            stats[key].over_goal_rows
            for each in group.counted.values()
            if (key := (each.name, each.version)) in stats
        )
        name = group.name
        return FunctionLoad(
            name,
            min(function.slo_ms for function in group.askers.values()) / 1000,
            self._arrived.setdefault(name, _Count()).at(sum(map(self._residency.came, group.asked))),
            self._late.setdefault(name, _Count()).at(late),
            sum(demand[asked].rows - demand[asked].fillers for asked in group.asked if asked in demand),
            group.min_accuracy,
        )

    def _workers(self, now_s: float) -> dict[str, Worker]:
        shares = self._dispatcher.shares()
        places = {place.worker: place for place in self._residency.places()}
        found = {}
        for number, status in self._workforce.numbered():
            state = _STATES.get(status.state, "joining")
            before = self._states.get(status.name)
            if before is None or before[0] != state:
                self._states[status.name] = state, now_s
            place = places.get(status.name)
            kind = self._kind(number, status)
            if place is not None:
                self._device_names[kind] = place.device
            found[status.name] = Worker(
                status.name,
                kind,
                state,
                0 if place is None else place.capacity_bytes,
                min(1.0, shares.get(status.name, 0.0)),
                self._states[status.name][1],
                self._workforce.is_blocked(status.name),
            )
        self._states = {name: since for name, since in self._states.items() if name in found}
        return found

    def _kind(self, number: int, status: WorkerStatus) -> str:
        """Which device `auto` is, a worker says when it is up; until then it is as the others are."""
        named = self._workforce.kinds[number]
        if named == "auto" and status.info is not None:
            return kind_of(status.info.device)
        return next(iter(self._device_names), named) if named == "auto" else named

    def _devices(self, workers: Iterable[Worker]) -> dict[str, DeviceKind]:
        """How many of each kind there may be; after one was given up for a while no more than there are."""
        bounds, kinds = self._workforce.bounds, [worker.device for worker in workers]
        known = kinds[0] if kinds else ""
        there_may_be = [known if kind == "auto" and known else kind for kind in self._workforce.kinds]
        found = {}
        for kind in dict.fromkeys((*there_may_be, *kinds)):
            most = kinds.count(kind) if self._workforce.pause_left_s else there_may_be.count(kind)
            price = self._price(kind)
            found[kind] = DeviceKind(
                kind,
                min(most, there_may_be[: bounds.least].count(kind)),
                most,
                self._workforce.join_s or _FIRST_JOIN_S,
                0,
                price.per_gb_s,
                price.per_hour,
                price.host_per_gb_s,
            )
        return found

    def _price(self, kind: str) -> Price:
        """Of a kind of device; while no worker has said what `auto` is, the first of the file."""
        if self._prices is None:
            return Price(per_hour=3600.0)
        return self._prices.get(kind) or next(iter(self._prices.values()))

    def _variants(self, kind: str, by_model: Mapping[str, Alike]) -> Iterable[Variant]:
        for model in self._models.values():
            group = by_model[model.key]
            # Others cut no batches: what larger ones would take is a guess.
            askers = list(group.askers.values())
            asked = [one for one in askers if self._metrics.of(one).rows] or askers
            most = max(function.max_batch for function in asked)
            form = askers[0].form
            latency_s = self._latencies.of_rows(model, form)
            sizes = [rows for rows in _ROWS if rows < most] + [most]
            device = self._device_names.get(kind, "")
            again_s = self._residency.swap_s(model, device)
            from_disk_s = self._residency.from_disk_s(model, device)
            has_host_tier = kind != "cpu"
            yield Variant(
                f"{model.key}@{kind}",
                group.name,
                kind,
                tuple((rows, latency_s(rows)) for rows in sizes),
                self._size_bytes(model),
                max(again_s, from_disk_s) if has_host_tier else again_s,
                again_s if has_host_tier else None,
                accuracy=None if (known := self._held_out(model)) is None else known.low,
            )

    def _size_bytes(self, model: ModelVersion) -> int:
        """As its load has measured it, here or as the registry remembers it; else those of its files."""
        measured = self._residency.size_bytes(model) or model.resident_bytes
        if not measured and model.key not in self._files_bytes:
            with contextlib.suppress(OSError):  # files that are gone weigh nothing, and cannot be loaded
                sizes = [(model.directory / file.name).stat().st_size for file in model.files]
                self._files_bytes[model.key] = sum(sizes)
        return measured or self._files_bytes.get(model.key, 0)

    def _copies(self, workers: Mapping[str, Worker], variants: Mapping[str, Variant]) -> Iterable[Copy]:
        for place in self._residency.places():
            worker = workers.get(place.worker)
            if worker is None:
                continue
            moving = place.moving
            evicting = () if moving is None else moving.evicting
            states: dict[str, CopyState] = dict.fromkeys(place.host, "warm")
            for held in place.held:
                states[held.model] = "leaving" if held.model in evicting else "ready"
            if moving is not None and moving.loading:
                states[moving.loading] = "loading"
            for key, state in states.items():
                name = f"{key}@{worker.device}"
                if name in variants:
                    ready_s = self._clock() + variants[name].load_s if state == "loading" else 0.0
                    yield Copy(name, place.worker, state, ready_s)
