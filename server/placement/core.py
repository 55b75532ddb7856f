"""What is resident where, what is wanted and what moves: the state that placement policies decide on.

Pure: no I/O, no clock, no locks. A shell (the live server's residency, the simulator) reports what happens,
asks `steps`, carries them out on the workers' links and reports again.

    worker_up, worker_down, offer, want, withdraw, used     what there is, and who wants what
    steps                                                    evictions, and then a load, each on its own link
    begun, evicted, loaded, refused, failed, over            how it went
    take_ended                                               wishes that came true, or cannot
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from server.placement.guarded import GuardedPlacement, PlacementFault
from server.placement.link import LoadTimes
from server.placement.packing import packed
from server.placement.policy import (
    Capacity,
    Fetch,
    GroupKeys,
    ModelState,
    Moving,
    PlacementPolicy,
    PlacementState,
    Residence,
    WaitingRows,
    Wish,
    WorkerPlaces,
)

__all__ = ["Ended", "Placement", "Step"]

_FADE_S = 5.0
_TRIES = 2  # of a wish's loads under which workers die
_REFUSALS = 2  # of one model by one worker that had said how much it takes: then it is offered no more


@dataclass(frozen=True, slots=True)
class Step:
    """What one worker's link does next: those leave, one after the other; then one comes ("" = none)."""

    worker: str
    evict: tuple[str, ...]
    load: str


@dataclass(frozen=True, slots=True)
class Ended:
    """A wish that is over.

    reason: "resident"; "too_large" for every worker; "crowded" where a worker refused again and again what
    should fit; "failed" with the error of its load.
    """

    group: GroupKeys
    reason: Literal["resident", "too_large", "crowded", "failed"]
    error: Exception | None = None


@dataclass(slots=True, eq=False)
class _OpenWish:
    """A wish that is not over yet."""

    wish: Wish
    lost: int = 0  # workers that died of its loads
    refusals: int = 0  # of its members by workers that had less room than was known


@dataclass(slots=True, eq=False)
class _Known:
    """What is known of a model. `sent`: rows sent, fading."""

    size_bytes: int = 0
    last_used_s: float = 0.0
    deaths: int = 0
    sent: float = 0.0
    sent_at_s: float = -math.inf


class Placement:
    """`apart`: whether members of a group may be on different workers where no worker can hold them all.

    workers: how many there will be, though not all may be up at once; such that were never up are like the
    first that was.
    """

    def __init__(self, policy: PlacementPolicy, *, apart: bool = False, workers: int = 0) -> None:
        self._policy = GuardedPlacement(policy)
        self._apart = apart
        self._expected_workers = workers
        self._workers: dict[str, WorkerPlaces] = {}
        self._capacities: dict[str, Capacity] = {}  # of all that ever were: one that is gone comes again
        self._refused: dict[str, Counter[str]] = {}  # worker → model → times, since something last left it
        # Worker → bytes of the model on its way, as known when it began.
        self._counted_on: dict[str, int] = {}
        self._known: dict[str, _Known] = {}
        self._open: dict[GroupKeys, _OpenWish] = {}
        self._ended: list[Ended] = []
        self._told_fault = False
        self.load_times = LoadTimes()

    # ── what there is ─────────────────────────────────────────────────────────────────────────────────

    def know(self, key: str, size_bytes: int = 0, last_used_s: float = 0.0) -> None:
        """What is remembered of a model; what was seen since counts for more."""
        model = self._model(key)
        model.size_bytes = model.size_bytes or size_bytes
        model.last_used_s = model.last_used_s or last_used_s

    def used(self, now_s: float, keys: Iterable[str], at_unix_s: float, rows: int = 1) -> None:
        """Rows are sent to the models."""
        for key in keys:
            model = self._model(key)
            model.last_used_s = at_unix_s
            model.sent = model.sent * math.exp((model.sent_at_s - now_s) / _FADE_S) + rows
            model.sent_at_s = now_s

    def last_used(self) -> dict[str, float]:
        """Model → Unix time of its last use."""
        return {key: model.last_used_s for key, model in self._known.items()}

    def worker_up(
        self, name: str, capacity: Capacity, device: str = "", offers: Iterable[GroupKeys] = ()
    ) -> None:
        """An empty worker, and what it may begin with."""
        self._workers[name] = WorkerPlaces(name, capacity, device, offers=self._met(offers))
        self._capacities[name] = capacity
        self._refused[name] = Counter()

    def worker_down(self, name: str) -> None:
        """The worker is gone, and all that it held."""
        self._workers.pop(name, None)
        self._refused.pop(name, None)
        self._counted_on.pop(name, None)

    def resident(self, name: str) -> frozenset[str]:
        """What may be asked of the worker: what it holds, less what is leaving."""
        worker = self._workers[name]
        return frozenset(worker.resident).difference(worker.moving.evicting if worker.moving else ())

    def is_resident(self, group: GroupKeys, without: Collection[str] = ()) -> bool:
        """Whether the group can run, those workers left out: on one of them, or apart if it must and may."""
        held = [self.resident(name) for name in self._workers if name not in without]
        if any(there.issuperset(group) for there in held):
            return True
        return self._apart and not self._fits_somewhere(group) and frozenset().union(*held).issuperset(group)

    def forget(self, name: str, keys: Iterable[str]) -> None:
        """The worker says that it does not hold these."""
        self._drop(name, keys)

    # ── what is wanted ────────────────────────────────────────────────────────────────────────────────

    def offer(self, group: GroupKeys, workers: Iterable[str] | None = None) -> None:
        """Every worker (of those named) may load the group if it has room."""
        self._met([group])
        for name in self._workers if workers is None else workers:
            worker = self._workers[name]
            if group not in worker.offers and not self.resident(name).issuperset(group):
                self._workers[name] = replace(worker, offers=(*worker.offers, group))

    def is_offered(self, group: GroupKeys) -> bool:
        """Whether some worker may still take up that offer."""
        return any(group in worker.offers for worker in self._workers.values())

    def offer_no_more(self, keys: Collection[str]) -> None:
        """No worker loads these unasked."""
        for name, worker in self._workers.items():
            left = tuple(group for group in worker.offers if not any(key in keys for key in group))
            self._workers[name] = replace(worker, offers=left)

    def want(self, now_s: float, group: GroupKeys, without: Collection[str] = ()) -> bool:
        """Others may leave for this group, until it is resident. False if it is, or is wanted already."""
        if group in self._open or self.is_resident(group, without):
            return False
        self._met([group])
        self._open[group] = _OpenWish(Wish(group, now_s, frozenset(without)))
        return True

    def is_wanted(self, group: GroupKeys) -> bool:
        """Whether a wish for it is open."""
        return group in self._open

    def withdraw(self, group: GroupKeys) -> None:
        """Nobody wants it any more."""
        self._open.pop(group, None)

    # ── what to do ────────────────────────────────────────────────────────────────────────────────────

    def state(self, now_s: float, waited_for: Mapping[GroupKeys, WaitingRows]) -> PlacementState:
        """What the policy sees."""
        devices = {worker.device for worker in self._workers.values()}
        models = {
            key: ModelState(
                model.size_bytes,
                model.last_used_s,
                model.sent * math.exp((model.sent_at_s - now_s) / _FADE_S) / _FADE_S,
                model.deaths,
                {device: self.expected_s(key, device) for device in devices},
            )
            for key, model in self._known.items()
        }
        wishes = tuple(one.wish for one in self._open.values())
        return PlacementState(dict(self._workers), models, wishes, dict(waited_for), self._apart)

    def steps(self, now_s: float, waited_for: Mapping[GroupKeys, WaitingRows]) -> tuple[list[Step], float]:
        """What the links do now, each from now on busy until `over`; and when to ask again."""
        self._settle()
        self._met(waited_for)
        decision = self._policy.decide(self.state(now_s, waited_for), now_s)
        steps = []
        for name in dict.fromkeys(action.worker for action in decision.actions):
            of_worker = [action for action in decision.actions if action.worker == name]
            loads = [action.model for action in of_worker if isinstance(action, Fetch)]
            evict = tuple(action.model for action in of_worker if not isinstance(action, Fetch))
            steps.append(Step(name, evict, loads[0] if loads else ""))
            self.begin(now_s, steps[-1])
        self._pass_over()
        return steps, decision.until_s

    def begin(self, now_s: float, step: Step) -> None:
        """The worker's link is busy with this from now on."""
        worker = self._workers[step.worker]
        takes_s = self.expected_s(step.load, worker.device) if step.load else 0.0
        moving = Moving(step.load, step.evict, now_s, now_s + takes_s)
        self._counted_on[step.worker] = self._model(step.load).size_bytes if step.load else 0
        self._workers[step.worker] = replace(worker, moving=moving)

    def is_moving(self, name: str) -> bool:
        """Whether the worker's link is busy."""
        return self._workers[name].moving is not None

    def expected_s(self, key: str, device: str) -> float:
        """What loading the model on that kind of device should take."""
        return self.load_times.expected_s(key, device, self._model(key).size_bytes)

    # ── how it went ───────────────────────────────────────────────────────────────────────────────────

    def evicted(self, name: str, key: str) -> None:
        """The model has left."""
        self._drop(name, [key])

    def loaded(self, now_s: float, name: str, key: str, size_bytes: int, load_s: float) -> None:
        """The model is there, and has said how much it takes."""
        worker, model = self._workers[name], self._model(key)
        model.size_bytes, model.deaths = size_bytes, 0
        self.load_times.observe(key, worker.device, size_bytes, load_s)
        resident = {**worker.resident, key: Residence(now_s, load_s)}
        self._workers[name] = replace(worker, resident=resident)
        self._refused[name].pop(key, None)

    def refused(self, name: str, key: str, wanted_bytes: int) -> bool:
        """The worker had no room for it. Whether it takes more than was known when the load was decided."""
        model = self._model(key)
        is_news = wanted_bytes > self._counted_on.get(name, 0)
        model.size_bytes = max(model.size_bytes, wanted_bytes)
        if is_news:
            for one in self._open.values():
                one.refusals += key in one.wish.group
            if (counted := self._refused.get(name)) is not None:
                counted[key] += 1
        return is_news

    def failed(self, name: str, key: str, error: Exception, *, died: bool = False) -> None:
        """The model could not be loaded there; `died`: the worker did not survive it."""
        if died:
            self._model(key).deaths += 1
        for group, one in list(self._open.items()):
            if key in group:
                one.lost += 1
                if not died or one.lost >= _TRIES:
                    self._end(group, Ended(group, "failed", error))
        if (worker := self._workers.get(name)) is not None:
            offers = () if died else tuple(group for group in worker.offers if key not in group)
            self._workers[name] = replace(worker, offers=offers)

    def over(self, name: str) -> None:
        """The worker's link is idle."""
        if (worker := self._workers.get(name)) is not None:
            self._workers[name] = replace(worker, moving=None)

    def take_ended(self) -> list[Ended]:
        """The wishes that are over since the last call."""
        self._settle()
        ended, self._ended = self._ended, []
        return ended

    def take_fault(self) -> PlacementFault | None:
        """Why the policy was put aside, once."""
        if self._told_fault or self._policy.fault is None:
            return None
        self._told_fault = True
        return self._policy.fault

    # ── inside ────────────────────────────────────────────────────────────────────────────────────────

    def _model(self, key: str) -> _Known:
        return self._known.setdefault(key, _Known())

    def _met(self, groups: Iterable[GroupKeys]) -> tuple[GroupKeys, ...]:
        groups = tuple(groups)
        for group in groups:
            for key in group:
                self._model(key)
        return groups

    def _drop(self, name: str, keys: Iterable[str]) -> None:
        worker = self._workers[name]
        gone = set(keys)
        moving = worker.moving
        if moving is not None:
            moving = replace(moving, evicting=tuple(key for key in moving.evicting if key not in gone))
        resident = {key: there for key, there in worker.resident.items() if key not in gone}
        self._workers[name] = replace(worker, resident=resident, moving=moving)
        self._refused[name].clear()

    def _fits_somewhere(self, group: GroupKeys) -> bool:
        sizes = [self._model(key).size_bytes for key in group]
        return any(worker.capacity.fits(sizes) for worker in self._workers.values())

    def _settle(self) -> None:
        """End the wishes that are fulfilled, and those that cannot be."""
        for group, one in list(self._open.items()):
            without = one.wish.without if self._workers.keys() - one.wish.without else ()
            if self.is_resident(group, without):
                self._end(group, Ended(group, "resident"))
            elif self._workers and not self._can_ever(group):
                self._end(group, Ended(group, "too_large"))
            elif one.refusals > 2 * len(group):
                self._end(group, Ended(group, "crowded"))

    def _can_ever(self, group: GroupKeys) -> bool:
        if self._fits_somewhere(group):
            return True
        if not self._apart:
            return False
        sizes = {key: self._model(key).size_bytes for key in group}
        like = next(iter(self._capacities.values()))
        to_come = self._expected_workers - len(self._capacities)
        unseen = {f"worker {number} to come": like for number in range(to_come)}
        return packed(sizes, {**self._capacities, **unseen}, {}) is not None

    def _end(self, group: GroupKeys, ended: Ended) -> None:
        del self._open[group]
        self._ended.append(ended)

    def _pass_over(self) -> None:
        """Offers that the policy has left lie, with the link idle and nobody wanting anything, are over."""
        for name, worker in self._workers.items():
            held = self.resident(name)
            left = [group for group in worker.offers if not held.issuperset(group)]
            if worker.moving is None:
                if not self._open:
                    left = []
                times = self._refused[name]
                left = [group for group in left if all(times[key] <= _REFUSALS for key in group)]
            if len(left) != len(worker.offers):
                self._workers[name] = replace(worker, offers=tuple(left))
