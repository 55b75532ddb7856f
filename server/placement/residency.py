"""Keeps on every worker the models that are wanted: the shell around `server/placement`.

Owns what is resident where, when each model was used, and the loads and evictions under way. A group is
the members of one function: they are loaded together, on one worker, as a batch runs through all of them.
Knows nothing of queues; it asks who is waited for, and tells whoever listens what has changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from gpu_worker.wire.protocol import Done, Failed, Load, Loaded, Message, Unload
from server.catalog.functions import ModelVersion
from server.errors import BadOption, Overloaded, ServiceError, WorkerLost
from server.placement.lru import Capacity, Stay, evictions, starting_set
from server.supervision import Tasks
from server.workers.pool import Worker

__all__ = ["Group", "Profile", "Residency", "ResidencyListener"]

log = logging.getLogger("ml_udf.server.residency")

Group = tuple[ModelVersion, ...]
Profile = Callable[[Worker, ModelVersion, Callable[[], bool]], Awaitable[None]]

_PROTECTED_LOADS = 5.0  # a model that rows wait for stays at least this many times its own load time,
_PROTECTED_LEAST_S = 0.25  # and at least this long
_PATIENCE_S = 120.0
_DEATHS = 2  # a model of whose load so many workers died is no longer loaded unasked


class ResidencyListener(Protocol):
    """Who is told; all on the event loop."""

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


@dataclass(slots=True, eq=False)
class _Place:
    """A live worker and what it holds: model key → when it was loaded, and how long that took.

    Whoever has `changing` may load and evict there.
    """

    worker: Worker
    loaded: dict[str, tuple[float, float]] = field(default_factory=dict)
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)
    gone: bool = False

    def holds(self, group: Group) -> bool:
        return all(model.key in self.loaded for model in group)


@dataclass(slots=True, eq=False)
class _Change:
    """Loads and evictions under way on one worker. `wanted`: whether somebody still waits for them."""

    wanted: bool = True
    error: ServiceError | None = None


class _SizeLearned(Overloaded):
    """The worker had no room for a model, and says how much it takes."""


class Residency:
    """`capacity(worker)`: what it may hold. `measured(model, bytes, seconds)` is told of every load.

    `starting()`: what a starting worker should hold. `profile(worker, model, is_waited_for)`, if there is
    one, is awaited before rows are sent to what was loaded. A worker that does not carry out one message
    within `patience_s` is killed.
    """

    def __init__(
        self,
        listener: ResidencyListener,
        capacity: Callable[[Worker], Capacity],
        measured: Callable[[ModelVersion, int, float], None],
        clock: Callable[[], float] = time.monotonic,
        *,
        starting: Callable[[], Iterable[Group]] = tuple,
        profile: Profile | None = None,
        patience_s: float = _PATIENCE_S,
        tasks: Tasks | None = None,
    ) -> None:
        self._listener = listener
        self._capacity = capacity
        self._measured = measured
        self._clock = clock
        self._places: dict[str, _Place] = {}
        self._sizes: dict[str, int] = {}
        self._used: dict[str, float] = {}  # model key → Unix time of its last use
        self._tasks = tasks or Tasks()
        self._wanted: set[tuple[str, ...]] = set()  # groups whose load is under way
        self._deaths: dict[str, int] = {}  # model key → workers that died of loading it, in a row
        self._a_place = asyncio.Event()
        self._starting = starting
        self._closed = False
        self._profile = profile
        self._patience_s = patience_s

    # ── what is where ───────────────────────────────────────────────────────────────────────────────

    def know(self, models: Iterable[ModelVersion]) -> None:
        """Sizes and last uses that the registry remembers."""
        for model in models:
            if model.resident_bytes:
                self._sizes.setdefault(model.key, model.resident_bytes)
            if model.last_used_at:
                self._used.setdefault(model.key, model.last_used_at)

    def touch(self, keys: Iterable[str]) -> None:
        """The models were used now."""
        now = time.time()
        for key in keys:
            self._used[key] = now

    def last_used(self) -> dict[str, float]:
        """Model key → Unix time of its last use."""
        return dict(self._used)

    def is_resident(self, group: Group, without: Collection[str] = ()) -> bool:
        """Whether some live worker holds all of the group, those named in `without` left out."""
        return any(place.holds(group) for name, place in self._places.items() if name not in without)

    def holds_anything(self) -> bool:
        """Whether some live worker holds some model."""
        return any(place.loaded for place in self._places.values())

    def resident(self) -> dict[str, list[str]]:
        """Worker → keys of the models that it holds."""
        return {name: sorted(place.loaded) for name, place in self._places.items()}

    # ── workers that come and go ──────────────────────────────────────────────────────────────────

    def worker_up(self, worker: Worker) -> None:
        """Fill a fresh worker: the groups most recently used, until it is full."""
        place = self._places[worker.name] = _Place(worker)
        self._a_place.set()
        self._listener.resident_changed(worker, frozenset())
        self._tasks.once("fill", self._fill(place), f"fill {worker.name}")

    def worker_down(self, worker: Worker) -> None:
        """Forget a worker."""
        place = self._places.get(worker.name)
        if place is not None and place.worker is worker:
            place.gone = True
            del self._places[worker.name]
            self._listener.worker_lost(worker)
        if not self._places:
            self._a_place.clear()
        self._want_again()  # what only it held: another worker may be idle meanwhile

    def not_there(self, worker: Worker, keys: Iterable[str]) -> None:
        """The worker says that it does not hold these (it evicted them by itself)."""
        place = self._places.get(worker.name)
        if place is not None and place.worker is worker:
            for key in keys:
                place.loaded.pop(key, None)
            self._changed(place)

    async def close(self) -> None:
        """Stop loading."""
        self._closed = True
        await self._tasks.close()

    # ── loads and evictions ───────────────────────────────────────────────────────────────────────

    def want(self, group: Group, without: Collection[str] = ()) -> None:
        """Make the group resident soon, if it is not; the listener hears how it went.

        Workers named in `without` are not counted on: they hold models, and run nothing.
        """
        keys = tuple(model.key for model in group)
        if self._closed or keys in self._wanted or self.is_resident(group, without):
            return
        if not self._places.keys() - set(without):
            return  # the next one to come up asks `waited_for`

        async def bring() -> None:
            try:
                await self.load(group, without)
                if not without:
                    await self.spread(group)
            except ServiceError as error:
                self._listener.load_failed(group, error)
            except Exception as error:  # whatever it is: its rows must not wait for nothing
                self._listener.load_failed(
                    group, ServiceError(f"{', '.join(keys)} cannot be loaded: {error!r}")
                )
                raise
            finally:
                self._wanted.discard(keys)

        self._wanted.add(keys)
        self._tasks.once("load", bring(), f"load {', '.join(keys)}")

    async def load(self, group: Group, without: Collection[str] = ()) -> None:
        """Make the group resident on one worker, evicting others; wait for a worker if there is none.

        Who stops waiting leaves at once; what was begun on the worker is ended and noted all the same.
        Raises `BadOption` if a model cannot be loaded or can never fit, `Overloaded` if there is no room
        now, `WorkerLost` if the worker dies of it twice.
        """
        for attempt in (1, 2):
            await self._someone()
            place = self._best_place(group, without)
            try:
                await self._bring(place, group, may_evict=True)
                return
            except WorkerLost:
                if attempt == 2:
                    raise

    async def _someone(self) -> None:
        """Wait until there is a worker. Raises `Overloaded`."""
        try:
            async with asyncio.timeout(self._patience_s):
                while not self._places:  # the one that came may have gone before this task's turn
                    await self._a_place.wait()
        except TimeoutError:
            raise Overloaded("no worker is up; GET /v1/workers says how they fare", 10.0) from None

    async def spread(self, group: Group) -> None:
        """Load the group on every worker that has room for it, evicting nothing."""
        for place in list(self._places.values()):
            try:
                await self._bring(place, group, may_evict=False)
            except ServiceError as error:
                log.info("not spread worker=%s reason=%r", place.worker.name, error.message)

    async def unload(self, keys: Iterable[str]) -> None:
        """Evict models from every worker; batches under way finish first."""
        wanted = set(keys)
        for place in list(self._places.values()):

            async def evict(change: _Change, place: _Place = place) -> None:
                for key in wanted & place.loaded.keys():
                    await self._evict(place, key)

            with contextlib.suppress(WorkerLost):  # then it holds nothing
                await self._change(place, evict, f"unload from {place.worker.name}")

    async def _fill(self, place: _Place) -> None:
        """Load an empty worker, and then whatever rows wait for in vain."""
        groups = [
            group
            for group in [*self._listener.waited_for(), *self._by_recency(self._starting())]
            # A model that kills its workers must not keep all others from being served.
            if all(self._deaths.get(model.key, 0) < _DEATHS for model in group)
        ]
        models = {model.key: model for group in groups for model in group}
        plan = starting_set(
            [[model.key for model in group] for group in groups], self._sizes, self._capacity(place.worker)
        )
        for keys in plan:
            try:
                await self._bring(place, tuple(models[key] for key in keys), may_evict=False)
            except WorkerLost:
                return
            except ServiceError as error:
                log.warning(
                    "not loaded worker=%s models=%s reason=%r", place.worker.name, keys, error.message
                )
        self._want_again()

    def _by_recency(self, groups: Iterable[Group]) -> list[Group]:
        return sorted(groups, key=lambda group: -max(self._used.get(model.key, 0.0) for model in group))

    def _best_place(self, group: Group, without: Collection[str]) -> _Place:
        """The worker that lacks least of the group; of equals, one where nothing changes, the emptiest."""
        return min(
            self._places.values(),
            key=lambda place: (
                place.worker.name in without,
                sum(m.key not in place.loaded for m in group),
                place.changing.locked(),
                len(place.loaded),
            ),
        )

    async def _bring(self, place: _Place, group: Group, *, may_evict: bool) -> None:
        async def bring(change: _Change) -> None:
            # A worker that finds a model larger than was known here evicts by itself, even of this group, or
            # refuses; either way its size is known afterwards, and room is made for it.
            for _ in range(1 + 2 * len(group)):
                await self._make_room(place, group, change, may_evict=may_evict)
                with contextlib.suppress(_SizeLearned):
                    for model in group:
                        if model.key not in place.loaded and change.wanted:
                            await self._load_one(place, model, may_evict=may_evict)
                if place.holds(group) or not change.wanted:
                    return
            names = ", ".join(model.key for model in group)
            raise Overloaded(f"worker {place.worker.name} does not keep {names} together")

        await self._change(place, bring, f"load on {place.worker.name}")

    async def _change(self, place: _Place, work: Callable[[_Change], Awaitable[None]], name: str) -> None:
        """Do that alone on the place. It goes on if the caller is cancelled, so that what the worker did is
        known; but begins nothing more that is not wanted.
        """
        change = _Change()

        async def changed() -> None:
            try:
                if place.gone:
                    raise WorkerLost(f"worker {place.worker.name} is gone")
                await work(change)
            except ServiceError as error:
                change.error = error

        await place.changing.acquire()
        task = self._tasks.once("change", changed(), name)
        task.add_done_callback(lambda _: place.changing.release())
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            change.wanted = False
            raise
        if change.error is not None:
            raise change.error

    async def _make_room(self, place: _Place, group: Group, change: _Change, *, may_evict: bool) -> None:
        wanted = {model.key: self._sizes.get(model.key, 0) for model in group}
        while not place.holds(group) and change.wanted:
            found = evictions(self._clock(), wanted, self._stays(place), self._capacity(place.worker))
            if found is None:
                raise _do_not_fit(place, group)
            if found and not may_evict:
                raise Overloaded(f"worker {place.worker.name} is full")
            if isinstance(found, float):
                await asyncio.sleep(max(0.0, found - self._clock()))
                continue
            for key in found:
                await self._evict(place, key)
            return

    def _stays(self, place: _Place) -> dict[str, Stay]:
        waited = self._waited_for()
        return {
            key: Stay(
                size_bytes=self._sizes.get(key, 0),
                last_used_s=self._used.get(key, 0.0),
                waited_for=key in waited,
                protected_until_s=loaded_s + max(_PROTECTED_LEAST_S, _PROTECTED_LOADS * load_s),
            )
            for key, (loaded_s, load_s) in place.loaded.items()
        }

    def _waited_for(self) -> set[str]:
        return {model.key for group in self._listener.waited_for() for model in group}

    async def _load_one(self, place: _Place, model: ModelVersion, *, may_evict: bool) -> None:
        message = Load(0, model.key, str(model.directory), may_evict)
        reply = await self._ask(place, message, f"loading {model.key}")
        if isinstance(reply, Failed):
            if reply.evicted:
                for key in reply.evicted:
                    place.loaded.pop(key, None)
                self._changed(place)
            if reply.code == "overloaded" and reply.wanted_bytes > self._sizes.get(model.key, 0):
                self._sizes[model.key] = reply.wanted_bytes
                raise _SizeLearned(reply.message)
            log.error("load failed worker=%s model=%s code=%s", place.worker.name, model.key, reply.code)
            if reply.code == "worker_lost":
                self._deaths[model.key] = self._deaths.get(model.key, 0) + 1
            raise _error_of(reply, model)
        if not isinstance(reply, Loaded):
            raise ServiceError(f"worker {place.worker.name} answered a load with {reply.kind!r}")
        for key in reply.evicted:  # its true size was not known here; the worker made room by itself
            place.loaded.pop(key, None)
        place.loaded[model.key] = (self._clock(), reply.load_s)
        self._deaths.pop(model.key, None)
        self._sizes[model.key] = reply.resident_bytes
        self._used.setdefault(model.key, 0.0)
        name, size = place.worker.name, reply.resident_bytes
        log.info("model loaded worker=%s model=%s bytes=%d load_s=%.3f", name, model.key, size, reply.load_s)
        self._measured(model, reply.resident_bytes, reply.load_s)
        if self._profile is not None:
            await self._profile(place.worker, model, lambda: model.key in self._waited_for())
            if place.gone:
                raise WorkerLost(f"worker {name} died under the first rows of {model.key}")
        self._changed(place)

    async def _evict(self, place: _Place, key: str) -> None:
        # First out of the dispatcher's sight, so that no batch is sent that the eviction would overtake.
        place.loaded.pop(key, None)
        self._changed(place)
        reply = await self._ask(place, Unload(0, key), f"unloading {key}")
        if not isinstance(reply, Done):
            log.warning("not unloaded worker=%s model=%s reply=%s", place.worker.name, key, reply)
        else:
            log.info("model evicted worker=%s model=%s", place.worker.name, key)

    async def _ask(self, place: _Place, message: Message, what: str) -> Message:
        """The reply; a worker that takes too long is killed, and counts as lost."""
        try:
            async with asyncio.timeout(self._patience_s):
                return await place.worker.call(message)
        except TimeoutError:
            reason = f"{what} took over {self._patience_s:g} s"
        place.worker.kill(reason)
        return Failed(message.id, WorkerLost.code, reason)

    def _changed(self, place: _Place) -> None:
        if place.gone:
            return
        self._listener.resident_changed(place.worker, frozenset(place.loaded))
        self._want_again()

    def _want_again(self) -> None:
        # Rows may wait for a model that has just been evicted, or whose load found no worker.
        for group in self._listener.waited_for():
            self.want(group)


def _do_not_fit(place: _Place, group: Group) -> BadOption:
    keys = ", ".join(model.key for model in group)
    return BadOption(f"the models {keys} do not fit on worker {place.worker.name} together")


def _error_of(reply: Failed, model: ModelVersion) -> ServiceError:
    message = f"model {model.key} cannot be loaded: {reply.message}"
    if reply.code == "worker_lost":
        return WorkerLost(message)
    if reply.code == "overloaded":
        return Overloaded(message)
    return BadOption(message) if reply.code == "bad_option" else ServiceError(message)
