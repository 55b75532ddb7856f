"""What is resident where, what is wanted and what moves: the state that placement policies decide on.

Pure: no I/O, no clock, no locks. A shell (the live server's residency, the simulator) reports what happens,
asks `steps`, carries them out on the workers' links and reports again.

    worker_up, worker_down, serve, offer, want, withdraw    what there is, and who wants what
    leave, stay, gone, expect                               workers that are to end; how many there will be
    arrived, used, idle, lost                               rows that come, batches, rows that were refused
    steps                                                   evictions, and then a load, each on its own link
    evicted, loaded, refused, failed, over                  how it went
    take_ended, take_forgotten                              wishes that are over; models that are no more
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from server.placement.known_models import KnownModel, KnownModels, ServedFunction
from server.placement.packing import packed
from server.placement.policies.guarded import GuardedPlacement, PlacementFault
from server.placement.policy import (
    Abort,
    Capacity,
    Fetch,
    GroupKeys,
    Moving,
    PlacementPolicy,
    PlacementState,
    Residence,
    WaitingRows,
    Wish,
    WorkerPlaces,
)
from server.placement.popularity import Popularity
from server.placement.reasons import reason_of
from server.placement.starting import Session, by_use, starting_placement
from server.placement.succession import Succession

__all__ = ["Ended", "Placement", "Step"]

_Each = TypeVar("_Each")

_TRIES = 2  # of a wish's loads under which workers die
_CROWDED_S, _LONGEST_CROWDED_S = 60.0, 3600.0  # for which a device that was short of memory holds less
_UNASKED_S = 60.0  # for which no rows have waited for what rows wanted: then nobody wants it any more
_REFUSALS = 2  # of one model by one worker that had said how much it takes: then it is offered no more


@dataclass(frozen=True, slots=True)
class Step:
    """What one worker's link does next: those leave, one after the other; then one comes ("" = none).

    abort: the load that it gives up; then nothing else is done.
    reasons: model → why it moves, and the model that this is about ("" = none).
    """

    worker: str
    evict: tuple[str, ...]
    load: str
    abort: str = ""
    reasons: Mapping[str, tuple[str, str]] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class Ended:
    """A wish that is over.

    reason: "resident"; "too_large" for every worker; "crowded" where a worker refused again and again what
    should fit; "failed" with the error of its load; "unasked" where the rows that wanted it are long gone.
    """

    group: GroupKeys
    reason: Literal["resident", "too_large", "crowded", "failed", "unasked"]
    error: Exception | None = None


@dataclass(slots=True, eq=False)
class _OpenWish:
    """A wish that is not over yet."""

    wish: Wish
    lost: int = 0  # workers that died of its loads
    refusals: int = 0  # of its members by workers that had less room than was known
    asked_s: float = -math.inf  # when rows were last seen to wait for it


@dataclass(slots=True, eq=False)
class _Crowded:
    """A worker whose device was short of memory: what it may hold again, and when; inf = it may already."""

    whole: Capacity
    pause_s: float
    until_s: float


class Placement:
    """`apart`: whether members of a group may be on different workers where no worker can hold them all.

    spread: whether they are then on as many machines as may be. workers: how many there will be, though not
    all may be up at once; such that were never up are like the first that was.
    """

    def __init__(
        self, policy: PlacementPolicy, *, apart: bool = False, spread: bool = False, workers: int = 0
    ) -> None:
        self._policy = GuardedPlacement(policy)
        self._apart = apart
        self._spread = spread
        self._expected_workers = workers
        self._workers: dict[str, WorkerPlaces] = {}
        self._capacities: dict[str, Capacity] = {}  # of all that ever were: one that is gone comes again
        self._first_here: dict[str, tuple[GroupKeys, ...]] = {}  # by worker: what it was to begin with
        self._refused: dict[str, Counter[str]] = {}  # worker → model → times, since something last left it
        # Worker → bytes of the model on its way, as known when it began.
        self._counted_on: dict[str, int] = {}
        self._open: dict[GroupKeys, _OpenWish] = {}
        self._ended: list[Ended] = []
        self._close_at_s = -math.inf  # when wishes are next looked at that no rows may have
        self._unsettled: set[GroupKeys] = set()  # wishes of which something is new
        self._told_fault = False
        self._memory: Mapping[str, Any] = {}  # the policy's
        self._served: dict[str, ServedFunction] = {}
        self._retired: set[str] = set()  # models of which the last function is gone: forgotten once they left
        self._forgotten: list[str] = []
        self._succession = Succession()
        self._running: dict[str, Counter[str]] = {}  # worker → model → batches under way
        self._sight: dict[str, frozenset[str]] = {}  # worker → what may be asked of it
        self._used_bytes: dict[str, int] = {}
        self._crowded: dict[str, _Crowded] = {}
        self._came: Counter[GroupKeys] = Counter()  # rows since the start, of groups that are served
        self._leaving: set[str] = set()  # workers that are to end: no policy sees them, nobody counts on them
        self._models = KnownModels()
        self._popularity = Popularity(self._workers, self._models)

    # ── what there is ─────────────────────────────────────────────────────────────────────────────────

    def know(self, key: str, size_bytes: int = 0, last_used_s: float = 0.0) -> None:
        """What is remembered of a model; what was seen since counts for more."""
        model = self._model(key)
        model.size_bytes = model.size_bytes or size_bytes
        model.last_used_s = model.last_used_s or last_used_s
        model.state = None
        self._used_bytes.clear()
        self._unsettle(key)

    def serve(
        self,
        name: str,
        group: GroupKeys,
        goal_s: float = math.inf,
        latencies_s: Sequence[Callable[[int], float]] = (),
        max_batch: int = 1,
        *,
        in_part: bool = False,
    ) -> None:
        """A function is served, or served differently, by these models.

        goal_s: of a row, from arrival to answer. latencies_s: l̂(b) of each member, for up to max_batch rows.
        in_part: whether some of its members may answer without the others.
        """
        before = self._unserve(name)
        served = self._served[name] = ServedFunction(self._met([group])[0], goal_s, in_part)
        for key in group:
            model = self._model(key)
            model.functions[name], model.state = served, None
        self._retired.difference_update(group)
        if before is not None:
            self._forget_visits(before.group)
        for key, latency_s in zip(group, latencies_s, strict=False):
            self._model(key).latency_s = (latency_s, max_batch)

    def serve_no_more(self, name: str) -> None:
        """The function is gone. Models that no other has are forgotten, once they are nowhere any more."""
        if (served := self._unserve(name)) is not None:
            self._forget_visits(served.group)

    def arrived(self, now_s: float, group: GroupKeys, rows: int = 1) -> None:
        """Interactive rows came for the group, whether they are let in or not."""
        self._came[group] += rows
        self._popularity.came(now_s, group, rows)
        self._succession.came(now_s, group, rows)

    def came(self, group: GroupKeys) -> int:
        """Interactive rows that ever came for the group."""
        return self._came[group]

    def size_bytes(self, key: str) -> int:
        """Of a model; 0 while it is not known."""
        return self._model(key).size_bytes

    def lost(self, group: GroupKeys, rows: int) -> None:
        """Rows of the group were refused."""
        for key in group:
            if key in self._models:
                model = self._model(key)
                model.lost += rows
                model.state = None

    def used(self, now_s: float, keys: Iterable[str], at_unix_s: float, worker: str = "") -> None:
        """A batch is sent to the models, on that worker; `idle` says when it is over."""
        for key in keys:
            model = self._model(key)
            model.last_used_s, model.served_s, model.lost, model.state = at_unix_s, now_s, 0, None
            if (place := self._workers.get(worker)) is None:
                continue
            self._running[worker][key] += 1
            there = place.resident.get(key)
            if there is not None and not there.used:
                resident = {**place.resident, key: replace(there, used=True)}
                self._workers[worker] = replace(place, resident=resident)

    def idle(self, keys: Iterable[str], worker: str) -> None:
        """A batch of these models is over there."""
        running = self._running.get(worker, Counter())
        for key in keys:
            if running[key] > 1:
                running[key] -= 1
            else:
                running.pop(key, None)

    def last_used(self) -> dict[str, float]:
        """Model → Unix time of its last use."""
        return {key: model.last_used_s for key, model in self._models.everyone()}

    def worker_up(
        self,
        name: str,
        capacity: Capacity,
        device: str = "",
        offers: Iterable[GroupKeys] = (),
        rows_per_s: Callable[[str], float] | None = None,
        *,
        node: str = "",
        is_far: bool = False,
    ) -> None:
        """An empty worker, and what it may begin with. node, is_far: as of `WorkerPlaces`.

        rows_per_s: model → rows of late: then offers are put in the order in which it had best begin.
        """
        offers = self._met(offers)
        if rows_per_s is not None:
            sessions = [self._session(group, device, rows_per_s) for group in offers]
            self._first_here[name] = first = self._starting(name, capacity, sessions)
            offers = (*first, *(s.group for s in by_use(sessions) if s.group not in first))
        self._popularity.worker_up(name)
        self._running[name] = Counter()
        self._place(WorkerPlaces(name, capacity, device, offers=offers, node=node, is_far=is_far))
        self._capacities[name] = capacity
        self._refused[name] = Counter()
        self._models.link_met(device, node)
        self._unsettled.update(self._open)

    def worker_down(self, name: str) -> None:
        """The worker is gone, and all that it held."""
        self._refused.pop(name, None)
        self._counted_on.pop(name, None)
        if name in self._workers:
            self._place(replace(self._workers[name], resident={}))
            gone = self._workers.pop(name)
            if gone.node and all(each.link != gone.link for each in self._workers.values()):
                self._models.link_gone(gone.device, gone.node)
        self._popularity.worker_down(name)
        for kept in (self._running, self._first_here, self._sight, self._used_bytes, self._crowded):
            kept.pop(name, None)
        self._unsettled.update(self._open)

    def expect(self, workers: int) -> None:
        """So many workers there will be from now on."""
        self._expected_workers = workers
        self._unsettled.update(self._open)

    def leave(self, name: str) -> None:
        """The worker is to end: nothing is loaded there any more, and what it holds counts as nowhere."""
        self._leaving.add(name)
        if (worker := self._workers.get(name)) is not None:
            self._workers[name] = replace(worker, offers=())
        self._unsettled.update(self._open)

    def stay(self, name: str) -> None:
        """It does not end after all."""
        self._leaving.discard(name)
        self._unsettled.update(self._open)

    def gone(self, name: str) -> None:
        """The worker has ended and does not come again."""
        self._leaving.discard(name)
        self._capacities.pop(name, None)
        self._unsettled.update(self._open)

    def only_on(self, name: str) -> list[GroupKeys]:
        """The served groups that can run now, and could not without what that worker holds."""
        if name not in self._workers:
            return []
        rest = self.present().difference([name])
        groups = dict.fromkeys(one.group for one in self._served.values())
        here = self.resident(name)
        return [
            group
            for group in groups
            if not here.isdisjoint(group)
            and not self._runs_on(group, rest)
            and self._runs_on(group, {*rest, name})
        ]

    def fits_beside(self, name: str, groups: Iterable[GroupKeys]) -> bool:
        """Whether the other workers could hold these groups together, whatever else they hold now."""
        sizes = {key: self._model(key).size_bytes for group in groups for key in group}
        present = self.present().difference([name])
        rest = {other: each.capacity for other, each in self._workers.items() if other in present}
        return not sizes or packed(sizes, rest, {}) is not None

    def is_settled(self, name: str) -> bool:
        """Whether the worker is up, has loaded all that it began with, and nothing moves there."""
        worker = self._workers.get(name)
        return worker is not None and worker.moving is None and not worker.offers

    def present(self) -> frozenset[str]:
        """The workers that are up and are to stay."""
        return frozenset(self._workers).difference(self._leaving)

    def resident(self, name: str) -> frozenset[str]:
        """What may be asked of the worker: what it holds, less what is leaving."""
        found = self._sight.get(name)
        if found is None:
            worker = self._workers[name]
            leaving = worker.moving.evicting if worker.moving else ()
            found = self._sight[name] = frozenset(worker.resident).difference(leaving)
        return found

    def is_resident(self, group: GroupKeys, without: Collection[str] = ()) -> bool:
        """Whether the group can run, those workers left out: on one of them, or apart if it must and may.

        On one that is to end it cannot: rows still do, and are no reason not to have it elsewhere.
        """
        return self._runs_on(group, self.present().difference(without))

    def _runs_on(self, group: GroupKeys, names: Collection[str]) -> bool:
        held = [self.resident(name) for name in names]
        if any(there.issuperset(group) for there in held):
            return True
        return self._apart and not self._fits_somewhere(group) and frozenset().union(*held).issuperset(group)

    def forget(self, name: str, keys: Iterable[str]) -> None:
        """The worker says that it does not hold these."""
        self._drop(name, keys)

    def crowded(self, now_s: float, name: str, beside: Collection[str]) -> str:
        """The device had no memory for a pass of these: which of its others leaves for it; "" = none can.

        From now on the worker may hold what is left there, and no more, for a while: each time for twice as
        long, until it comes up anew.
        """
        worker = self._workers[name]
        held = self.resident(name)
        others = [key for key in held if key not in beside]
        if not others or (worker.moving is not None and worker.moving.evicting):
            return ""  # something leaves already
        if len(others) == len(held):
            return ""  # those of the pass have left, and what it lacked is not lacking any more
        leaving = min(others, key=lambda key: (self._model(key).last_used_s, key))
        left_bytes = max(1, self._bytes_on(name) - self._model(leaving).size_bytes)
        self._place(replace(worker, capacity=replace(worker.capacity, capacity_bytes=left_bytes)))
        before = self._crowded.get(name)
        pause_s = _CROWDED_S if before is None else min(2 * before.pause_s, _LONGEST_CROWDED_S)
        whole = before.whole if before is not None and before.until_s < math.inf else worker.capacity
        self._crowded[name] = _Crowded(whole, pause_s, now_s + pause_s)
        return leaving

    # ── what is wanted ────────────────────────────────────────────────────────────────────────────────

    def offer(self, group: GroupKeys, workers: Iterable[str] | None = None) -> None:
        """Every worker (of those named) may load the group if it has room."""
        self._met([group])
        for name in self._workers if workers is None else workers:
            worker = self._workers[name]
            if name in self._leaving:
                continue
            if group not in worker.offers and not self.resident(name).issuperset(group):
                self._workers[name] = replace(worker, offers=(group, *worker.offers))

    def is_offered(self, group: GroupKeys) -> bool:
        """Whether some worker may still take up that offer."""
        return any(group in worker.offers for worker in self._workers.values())

    def offer_no_more(self, keys: Collection[str]) -> None:
        """No worker loads these unasked, until rows come for them."""
        for key in keys:
            model = self._model(key)
            model.dismissed, model.state = True, None
        for name, worker in self._workers.items():
            left = tuple(group for group in worker.offers if not any(key in keys for key in group))
            self._workers[name] = replace(worker, offers=left)

    def want(
        self, now_s: float, group: GroupKeys, without: Collection[str] = (), *, by_rows: bool = False
    ) -> bool:
        """Others may leave for this group, until it is resident. False if it is, or is wanted already.

        by_rows: for the sake of rows, of which `steps` hears; else somebody waits until it is there.
        """
        known = self._open.get(group)
        if known is not None:
            if known.wish.by_rows and not by_rows:
                known.wish = replace(known.wish, by_rows=False)
            return False
        if self.is_resident(group, without):
            return False
        self._met([group])
        self._open[group] = _OpenWish(Wish(group, now_s, frozenset(without), by_rows))
        self._unsettled.add(group)
        return True

    def is_wanted(self, group: GroupKeys) -> bool:
        """Whether a wish for it is open."""
        return group in self._open

    def withdraw(self, group: GroupKeys) -> None:
        """Nobody wants it any more."""
        self._open.pop(group, None)

    # ── what to do ────────────────────────────────────────────────────────────────────────────────────

    def everything(self, now_s: float) -> PlacementState:
        """What an operator sees: workers that are to end, too."""
        return replace(self.state(now_s, {}), workers=dict(self._workers))

    def state(self, now_s: float, waited_for: Mapping[GroupKeys, WaitingRows]) -> PlacementState:
        """What the policy sees: to be read now and not kept."""
        return PlacementState(
            workers=self._of_present(self._workers),
            models=self._models,
            wishes=tuple(one.wish for one in self._open.values()),
            waited_for=waited_for,
            apart=self._apart,
            spread=self._spread,
            running=self._of_present(
                {name: frozenset(running) for name, running in self._running.items()},
            ),
            visits=self._succession.visits(),
            memory=self._memory,
            sought=self._popularity.sought(),
            coldest=self._of_present(self._popularity.coldest()),
            hottest=self._of_present(self._popularity.hottest()),
            demand=self._of_present(self._popularity.demand(now_s)),
            used_bytes={name: self._bytes_on(name) for name in self._workers if name not in self._leaving},
        )

    def steps(self, now_s: float, waited_for: Mapping[GroupKeys, WaitingRows]) -> tuple[list[Step], float]:
        """What the links do now, each from now on busy until `over`; and when to ask again."""
        self._give_room_back(now_s)
        self._settle()
        self._met(waited_for)
        self._close_unasked(now_s, waited_for)
        self._forget_retired(waited_for)
        state = self.state(now_s, waited_for)
        decision = self._policy.decide(state, now_s)
        if decision.memory is not None:
            self._memory = decision.memory
        steps = []
        for name in dict.fromkeys(action.worker for action in decision.actions):
            of_worker = [action for action in decision.actions if action.worker == name]
            load, abort = (
                next((action.model for action in of_worker if isinstance(action, kind)), "")
                for kind in (Fetch, Abort)
            )
            evict = tuple(action.model for action in of_worker if not isinstance(action, Fetch | Abort))
            reasons = {action.model: reason_of(action, load, state) for action in of_worker}
            steps.append(Step(name, evict, load, abort, reasons))
            self.begin(now_s, steps[-1], for_rows=any(load in group for group in waited_for))
        self._pass_over(waited_for)
        return steps, min(decision.until_s, self._changes_at_s(waited_for))

    def ahead(self, now_s: float, name: str, waited_for: Mapping[GroupKeys, WaitingRows]) -> str:
        """The model that would come to the worker next, were what is on its way there; "" = none."""
        worker = self._workers[name]
        if worker.moving is None or not worker.moving.loading or worker.moving.aborted:
            return ""
        moving = worker.moving
        resident = {key: there for key, there in worker.resident.items() if key not in moving.evicting}
        resident[moving.loading] = Residence(
            now_s, moving.ends_s - moving.since_s, moving.for_rows, used=False
        )
        state = self.state(now_s, waited_for)
        state = replace(
            state,
            workers={**state.workers, name: replace(worker, resident=resident, moving=None)},
            wishes=tuple(wish for wish in state.wishes if moving.loading not in wish.group),
            used_bytes={**state.used_bytes, name: sum(self._model(key).size_bytes for key in resident)},
        )
        actions = self._policy.ahead(state, now_s).actions
        return next((one.model for one in actions if isinstance(one, Fetch) and one.worker == name), "")

    def begin(self, now_s: float, step: Step, *, for_rows: bool = False) -> None:
        """The worker's link is busy with this from now on; for_rows: they wait for what comes."""
        worker = self._workers[step.worker]
        if step.abort:
            if worker.moving is not None:
                self._place(replace(worker, moving=replace(worker.moving, aborted=True)))
            return
        takes_s = self._models.expected_s(step.load, worker.device, worker.node) if step.load else 0.0
        moving = Moving(step.load, step.evict, now_s, now_s + takes_s, for_rows)
        self._counted_on[step.worker] = self._model(step.load).size_bytes if step.load else 0
        self._place(replace(worker, moving=moving))

    def is_moving(self, name: str) -> bool:
        """Whether the worker's link is busy."""
        return self._workers[name].moving is not None

    def expected_s(self, key: str, device: str) -> float:
        """What loading the model on that kind of device should take."""
        return self._models.expected_s(key, device)

    def link_bytes_per_s(self, name: str) -> float | None:
        """Of its loads of late, of models that were new to its node; None before the first."""
        worker = self._workers[name]
        return self._models.bytes_per_s(worker.device, worker.node)

    # ── how it went ───────────────────────────────────────────────────────────────────────────────────

    def evicted(self, name: str, key: str) -> None:
        """The model has left."""
        self._drop(name, [key])

    def loaded(self, now_s: float, name: str, key: str, size_bytes: int, load_s: float) -> None:
        """The model is there, and has said how much it takes."""
        worker, model = self._workers[name], self._model(key)
        model.size_bytes, model.state = size_bytes, None
        model.deaths = model.failures = 0
        self._used_bytes.clear()
        self._models.loaded(key, worker.device, size_bytes, load_s, worker.node)
        moving = worker.moving
        for_rows = moving is not None and moving.loading == key and moving.for_rows
        resident = {**worker.resident, key: Residence(now_s, load_s, for_rows, used=False)}
        offers = tuple(group for group in worker.offers if not resident.keys() >= set(group))
        self._place(replace(worker, resident=resident, offers=offers))
        self._refused[name].pop(key, None)
        self._unsettle(key)

    def refused(self, name: str, key: str, wanted_bytes: int) -> bool:
        """The worker had no room for it. Whether it takes more than was known when the load was decided."""
        model = self._model(key)
        is_news = wanted_bytes > self._counted_on.get(name, 0)
        model.size_bytes, model.state = max(model.size_bytes, wanted_bytes), None
        self._used_bytes.clear()
        if is_news:
            for one in self._open.values():
                one.refusals += key in one.wish.group
            if (counted := self._refused.get(name)) is not None:
                counted[key] += 1
            self._unsettle(key)
        return is_news

    def failed(self, name: str, key: str, error: Exception, *, died: bool = False) -> None:
        """The model could not be loaded there; `died`: the worker did not survive it."""
        model = self._model(key)
        model.failures, model.deaths, model.state = model.failures + 1, model.deaths + died, None
        for group, one in list(self._open.items()):
            if key in group:
                self._unsettled.add(group)
                one.lost += 1
                if not died or one.lost >= _TRIES:
                    self._end(group, Ended(group, "failed", error))
        if (worker := self._workers.get(name)) is not None:
            offers = () if died else tuple(group for group in worker.offers if key not in group)
            self._workers[name] = replace(worker, offers=offers)

    def over(self, name: str) -> None:
        """The worker's link is idle."""
        if (worker := self._workers.get(name)) is not None:
            self._place(replace(worker, moving=None))

    def take_ended(self) -> list[Ended]:
        """The wishes that are over since the last call."""
        self._settle()
        ended, self._ended = self._ended, []
        return ended

    def take_forgotten(self) -> list[str]:
        """The models that were forgotten since the last call."""
        forgotten, self._forgotten = self._forgotten, []
        return forgotten

    def take_fault(self) -> PlacementFault | None:
        """Why the policy was put aside, once."""
        if self._told_fault or self._policy.fault is None:
            return None
        self._told_fault = True
        return self._policy.fault

    # ── inside ────────────────────────────────────────────────────────────────────────────────────────

    def _of_present(self, by_worker: Mapping[str, _Each]) -> dict[str, _Each]:
        return {name: each for name, each in by_worker.items() if name not in self._leaving}

    def _model(self, key: str) -> KnownModel:
        return self._models.met(key)

    def _place(self, worker: WorkerPlaces) -> None:
        """What the worker holds, or what moves, is another from now on."""
        name = worker.name
        before = self._workers.get(name)
        held = before.resident if before is not None else {}
        self._workers[name] = worker
        self._popularity.placed(name, held)
        if worker.node and held is not worker.resident:
            self._models.held(worker.node, held, worker.resident)
        if held is not worker.resident:
            self._used_bytes.pop(name, None)
        self._sight.pop(name, None)

    def _bytes_on(self, name: str) -> int:
        found = self._used_bytes.get(name)
        if found is None:
            met = self._models.met
            found = sum(met(key).size_bytes for key in self._workers[name].resident)
            self._used_bytes[name] = found
        return found

    def _give_room_back(self, now_s: float) -> None:
        """What took the device's memory may be gone: the worker holds as much as before, and is watched."""
        for name, one in self._crowded.items():
            if one.until_s <= now_s:
                one.until_s = math.inf
                self._place(replace(self._workers[name], capacity=one.whole))

    def _changes_at_s(self, waited_for: Collection[GroupKeys]) -> float:
        """When something is another though nothing happens: a worker's room, or a wish that nobody has."""
        changes_at_s = min((one.until_s for one in self._crowded.values()), default=math.inf)
        if all(self._is_somebodys(one, waited_for) for one in self._open.values()):
            return changes_at_s
        return min(changes_at_s, self._close_at_s)

    def _is_somebodys(self, one: _OpenWish, waited_for: Collection[GroupKeys]) -> bool:
        """Whether a wish is not of rows alone that are gone."""
        return not one.wish.by_rows or one.wish.group in waited_for

    def _met(self, groups: Iterable[GroupKeys]) -> tuple[GroupKeys, ...]:
        groups = tuple(groups)
        for group in groups:
            for key in group:
                self._model(key)
        return groups

    def _unserve(self, name: str) -> ServedFunction | None:
        """Its models have one function less."""
        served = self._served.pop(name, None)
        for key in () if served is None else served.group:
            model = self._model(key)
            model.functions.pop(name, None)
            model.state = None
            if not model.functions:
                self._retired.add(key)
        return served

    def _forget_visits(self, group: GroupKeys) -> None:
        if all(other.group != group for other in self._served.values()):
            self._succession.forget(group)
            self._came.pop(group, None)

    def _close_unasked(self, now_s: float, waited_for: Collection[GroupKeys]) -> None:
        """Rows that wanted something may have been refused since."""
        if now_s < self._close_at_s:
            return
        self._close_at_s = now_s + _UNASKED_S / 10
        for group, one in list(self._open.items()):
            if group in waited_for:
                one.asked_s = now_s
            elif one.wish.by_rows and now_s - max(one.asked_s, one.wish.since_s) > _UNASKED_S:
                self._end(group, Ended(group, "unasked"))

    def _forget_retired(self, waited_for: Collection[GroupKeys]) -> None:
        """Models that no function has, that no worker holds or brings, and that nobody wants, are no more."""
        if not self._retired:
            return
        workers = self._workers.values()
        needed = {key for group in (*waited_for, *self._open) for key in group}
        needed.update(key for worker in workers for key in worker.resident)
        needed.update(worker.moving.loading for worker in workers if worker.moving is not None)
        gone = self._retired - needed
        for name, worker in list(self._workers.items()):
            left = tuple(group for group in worker.offers if gone.isdisjoint(group))
            if len(left) < len(worker.offers):
                self._workers[name] = replace(worker, offers=left)
        for key in gone:
            self._models.forget(key)
            self._popularity.forget(key)
        self._retired -= gone
        self._forgotten += gone

    def _drop(self, name: str, keys: Iterable[str]) -> None:
        worker = self._workers[name]
        gone = set(keys)
        moving = worker.moving
        if moving is not None:
            moving = replace(moving, evicting=tuple(key for key in moving.evicting if key not in gone))
        resident = {key: there for key, there in worker.resident.items() if key not in gone}
        self._place(replace(worker, resident=resident, moving=moving))
        self._refused[name].clear()

    def _fits_somewhere(self, group: GroupKeys) -> bool:
        sizes = [self._model(key).size_bytes for key in group]
        return any(self._workers[name].capacity.fits(sizes) for name in self.present())

    def _settle(self) -> None:
        """End the wishes that are fulfilled, and those that cannot be, of those of which something is new."""
        unsettled = [(group, self._open[group]) for group in self._unsettled if group in self._open]
        self._unsettled.clear()
        for group, one in unsettled:
            without = one.wish.without if self.present() - one.wish.without else ()
            if self.is_resident(group, without):
                self._end(group, Ended(group, "resident"))
            elif self._workers and not self._can_ever(group):
                self._end(group, Ended(group, "too_large"))
            elif one.refusals > 2 * len(group):
                self._end(group, Ended(group, "crowded"))

    def _unsettle(self, key: str) -> None:
        """Something is new of the model, or of who holds it."""
        self._unsettled.update(group for group in self._open if key in group)

    def _session(self, group: GroupKeys, device: str, rows_per_s: Callable[[str], float]) -> Session:
        """What is asked of a group, for starting placement."""
        known = {key: self._model(key) for key in group}
        latencies = {
            key: model.latency_s[0] if model.latency_s else lambda rows: 0.0 for key, model in known.items()
        }
        return Session(
            latencies,
            min(map(rows_per_s, group)),
            min((one.goal_s for one in self._served.values() if one.group == group), default=math.inf),
            max((model.latency_s[1] for model in known.values() if model.latency_s), default=1),
            sum(self.expected_s(key, device) for key in group),
            max(model.last_used_s for model in known.values()),
        )

    def _starting(self, name: str, capacity: Capacity, sessions: Sequence[Session]) -> tuple[GroupKeys, ...]:
        """What the worker had best begin with, beside those that are up and those to come."""
        present = self.present() | {name}
        to_come = self._expected_workers - len(present)
        capacities = {other: each.capacity for other, each in self._workers.items() if other in present}
        capacities |= {name: capacity, **{f"worker {each} to come": capacity for each in range(to_come)}}
        held = {
            other: {*worker.resident, *(key for group in self._first_here.get(other, ()) for key in group)}
            for other, worker in self._workers.items()
            if other in present
        }
        sizes = {key: self._model(key).size_bytes for session in sessions for key in session.group}
        return starting_placement(sessions, sizes, capacities, held)[name].groups

    def _can_ever(self, group: GroupKeys) -> bool:
        if self._fits_somewhere(group):
            return True
        if not self._apart:
            return False
        sizes = {key: self._model(key).size_bytes for key in group}
        seen = self._of_present(self._capacities)
        like = next(iter(self._capacities.values()))
        unseen = {f"worker {number} to come": like for number in range(self._expected_workers - len(seen))}
        return packed(sizes, {**seen, **unseen}, {}) is not None

    def _end(self, group: GroupKeys, ended: Ended) -> None:
        del self._open[group]
        self._ended.append(ended)

    def _pass_over(self, waited_for: Collection[GroupKeys]) -> None:
        """Offers that the policy has left lie, with the link idle and nobody wanting anything, are over."""
        is_wanted = any(self._is_somebodys(one, waited_for) for one in self._open.values())
        for name, worker in self._workers.items():
            if worker.moving is not None or not worker.offers:
                continue
            left: tuple[GroupKeys, ...] = ()
            if is_wanted:
                times = self._refused[name]
                if not times:
                    continue
                left = tuple(g for g in worker.offers if all(times[key] <= _REFUSALS for key in g))
            if len(left) != len(worker.offers):
                self._workers[name] = replace(worker, offers=left)
