"""Keeps on every worker the models that are wanted: the live shell around the placement's core.

    want, load, spread, worker_up ─→ core ─→ steps ─→ Unload, Load on each worker's link ─→ core ─→ listener

Owns the workers and who waits for a load; every decision is the policy's. A group is the members of one
function, which are wanted together. Knows nothing of queues; it asks who is waited for, and reports to its
listener what has changed.

What is believed of a worker follows from the messages that it has answered. Every few seconds each is asked
for its own word (`check`); where that is another, it counts.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gpu_worker.wire.protocol import Done, Failed, Loaded
from server.catalog.functions import ModelVersion
from server.catalog.variants import base_of, is_variant, variant_of
from server.errors import BadOption, Overloaded, ServiceError, WorkerLost
from server.observability.moves import MoveKind, Moves, Outcome
from server.placement.core import Ended, Placement, Step
from server.placement.places import Place, place_of
from server.placement.policies.lru import LeastRecentlyUsed
from server.placement.policy import Capacity, PlacementPolicy, WaitingRows
from server.placement.rates import RatesOfLate
from server.placement.worker_link import WorkerLink, differences
from server.supervision import Tasks
from server.workers.pool import Worker

__all__ = ["Group", "Profile", "Residency", "ResidencyListener"]

log = logging.getLogger("ml_udf.server.residency")

Group = tuple[ModelVersion, ...]
Profile = Callable[[Worker, ModelVersion, Callable[[], bool]], Awaitable[None]]

_PATIENCE_S = 120.0
_CHECK_EVERY_S = 2.0
_LOOK_AHEAD_S = 0.05
_OF_LATE_S = 60.0  # in which rows came: then a model is needed, and does not end with its worker

# Why models leave, where no policy has decided it.
OPERATOR = "operator"
CAPACITY = "capacity"
MISSING = "was not there"
UNKNOWN = "was not known of"
CROWDED = "the device was short of memory"


class ResidencyListener(Protocol):
    """Called with what has changed; all on the event loop."""

    def resident_changed(self, worker: Worker, resident: frozenset[str]) -> None:
        """These models, and no others, may be asked of the worker now."""
        ...

    def load_failed(self, group: Group, error: ServiceError) -> None:
        """Nothing could make the group resident; its rows have nowhere to run."""
        ...

    def worker_lost(self, worker: Worker) -> None:
        """The worker is gone, and all that was resident on it."""
        ...

    def waited_for(self) -> Iterable[Group]:
        """The groups for which rows wait."""
        ...

    def demand(self) -> Mapping[Group, WaitingRows]:
        """The same, with what waits."""
        ...


@dataclass(slots=True, eq=False)
class _Order:
    """Models that leave before the policy is asked. `told` is done when they have left."""

    keys: frozenset[str]
    reason: str
    told: asyncio.Future[None]


@dataclass(slots=True, eq=False)
class _LiveWorker:
    """A live worker. for_wishes: the open wishes for which its load was begun, if it was begun for any."""

    link: WorkerLink
    ordered: list[_Order] = field(default_factory=list)
    step: Step | None = None  # what its link is at
    for_wishes: list[tuple[str, ...]] = field(default_factory=list)
    look_ahead_s: float = -math.inf  # when to look next for what may be read while its link is busy
    checks: asyncio.Task[None] | None = None  # of its own word, again and again

    @property
    def worker(self) -> Worker:
        """The worker itself."""
        return self.link.worker

    @property
    def gone(self) -> bool:
        """Whether it is lost."""
        return self.link.gone

    @property
    def has_tiers(self) -> bool:
        """Whether its device has memory of its own, so that models may lie ready in the host's."""
        return self.worker.info.device != "cpu"

    @property
    def load(self) -> str:
        """The model that its link brings, or will once others have left; "" = none."""
        return "" if self.step is None else self.step.load


@dataclass(slots=True, eq=False)
class _Wanted:
    """Who wants a group: rows (`by_rows`), callers of `load` (`waiters`)."""

    group: Group
    since_s: float
    by_rows: bool = False
    is_left: bool = False  # its rows were gone when the policy was asked last
    spreads: bool = False  # once it is resident, it is offered to all workers
    waiters: list[asyncio.Future[None]] = field(default_factory=list)


class Residency:
    """`capacity(worker)`: what it may hold. `measured(model, bytes, seconds)` is called after every load.

    `starting()`: what a starting worker is offered. `profile(worker, model, is_waited_for)`, if there is
    one, is awaited before rows are sent to what was loaded. `workers`: how many there will be. A worker that
    does not carry out one message within `patience_s` is killed. moves: counts loads and evictions.
    check_every_s: how often workers are asked what they hold; 0 = never.
    """

    def __init__(
        self,
        listener: ResidencyListener,
        capacity: Callable[[Worker], Capacity],
        measured: Callable[[ModelVersion, int, float], None],
        clock: Callable[[], float] = time.monotonic,
        *,
        policy: PlacementPolicy | None = None,
        spread: bool = False,
        workers: int = 0,
        starting: Callable[[], Iterable[Group]] = tuple,
        profile: Profile | None = None,
        patience_s: float = _PATIENCE_S,
        tasks: Tasks | None = None,
        moves: Moves | None = None,
        check_every_s: float = _CHECK_EVERY_S,
    ) -> None:
        self._listener = listener
        self._capacity = capacity
        self._measured = measured
        self._clock = clock
        self._core = Placement(policy or LeastRecentlyUsed(), apart=True, spread=spread, workers=workers)
        self._places: dict[str, _LiveWorker] = {}
        self._models: dict[str, ModelVersion] = {}
        self._served: dict[str, Group] = {}  # by function
        self._wanted: dict[tuple[str, ...], _Wanted] = {}
        self._spreading: dict[tuple[str, ...], list[asyncio.Future[None]]] = {}
        self._offered: dict[tuple[str, ...], Group] = {}  # what some worker may take up, and rows wait for
        self._rates = RatesOfLate()
        self._features: dict[str, int] = {}  # model key → numbers of its features, since it was loaded
        self._from_disk_s: dict[str, dict[str, float]] = {}  # model key → kind of device → its last such load
        self._tasks = tasks or Tasks()
        self._starting = starting
        self._closed = False
        self._profile = profile
        self._patience_s = patience_s
        self._check_every_s = check_every_s
        self._moves = moves or Moves()
        self._ask_soon: asyncio.Handle | None = None
        self._ask_at: asyncio.TimerHandle | None = None
        self._alone: asyncio.TimerHandle | None = None  # runs while something is wanted and no worker is up

    # ── what is where ───────────────────────────────────────────────────────────────────────────────

    def know(self, models: Iterable[ModelVersion]) -> None:
        """Sizes and last uses that the registry remembers."""
        for model in models:
            self._core.know(model.key, model.resident_bytes, model.last_used_at)
            self._rates.remember(model.key, model.rows_per_s, model.last_used_at)

    def serve(
        self,
        name: str,
        group: Group,
        goal_s: float,
        latencies_s: Sequence[Callable[[int], float]],
        max_batch: int,
        *,
        in_part: bool,
    ) -> None:
        """A function is served by these models, as `Placement.serve` has it."""
        self._served[name] = group
        if keys := self._met(group):
            here = [each for model, each in zip(group, latencies_s, strict=False) if not model.endpoint]
            self._core.serve(name, keys, goal_s, here, max_batch, in_part=in_part)

    def serve_no_more(self, name: str) -> None:
        """The function is gone; what its rows wanted, nobody does, unless another has the same models."""
        self._core.serve_no_more(name)
        self._ask()
        group = self._served.pop(name, None)
        if group is None or group in self._served.values():
            return
        wanted = self._wanted.get(_keys(group))
        if wanted is not None and wanted.by_rows:
            wanted.by_rows = False
            if not wanted.waiters:
                self._withdraw(_keys(group))

    def arrived(self, group: Group, rows: int) -> None:
        """Interactive rows came for the group."""
        if keys := _keys(group):
            self._core.arrived(self._clock(), keys, rows)

    def came(self, group: Group) -> int:
        """Interactive rows that ever came for the group, whether they were let in or not."""
        return self._core.came(_keys(group))

    def size_bytes(self, model: ModelVersion) -> int:
        """What the model takes on a device; 0 while that is not known."""
        return self._core.size_bytes(model.key)

    def lost(self, group: Group, rows: int) -> None:
        """Rows of the group were refused."""
        if keys := _keys(group):
            self._core.lost(keys, rows)

    def touch(self, keys: Iterable[str], rows: int = 1, worker: str = "") -> None:
        """A batch of so many rows is sent to the models, on that worker; `idle` says when it is over."""
        self._core.used(self._clock(), keys, time.time(), worker)
        self._rates.count(keys, rows, time.time())

    def idle(self, keys: Iterable[str], worker: Worker) -> None:
        """A batch of the models is over there."""
        place = self._places.get(worker.name)
        if place is not None and place.worker is worker:
            self._core.idle(keys, worker.name)

    def last_used(self) -> dict[str, float]:
        """Model key → Unix time of its last use."""
        return {key: at_s for key, at_s in self._core.last_used().items() if at_s}

    def rows_per_s(self, key: str) -> float:
        """Of a model, of late; over restarts."""
        return self._rates.rows_per_s(key)

    def features(self, model: ModelVersion) -> int:
        """Numbers of a model's features, as reported by a worker that has loaded it; 0 where it has none."""
        return self._features.get(model.key, 0)

    def is_resident(self, group: Group, without: Collection[str] = ()) -> bool:
        """Whether live workers hold all of the group so that it can run, those in `without` left out."""
        keys = _keys(group)
        return not keys or self._core.is_resident(keys, without)

    def holds_anything(self) -> bool:
        """Whether some live worker holds some model."""
        return any(self._core.resident(name) for name in self._places)

    def resident(self) -> dict[str, list[str]]:
        """Worker → keys of the models that it holds."""
        return {name: sorted(self._core.resident(name)) for name in self._places}

    def places(self) -> list[Place]:
        """Every live worker: what it holds, and what moves."""
        now_s, unix_s = self._clock(), time.time()
        state = self._core.everything(now_s)
        return [
            place_of(
                name,
                state,
                self._moves,
                now_s,
                unix_s,
                reason=_why_of(place.step),
                word=place.link.word,
                word_unix_s=place.link.word_at_s,
            )
            for name, place in self._places.items()
        ]

    def held(self) -> dict[str, tuple[int, int, int]]:
        """Worker → models that it holds, their bytes, and bytes that it has ready in the host's memory."""
        return {
            place.worker: (len(place.held), place.used_bytes, sum(place.host.values()))
            for place in self.places()
        }

    def swap_s(self, model: ModelVersion, device: str) -> float:
        """What loading the model on that kind of device should take."""
        return 0.0 if model.endpoint else self._core.expected_s(model.key, device)

    def from_disk_s(self, model: ModelVersion, device: str) -> float:
        """What its last load from the disk took on that kind of device, without what is done once; 0 = not
        known. Where the host's memory keeps models, `swap_s` is that of a load from there."""
        return self._from_disk_s.get(model.key, {}).get(device, 0.0)

    # ── workers that come and go ──────────────────────────────────────────────────────────────────────

    def worker_up(self, worker: Worker) -> None:
        """A fresh worker is offered all that is served."""
        self._places[worker.name] = _LiveWorker(WorkerLink(worker, self._patience_s))
        offers = [*self._listener.waited_for(), *self._starting()]
        self._core.worker_up(
            worker.name,
            self._capacity(worker),
            worker.info.device_name,
            dict.fromkeys(keys for group in offers if (keys := self._met(group))),
            self._rates.rows_per_s,
            node=worker.info.node,
            is_far=worker.info.is_far,
        )
        self._listener.resident_changed(worker, frozenset())
        if self._check_every_s:
            place = self._places[worker.name]
            place.checks = self._tasks.once("check", self._keep_true(place), f"check {worker.name}")
        self._ask()

    def worker_down(self, worker: Worker) -> None:
        """Forget a worker."""
        place = self._places.get(worker.name)
        if place is not None and place.worker is worker:
            place.link.gone = True
            if place.checks is not None:
                place.checks.cancel()
            self._moves.links[worker.name].over(self._clock())
            for order in place.ordered:
                _done(order.told)
            del self._places[worker.name]
            self._core.worker_down(worker.name)
            self._listener.worker_lost(worker)
        self._want_again()  # what only it held: another worker may be idle meanwhile
        self._ask()

    def expect(self, workers: int) -> None:
        """So many workers there will be from now on."""
        self._core.expect(workers)
        self._ask()

    def leave(self, name: str) -> None:
        """The worker is to end: nothing is loaded there any more, and what it holds counts as being nowhere.

        What rows wait for that only it holds is loaded elsewhere; until then they may still be sent there.
        """
        self._core.leave(name)
        place = self._places.get(name)
        if place is not None and place.load:
            place.link.give_up(place.load)
        self._want_again()
        self._ask()

    def stay(self, name: str) -> None:
        """The worker does not end after all."""
        self._core.stay(name)
        self._ask()

    def gone(self, name: str) -> None:
        """The worker has ended and does not come again."""
        self._core.gone(name)
        self._ask()

    def is_settled(self, name: str) -> bool:
        """Whether the worker is up, has loaded all that it began with, and nothing moves there."""
        return self._core.is_settled(name)

    def is_still(self, name: str) -> bool:
        """Whether nothing moves there; of one that is down nothing does."""
        place = self._places.get(name)
        return place is None or not (place.ordered or self._core.is_moving(name))

    def only_on(self, name: str) -> list[Group]:
        """What is served that could not run without that worker."""
        return [tuple(self._models[key] for key in keys) for keys in self._core.only_on(name)]

    def is_needed(self, group: Group) -> bool:
        """Whether rows wait for the group, or came for it of late."""
        if any(_keys(group) == _keys(other) for other in self._listener.waited_for()):
            return True
        last_used = self._core.last_used()
        return min((last_used.get(key, 0.0) for key in _keys(group)), default=0.0) > time.time() - _OF_LATE_S

    async def load_beside(self, name: str) -> None:
        """Have what is needed of that worker's models on others, and what else there is room for.

        Raises `Overloaded` where the others have no room for what is needed, and what `load` raises.
        """
        needed = [group for group in dict.fromkeys(self._served.values()) if self.is_needed(group)]
        if not self._core.fits_beside(name, map(_keys, needed)):
            keys = ", ".join(dict.fromkeys(key for group in needed for key in _keys(group)))
            raise Overloaded(f"the other workers have no room for what rows are asked of: {keys}", 30.0)
        for group in self.only_on(name):
            await self.spread(group)
        for group in self.only_on(name):
            if self.is_needed(group):
                await self.load(group)

    def not_there(self, worker: Worker, keys: Iterable[str]) -> None:
        """The worker says that it does not hold these."""
        place = self._places.get(worker.name)
        if place is None or place.worker is not worker:
            return
        for key in sorted(self._core.resident(worker.name).intersection(keys)):
            log.error("a model believed to be there is not worker=%s model=%s", worker.name, key)
            self._moves.differences["missing"] += 1
            self._moves.add(worker.name, key, "eviction", MISSING)
        self._core.forget(worker.name, keys)
        self._changed(place)

    def short_of_memory(self, worker: Worker, keys: Collection[str]) -> None:
        """The worker's device had no memory for a pass of these: another model leaves for it."""
        place = self._places.get(worker.name)
        if place is None or place.worker is not worker or any(one.reason == CROWDED for one in place.ordered):
            return
        if leaving := self._core.crowded(self._clock(), worker.name, keys):
            log.warning("device short of memory worker=%s leaves=%s", worker.name, leaving)
            self._core.offer_no_more([leaving])
            self._order(place, frozenset([leaving]), CROWDED)

    async def close(self) -> None:
        """Stop loading."""
        self._closed = True
        for handle in (self._ask_soon, self._ask_at, self._alone):
            if handle is not None:
                handle.cancel()
        await self._tasks.close()

    # ── what is wanted ────────────────────────────────────────────────────────────────────────────────

    def want(self, group: Group, without: Collection[str] = ()) -> None:
        """Make the group resident soon, if it is not; the listener hears if that fails.

        Workers named in `without` are not counted on: they hold models, and run nothing.
        """
        keys = _keys(group)
        known = self._wanted.get(keys)
        if known is not None and known.by_rows:
            if known.is_left:  # so nothing may have been begun for it
                self._ask()
            return
        if self._closed or self.is_resident(group, without):
            return
        if not self._places.keys() - set(without):
            return  # the next one to come up asks `waited_for`
        wanted = self._open(group, without, by_rows=not without)
        wanted.by_rows, wanted.spreads = True, not without
        self._ask()

    async def load(self, group: Group, without: Collection[str] = ()) -> None:
        """Make the group resident, evicting others; wait for a worker if there is none.

        Who stops waiting leaves at once; what was begun on a worker is ended and noted all the same.
        Raises `BadOption` if a model cannot be loaded or can never fit, `Overloaded` if there is no room
        now, `WorkerLost` if workers die of it twice.
        """
        if self.is_resident(group, without):
            return
        wanted = self._open(group, without)
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        wanted.waiters.append(waiter)
        self._ask()
        try:
            await waiter
        finally:
            if waiter in wanted.waiters:  # given up
                wanted.waiters.remove(waiter)
                if not wanted.by_rows and not wanted.waiters:
                    self._withdraw(_keys(group))

    async def spread(self, group: Group) -> None:
        """Load the group on every worker that has room for it, evicting nothing."""
        keys = self._met(group)
        if not keys:
            return
        self._core.offer(keys)
        self._ask()
        await self._offers_end(keys)

    async def _offers_end(self, keys: tuple[str, ...]) -> None:
        """Every worker that was offered these has taken them up, or has not."""
        if self._core.is_offered(keys):
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._spreading.setdefault(keys, []).append(waiter)
            await waiter

    async def load_on(self, name: str, model: ModelVersion) -> bool:
        """Load the model on that worker if it has room, evicting nothing; whether it is there then."""
        keys = self._met((model,))
        if name in self._core.present() and keys:
            self._core.offer(keys, [name])
            self._ask()
            await self._offers_end(keys)
        return name in self._places and self._core.resident(name).issuperset(keys)

    async def unload_from(self, name: str, key: str) -> None:
        """Evict a model from that worker; batches under way finish first."""
        if (place := self._places.get(name)) is not None:
            await self._order(place, frozenset([key]), CAPACITY)

    def read_on(self, name: str, model: ModelVersion) -> bool:
        """Have that worker read the model into the host's memory; whether it has any beside its device's."""
        place = self._places.get(name)
        if place is None or not place.has_tiers:
            return False
        self._met((model,))
        place.link.read(model)
        return True

    async def unload(self, keys: Iterable[str]) -> None:
        """Evict models from every worker; batches under way finish first, loads of them are given up.

        What somebody waits for, rows or a deployment, is loaded again after that.
        """
        wanted = frozenset(keys)
        self._core.offer_no_more(wanted)
        waited_for = {_keys(group) for group in self._listener.waited_for()}
        for group, one in list(self._wanted.items()):
            if not wanted.isdisjoint(group) and not one.waiters and group not in waited_for:
                self._withdraw(group)
        for place in self._places.values():
            for key in wanted.intersection([place.load]):
                self._give_up(place, key)
        await asyncio.gather(*(self._order(place, wanted, OPERATOR) for place in self._places.values()))

    def _order(self, place: _LiveWorker, keys: frozenset[str], reason: str) -> asyncio.Future[None]:
        order = _Order(keys, reason, asyncio.get_running_loop().create_future())
        place.ordered.append(order)
        self._ask()
        return order.told

    def _withdraw(self, keys: tuple[str, ...]) -> None:
        """Nobody wants the group; a load that was begun for nothing else is given up."""
        self._wanted.pop(keys, None)
        self._core.withdraw(keys)
        for place in self._places.values():
            if keys in place.for_wishes:
                place.for_wishes.remove(keys)
                if not place.for_wishes and not self._core.is_offered(keys):
                    self._give_up(place, place.load)
        self._ask()

    def _give_up(self, place: _LiveWorker, key: str) -> None:
        """Unless somebody else wants the model."""
        waited_for = {_keys(group) for group in self._listener.waited_for()}
        if not any(key in group for group in (*self._wanted, *waited_for)):
            place.link.give_up(key)

    def _open(self, group: Group, without: Collection[str], *, by_rows: bool = False) -> _Wanted:
        keys = self._met(group)
        self._core.want(self._clock(), keys, without, by_rows=by_rows)
        if keys not in self._wanted:
            self._wanted[keys] = _Wanted(group, self._clock())
        return self._wanted[keys]

    def _want_again(self) -> None:
        # Rows may wait for a model that has just been evicted, or whose load found no worker.
        for group in self._listener.waited_for():
            self.want(group)

    def _met(self, group: Group) -> tuple[str, ...]:
        for model in group:
            self._models[model.key] = model
        return _keys(group)

    # ── decisions, and carrying them out ────────────────────────────────────────────────────────────────

    def _ask(self) -> None:
        # Not at once: what else changes in this turn of the loop belongs to the same decision.
        if self._ask_soon is None and not self._closed:
            self._ask_soon = asyncio.get_running_loop().call_soon(self._decide)

    def _decide(self) -> None:
        """Ask the policy, begin what it decides, end what is over."""
        self._ask_soon = None
        if self._ask_at is not None:
            self._ask_at.cancel()
            self._ask_at = None
        now_s = self._clock()
        for place in self._places.values():
            while place.ordered and not self._core.is_moving(place.link.name):
                self._begin_ordered(now_s, place)
        waited_for: dict[tuple[str, ...], WaitingRows] = {}
        for group, rows in self._listener.demand().items():
            if keys := self._met(group):  # of several that differ in models elsewhere, the most
                known = waited_for.get(keys)
                waited_for[keys] = rows if known is None or known.rows < rows.rows else known
                if self._core.is_offered(keys):
                    self._offered[keys] = group
        for keys, wanted in self._wanted.items():
            wanted.is_left = keys not in waited_for
        steps, until_s = self._core.steps(now_s, waited_for)
        if (fault := self._core.take_fault()) is not None:
            log.error("placement policy put aside for lru policy=%s", fault.policy, exc_info=fault.error)
        for step in steps:
            place = self._places[step.worker]
            if step.abort:
                place.link.give_up(step.abort)
            else:
                self._begin(place, step)
        self._want_what_lies(waited_for)
        until_s = min(until_s, self._read_ahead(now_s, waited_for))
        if until_s < math.inf:
            wait_s = max(0.001, until_s - now_s)
            self._ask_at = asyncio.get_running_loop().call_later(wait_s, self._ask)
        self._end_wishes()
        self._end_spreads()
        self._forget()
        self._watch_for_workers()

    def _want_what_lies(self, waited_for: Collection[tuple[str, ...]]) -> None:
        """What was offered for rows, and no worker takes up, is wanted: they are to hear how that ends."""
        for keys in [keys for keys in self._offered if not self._core.is_offered(keys)]:
            group = self._offered.pop(keys)
            if keys in waited_for:
                self.want(group)

    def _forget(self) -> None:
        """What is kept of models that are no more: whoever retrains for years makes many versions."""
        for key in self._core.take_forgotten():
            self._models.pop(key, None)
            self._features.pop(key, None)
            self._from_disk_s.pop(key, None)
            self._rates.forget(key)
            self._moves.forget(key)

    def _read_ahead(self, now_s: float, waited_for: Mapping[tuple[str, ...], WaitingRows]) -> float:
        """While one model is on its way to the device, the next one is read into the host's memory.

        When to look again.
        """
        again_s = math.inf
        for place in self._places.values():
            if place.load and place.has_tiers and now_s >= place.look_ahead_s:
                key = self._core.ahead(now_s, place.link.name, waited_for)
                place.look_ahead_s = math.inf if key else now_s + _LOOK_AHEAD_S
                if key in self._models:
                    place.link.read(self._models[key])
            if place.load and place.has_tiers:
                again_s = min(again_s, place.look_ahead_s)
        return again_s

    def _begin_ordered(self, now_s: float, place: _LiveWorker) -> None:
        """What is ordered goes before what the policy would do."""
        order, name = place.ordered.pop(0), place.link.name
        keys = order.keys if order.reason == UNKNOWN else order.keys & self._core.resident(name)
        if not keys:
            _done(order.told)
            return
        step = Step(name, tuple(sorted(keys)), "", reasons=dict.fromkeys(keys, (order.reason, "")))
        self._core.begin(now_s, step)
        task = self._begin(place, step)
        task.add_done_callback(lambda _: _done(order.told))

    def _begin(self, place: _LiveWorker, step: Step) -> asyncio.Task[None]:
        place.step, place.look_ahead_s = step, -math.inf
        place.link.stop_reading(but=step.load)
        place.for_wishes = [keys for keys in self._wanted if step.load in keys]
        place.link.begin((*step.evict, *([step.load] if step.load else [])))
        self._moves.links[step.worker].began(self._clock())
        if step.evict:  # out of the dispatcher's sight before the worker hears of it: no batch comes too late
            self._changed(place)
        return self._tasks.once("load", self._carry_out(place, step), f"load on {step.worker}")

    async def _carry_out(self, place: _LiveWorker, step: Step) -> None:
        try:
            for key in step.evict:
                if not place.gone:
                    await self._evict(place, step, key)
            if step.load and not place.gone:
                await self._load_one(place, step, self._models[step.load])
        except Exception as error:  # whatever it is: its rows must not wait for nothing
            if step.load:
                self._failed(place, step.load, ServiceError(f"model {step.load} cannot be loaded: {error!r}"))
            raise
        finally:
            place.step, place.for_wishes = None, []
            place.link.over()
            if not place.gone:
                self._moves.links[step.worker].over(self._clock())
                self._core.over(step.worker)
            self._ask()

    async def _load_one(self, place: _LiveWorker, step: Step, model: ModelVersion) -> None:
        name, began_s = step.worker, self._clock()
        reply = await place.link.load(model)
        took_s = self._clock() - began_s
        if isinstance(reply, Failed):
            if reply.code == "cancelled" and place.link.has_given_up(model.key):
                log.info("load given up worker=%s model=%s after_s=%.3f", name, model.key, took_s)
                self._moved(step, model.key, "load", "given up", took_s)
                return
            no_room = reply.code == "overloaded" and reply.wanted_bytes and not place.gone
            if no_room and self._core.refused(name, model.key, reply.wanted_bytes):
                self._moved(step, model.key, "load", "refused", took_s, reply.code)
                return  # the policy knows better now
            log.error(
                "load failed worker=%s model=%s code=%s reason=%r", name, model.key, reply.code, reply.message
            )
            self._moved(step, model.key, "load", "failed", took_s, reply.code)
            self._failed(place, model.key, _error_of(reply, model))
            return
        if place.gone:
            return
        if not isinstance(reply, Loaded):
            raise ServiceError(f"worker {name} answered a load with {reply.kind!r}")
        # The first load also prepares: what decisions should count with is what the next one takes.
        size, load_s = reply.resident_bytes, reply.again_s or reply.load_s
        log.info(
            "model loaded worker=%s model=%s bytes=%d load_s=%.3f again_s=%.3f precision=%r",
            name,
            model.key,
            size,
            reply.load_s,
            load_s,
            reply.precision,
        )
        self._measured(model, size, load_s)
        self._features[model.key] = reply.features
        if reply.read_s:
            from_disk_s = self._from_disk_s.setdefault(model.key, {})
            from_disk_s[place.worker.info.device_name] = reply.load_s - reply.prepare_s
        if self._profile is not None:
            await self._profile(place.worker, model, lambda: self._is_waited_for(model))
            if place.gone:
                lost = WorkerLost(f"worker {name} died under the first rows of {model.key}")
                self._failed(place, model.key, lost, died=False)
                return
        self._moved(step, model.key, "load", "done", took_s)
        self._core.loaded(self._clock(), name, model.key, size, load_s)
        self._moves.links[name].bytes_per_s = self._core.link_bytes_per_s(name)
        self._changed(place)

    async def _evict(self, place: _LiveWorker, step: Step, key: str) -> None:
        name, began_s = step.worker, self._clock()
        reply = await place.link.unload(key)
        took_s = self._clock() - began_s
        if not place.gone:
            self._core.evicted(name, key)
        if not isinstance(reply, Done):
            log.warning("not unloaded worker=%s model=%s reply=%s", name, key, reply)
            code = reply.code if isinstance(reply, Failed) else reply.kind
            self._moved(step, key, "eviction", "failed", took_s, code)
        else:
            log.info("model evicted worker=%s model=%s", name, key)
            self._moved(step, key, "eviction", "done", took_s)

    def _moved(
        self, step: Step, key: str, kind: MoveKind, outcome: Outcome, took_s: float, error: str = ""
    ) -> None:
        reason, because_of = step.reasons.get(key, ("", ""))
        self._moves.add(
            step.worker, key, kind, reason, because_of, outcome=outcome, took_s=took_s, error=error
        )

    def _failed(self, place: _LiveWorker, key: str, error: ServiceError, *, died: bool | None = None) -> None:
        lost = isinstance(error, WorkerLost) if died is None else died
        self._core.failed("" if place.gone else place.worker.name, key, error, died=lost)
        if lost:
            return
        # Rows that came while no worker was up have no wish that ends: the one that came was offered theirs.
        for group in self._listener.waited_for():
            if key in _keys(group) and _keys(group) not in self._wanted:
                self._listener.load_failed(group, error)

    def _is_waited_for(self, model: ModelVersion) -> bool:
        return any(model in group for group in self._listener.waited_for())

    def _changed(self, place: _LiveWorker) -> None:
        if place.gone:
            return
        self._listener.resident_changed(place.worker, self._core.resident(place.worker.name))
        self._want_again()

    # ── the workers' own word ─────────────────────────────────────────────────────────────────────────────

    async def _keep_true(self, place: _LiveWorker) -> None:
        while not place.gone and not self._closed:
            await asyncio.sleep(self._check_every_s)
            await self._check(place)

    async def check(self) -> None:
        """Ask every worker what it holds, and go by that."""
        await asyncio.gather(*(self._check(place) for place in self._places.values()))

    async def _check(self, place: _LiveWorker) -> None:
        answer = await place.link.listed()
        if answer is None or place.gone:
            return
        told, moved = answer
        name = place.link.name
        found = differences(self._core.resident(name), told.device, moved)
        if found.missing:
            self.not_there(place.worker, found.missing)
            self._ask()
        if found.unknown:
            log.error("models are there that were not known of worker=%s models=%s", name, found.unknown)
            self._moves.differences["unknown"] += len(found.unknown)
            self._order(place, frozenset(found.unknown), UNKNOWN)

    # ── telling who waits ───────────────────────────────────────────────────────────────────────────────

    def _end_wishes(self) -> None:
        for ended in self._core.take_ended():
            wanted = self._wanted.pop(ended.group, None)
            if wanted is None:
                continue
            error = _why(ended)
            if ended.reason == "resident" and wanted.spreads:
                self._core.offer(ended.group)
                self._ask()
            self._tell(wanted, error)

    def _tell(self, wanted: _Wanted, error: ServiceError | None) -> None:
        waiters, wanted.waiters = wanted.waiters, []
        for waiter in waiters:
            _done(waiter, error)
        if error is not None and wanted.by_rows:
            self._listener.load_failed(wanted.group, error)

    def _end_spreads(self) -> None:
        for keys in [keys for keys in self._spreading if not self._core.is_offered(keys)]:
            for waiter in self._spreading.pop(keys):
                _done(waiter)

    def _watch_for_workers(self) -> None:
        """What is wanted while no worker is up waits for one, and not for ever."""
        if not self._wanted or self._places or self._closed:
            if self._alone is not None:
                self._alone.cancel()
                self._alone = None
        elif self._alone is None:
            self._alone = asyncio.get_running_loop().call_later(self._patience_s, self._nobody_came)

    def _nobody_came(self) -> None:
        self._alone = None
        for keys, wanted in list(self._wanted.items()):
            del self._wanted[keys]
            self._core.withdraw(keys)
            self._tell(wanted, Overloaded("no worker is up; GET /v1/workers says how they fare", 10.0))


def _done(waiter: asyncio.Future[None], error: ServiceError | None = None) -> None:
    if waiter.done():
        return
    if error is None:
        waiter.set_result(None)
    else:
        waiter.set_exception(error)


def _why_of(step: Step | None) -> str:
    if step is None:
        return ""
    return " ".join(step.reasons.get(step.load or step.evict[0], ("", ""))).strip()


def _keys(group: Group) -> tuple[str, ...]:
    """Of those that take a place here; what is behind another server takes none, and is always there."""
    return tuple(model.key for model in group if not model.endpoint)


def _why(ended: Ended) -> ServiceError | None:
    """The error of those who wait for a wish that is over; None: it came true."""
    keys = ", ".join(ended.group)
    if ended.reason in ("resident", "unasked"):
        return None
    if ended.reason == "too_large":
        return BadOption(f"the models {keys} do not fit on the workers together")
    if ended.reason == "crowded":
        return Overloaded(f"workers do not keep {keys} together")
    if isinstance(ended.error, ServiceError):
        return ended.error
    return ServiceError(f"{keys} cannot be loaded: {ended.error!r}")


def _error_of(reply: Failed, model: ModelVersion) -> ServiceError:
    message = f"model {model.key} cannot be loaded: {reply.message}"
    if is_variant(model.name):
        again = f"ml-udf variants {base_of(model.name)} --only {variant_of(model.name)}"
        message += f" (a variant is made again by: {again})"
    if reply.code == "worker_lost":
        return WorkerLost(message)
    if reply.code == "overloaded":
        return Overloaded(message)
    return BadOption(message) if reply.code == "bad_option" else ServiceError(message)
