"""`value`: loads what brings more rows into their goals than what leaves for it, a second of the link.

What a load brings: the rows that wait and can still be in time, and those that come while it would be away
again; what it costs: the same of those that leave, weighed a little more, so that two of like worth do not
change places for ever. It looks ahead along the order of visits, loads for nobody while the link has nothing
better to do, gives such a load up when rows wait for another one, and gives a busy worker's hottest models to
one that has time for them, or what rows wait for too long. Late rows count in full where no other can be
saved. Models that lost rows and were not served for long come first: none starves.

Orders (a deployment, a model that only a hanging worker holds) come before all that, and what is offered
fills free room when nothing better is to be loaded. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from heapq import nlargest

from server.placement.policies.demand import assigned, least_lacking, taken_up
from server.placement.policies.turns import Awaited, spare_s
from server.placement.policies.worth import Leaving, Worth, over
from server.placement.policy import (
    Abort,
    Evict,
    Fetch,
    GroupKeys,
    PlacementAction,
    PlacementDecision,
    PlacementState,
    WaitingRows,
    Wish,
    WorkerPlaces,
)

__all__ = ["ValueOfResidency"]

_HYSTERESIS = 1.2  # what leaves counts for so much more than what comes
_WANTED = 8  # candidates: of those that rows wait for,
_SOUGHT = 4  # of those that nobody holds,
_COPIES = 2  # and of the hottest worker's
_HOT = 0.7  # of a worker's time asked for: then copies elsewhere are looked at,
_COOLER = 0.2  # on workers that have so much more time
_LATE = 64.0  # rows that are late, or in no hurry, count in full at most, where no link can save others
_KEEP_SHARE = 0.1  # of a model's rate, where candidates are chosen by their rows
_FLOOR = 0.05  # the share of the link's time within which no model starves
_FEWEST_WANTED = 4
_MARGIN = 0.5  # of a load, by which it should begin sooner than it must
_AGAIN_S = 0.005  # when to ask again while something may soon be worth a load
_ROUNDING = 1e-9  # far more than sums and products of a dozen numbers are off
_SELDOM_S = 0.05  # while nobody waits for anything that runs nowhere


@dataclass(slots=True)
class _Plan:
    """A load: who leaves for it, and what all that brings, in rows a second of the link."""

    worker: WorkerPlaces
    load: str
    leaving: Sequence[str]
    score: float
    unit: GroupKeys
    rows: float  # that wait, of what it brings
    load_s: float

    def actions(self) -> Iterator[PlacementAction]:
        """As the core takes them."""
        yield from (Evict(self.worker.name, key) for key in self.leaving)
        yield Fetch(self.worker.name, self.load)


@dataclass(frozen=True, slots=True)
class ValueOfResidency:
    """Each option left out is an ablation: what it is worth is measured by `make bench-residency`.

    savable: rows that wait count. rates: rows of late do, else the last use alone. chain: the order of visits
    does. prefetch: models are loaded for which no rows wait. aborts: such loads are given up for rows.
    """

    savable: bool = True
    rates: bool = True
    chain: bool = True
    prefetch: bool = True
    aborts: bool = True

    name = "value"

    def decide(self, state: PlacementState, now_s: float) -> PlacementDecision:
        """The loads that bring most, one an idle link at most, as long as they bring anything."""
        worth = Worth(state, now_s, rates=self.rates, chain=self.chain)
        orders = [wish for wish in state.wishes if wish.without or not wish.by_rows]
        actions: list[PlacementAction] = []
        taken: set[str] = set()
        for wish in orders:
            actions += self._order(worth, wish, taken)
        loading = {action.model for action in actions if isinstance(action, Fetch)}
        idle = [w for w in state.workers.values() if w.moving is None and w.name not in taken]
        idle.sort(key=lambda worker: worker.is_far)  # of two that are worth the same, one whose rows are near
        while idle:
            plan = self._best(worth, idle, loading)
            if plan is None:
                break
            actions += plan.actions()
            loading.update(plan.unit)
            worth.begins(plan.worker, plan.unit, plan.load_s)
            idle.remove(plan.worker)
        for worker in idle:
            actions += taken_up(state, worker)
        if self.aborts and worth.wanted:
            actions += self._aborts(worth, loading)
        return PlacementDecision(tuple(actions), self._ask_again_s(worth, loading, bool(idle)))

    # ── what is ordered ───────────────────────────────────────────────────────────────────────────────

    def _order(self, worth: Worth, wish: Wish, taken: set[str]) -> Iterator[PlacementAction]:
        """The next load of a group that somebody waits for, whatever it costs; its workers are then taken."""
        for part, worker in assigned(worth.state, wish, least_lacking(worth.state, wish.without, taken)):
            is_idle = worker.moving is None and worker.name not in taken
            taken.add(worker.name)
            missing = [key for key in part if key not in worker.resident]
            if not is_idle or not missing:
                continue
            leaving = self._room(worth, worker, part, missing, math.inf, is_ordered=True)
            if leaving is not None:
                yield from (Evict(worker.name, one.key) for one in leaving)
                yield Fetch(worker.name, missing[0])

    # ── what is worth it ──────────────────────────────────────────────────────────────────────────────

    def _best(self, worth: Worth, workers: Sequence[WorkerPlaces], loading: Set[str]) -> _Plan | None:
        """The load that brings most, of those that may begin now."""
        best: _Plan | None = None
        starved = self._starved(worth, loading)
        if starved is not None:
            for worker in workers:
                for unit, group in _units(worth, worker, starved):
                    least = -math.inf if best is None else best.score
                    best = self._plan(worth, worker, unit, group, least, math.inf, loading) or best
            if best is not None:
                return best
        turns, spare = self._turns(worth, worth.quickest(workers), loading)
        wanted = [g for g in worth.wanted if not worth.is_coming(g) and loading.isdisjoint(g)]
        for worker in workers:
            for unit, group in self._candidates(worth, worker, wanted, turns):
                least = 0.0 if best is None else best.score
                most_s = turns.get(group, spare)
                best = self._plan(worth, worker, unit, group, least, most_s, loading) or best
            if self.prefetch:
                least = 0.0 if best is None else best.score
                for unit in self._unasked(worth, worker, least):
                    least = 0.0 if best is None else best.score
                    best = self._plan(worth, worker, unit, unit, least, spare, loading) or best
        if best is None or best.rows <= 0:
            most_s = math.inf if best is None else spare
            best = self._for_late_rows(worth, workers, loading, most_s) or best
        return best

    def _for_late_rows(
        self, worth: Worth, workers: Sequence[WorkerPlaces], loading: Set[str], most_s: float
    ) -> _Plan | None:
        """No load is worth it for rows in their goals: those that are late, or in no hurry, count in full."""
        best: _Plan | None = None
        link = worth.quickest(workers)
        patient = {
            group: rows
            for group in worth.wanted
            if not worth.is_coming(group)
            and loading.isdisjoint(group)
            and (rows := worth.patient(group, worth.now_s + worth.load_s(group, link))) > 0
        }
        for group in nlargest(_WANTED, patient, key=lambda group: patient[group]):
            for worker in workers:
                for unit, _ in _units(worth, worker, group):
                    least = 0.0 if best is None else best.score
                    plan = self._plan(worth, worker, unit, group, least, most_s, loading, late_too=True)
                    best = plan or best
        return best

    def _turns(self, worth: Worth, link: str, loading: Set[str]) -> tuple[Mapping[GroupKeys, float], float]:
        """How long loads may take that begin now: of groups that rows wait for, and of any other."""
        state = worth.state
        awaited: list[Awaited] = []
        for group in worth.wanted:
            if worth.is_coming(group) or not loading.isdisjoint(group):
                continue
            load_s = max(1e-6, worth.load_s(group, link))
            from_s = worth.now_s + load_s + sum(worth.models[key].batch_s(1) for key in group)
            rows, due_s = worth.savable(group, from_s), worth.due_s(group, from_s)
            if rows > 0:
                # The load may take longer, and the worker is busy when it is over.
                late_s = _MARGIN * load_s + 2.0 * sum(worth.models[key].batch_s(4) for key in group)
                awaited.append(Awaited(group, rows, load_s, max(0.0, due_s - from_s - late_s)))
        return spare_s(awaited, len(state.workers))

    def _candidates(
        self,
        worth: Worth,
        worker: WorkerPlaces,
        wanted: Sequence[GroupKeys],
        turns: Mapping[GroupKeys, float],
    ) -> Iterator[tuple[GroupKeys, GroupKeys]]:
        """What may be loaded next for rows that wait, each with the group whose rows those are."""
        state = worth.state
        if len(wanted) > _WANTED:

            def first(group: GroupKeys) -> float:
                rows = state.waited_for[group].rows + _KEEP_SHARE * worth.keep(group, worker.link)
                return rows / max(1, sum(worth.size_bytes(key) for key in group))

            soonest = next(iter(turns), None)  # must be begun
            wanted = nlargest(_WANTED, wanted, key=first)
            if soonest is not None and soonest not in wanted:
                wanted.append(soonest)
        for group in wanted:
            yield from _units(worth, worker, group)
        if self.savable:
            yield from ((group, group) for group in worth.behind)

    def _unasked(self, worth: Worth, worker: WorkerPlaces, least: float) -> Iterable[GroupKeys]:
        """What may be loaded next for nobody, as far as it may bring more than `least` rows a second."""
        sought = worth.sought(worker.link, _SOUGHT) if worth.most_sought > (1 - _ROUNDING) * least else ()
        return dict.fromkeys([*sought, *self._copies(worth, worker)])

    def _copies(self, worth: Worth, worker: WorkerPlaces) -> Iterator[GroupKeys]:
        state = worth.state
        if len(state.workers) < 2:
            return
        hottest = worth.hottest
        demand = state.demand.get(hottest, 0.0)
        if demand > _HOT and state.demand[worker.name] < demand - _COOLER and hottest in state.workers:
            there = state.workers[hottest]
            listed = state.hottest.get(hottest, ()) or there.resident
            able = [
                key
                for key in listed
                if worth.has(there, key) and not worth.has(worker, key) and worth.may_come_unasked(key)
            ]
            busiest = nlargest(_COPIES, able, key=worth.rate_of_late)
            yield from ((key,) for key in busiest)

    def _plan(
        self,
        worth: Worth,
        worker: WorkerPlaces,
        unit: GroupKeys,
        group: GroupKeys,
        least: float,
        most_s: float,
        loading: Set[str],
        *,
        late_too: bool = False,
    ) -> _Plan | None:
        """The next load that has the unit there, if it brings more than `least` and takes no longer."""
        state = worth.state
        missing = [key for key in unit if key not in worker.resident]
        is_on_its_way = worth.is_coming(group) or not loading.isdisjoint(group)
        is_copy = worth.runs(group)
        if not missing or (is_on_its_way and not is_copy):
            return None
        load_s = max(1e-6, worth.load_s(missing, worker.link))
        if load_s > most_s:
            return None
        if is_copy:
            rows = self._rows_behind(worth, worker, group, load_s)
            gain = rows
            if len(unit) == 1 and not is_on_its_way:
                gain += self._copy_gain(worth, worker, unit[0]) * load_s
        else:
            rows = self._rows(worth, group, load_s, late_too=late_too)
            gain = rows + worth.keep(unit, worker.link) * load_s
        if gain / load_s <= least:
            return None
        leaving = self._room(worth, worker, unit, missing, load_s, is_waited_for=rows > 0)
        if leaving is None:
            return None
        cost = sum(one.rows + one.worth * 2 * load_s for one in leaving)
        score = (gain - _HYSTERESIS * cost) / load_s
        if score <= least:
            return None
        now = leaving if len(missing) == 1 else _first_of(state, worker, missing[0], leaving)
        return _Plan(worker, missing[0], [one.key for one in now], score, unit, rows, load_s)

    def _rows(self, worth: Worth, group: GroupKeys, load_s: float, *, late_too: bool = False) -> float:
        """Rows that wait for the group, and that can be in time after such a load; or that can be late."""
        if not self.savable:
            return 0.0
        models = worth.models
        from_s = worth.now_s + load_s + sum(models[key].batch_s(1) for key in group)
        return min(worth.answerable(group, from_s), _LATE) if late_too else worth.savable(group, from_s)

    def _rows_behind(self, worth: Worth, worker: WorkerPlaces, group: GroupKeys, load_s: float) -> float:
        """Rows that wait for those who hold the group, too long, and that this one would answer in time."""
        if not self.savable or len(worth.state.workers) < 2 or group not in worth.state.waited_for:
            return 0.0
        return worth.saved_by(group, worker, load_s)

    def _copy_gain(self, worth: Worth, worker: WorkerPlaces, key: str) -> float:
        state, holders = worth.state, worth.holders(key)
        rate = worth.rate(key, 0.0)
        hottest = max(state.demand.get(name, 0.0) for name in holders)
        after = state.demand.get(worker.name, 0.0) + rate * worth.row_s(key) / (len(holders) + 1)
        return rate * (over(hottest) - over(after))

    def _room(
        self,
        worth: Worth,
        worker: WorkerPlaces,
        group: GroupKeys,
        missing: Sequence[str],
        load_s: float,
        *,
        is_waited_for: bool = True,
        is_ordered: bool = False,
    ) -> list[Leaving] | None:
        """Who leaves so that all that is missing fits; None where that cannot be."""
        state, capacity = worth.state, worker.capacity
        bytes_over = (
            state.bytes_on(worker) + sum(worth.size_bytes(key) for key in missing) - capacity.capacity_bytes
        )
        models_over = len(worker.resident) + len(missing) - capacity.max_models
        bytes_over = bytes_over if capacity.capacity_bytes else 0
        models_over = models_over if capacity.max_models else 0
        if bytes_over <= 0 and models_over <= 0:
            return []
        due = worth.ahead if not is_waited_for and missing[0] not in worth.ahead else {}
        for all_of_them in (False, True):
            may_leave = worth.may_leave(worker, load_s, all_of_them=all_of_them, also_busy=is_ordered)
            found: list[Leaving] = []
            freed = 0
            for one in may_leave:
                if freed >= bytes_over and len(found) >= models_over:
                    break
                if one.key not in group and one.key not in due:
                    found.append(one)
                    freed += worth.size_bytes(one.key)
            if freed >= bytes_over and len(found) >= models_over:
                return _needed(state, found, freed - bytes_over, len(found) - models_over)
        return None

    # ── what goes before ──────────────────────────────────────────────────────────────────────────────

    def _starved(self, worth: Worth, loading: Set[str]) -> GroupKeys | None:
        """The group that has waited longest of those that starve: rows of it are lost, or wait for ever."""
        state = worth.state
        since_s: dict[GroupKeys, float] = {}
        wanted = max(_FEWEST_WANTED, len(worth.wanted))
        found: GroupKeys | None = None
        longest_s = 0.0
        for group in worth.wanted:
            models = [worth.models[key] for key in group]
            waited_s = worth.now_s - max(model.served_s for model in models)
            load_s = max(max(model.load_s.values(), default=0.0) for model in models) * len(group)
            if waited_s <= max(longest_s, load_s * wanted / _FLOOR) or worth.is_coming(group):
                continue
            if not loading.isdisjoint(group):
                continue
            since_s = since_s or {wish.group: wish.since_s for wish in state.wishes if wish.by_rows}
            waited_s = min(waited_s, worth.now_s - since_s.get(group, -math.inf))
            if waited_s <= max(longest_s, load_s * wanted / _FLOOR):
                continue
            waits_on = worth.late(group) or _wait_for_ever(state.waited_for[group])
            if not waits_on and not any(model.lost for model in models):
                continue
            if worth.answerable(group, worth.now_s + load_s) > 0:
                found, longest_s = group, waited_s
        return found

    def _aborts(self, worth: Worth, loading: Set[str]) -> Iterator[PlacementAction]:
        """Loads for nobody, against rows that would be lost before those are over.

        One is given up only for a load that begins at once; else it would be begun and given up without end.
        """
        state, now_s = worth.state, worth.now_s
        if loading or any(worker.moving is None for worker in state.workers.values()):
            return
        asked = {key for group in state.waited_for for key in group}
        for worker in state.workers.values():
            moving = worker.moving
            if moving is None or not moving.loading or moving.aborted or moving.loading in asked:
                continue
            if any(moving.loading in wish.group for wish in state.wishes):
                continue
            left_s, whole_s = moving.ends_s - now_s, moving.ends_s - moving.since_s
            if left_s <= 0 or whole_s <= 0 or left_s == math.inf:
                continue
            done = self._worth_of_a_load(worth, worker, moving.loading) * (1 - left_s / whole_s)
            for group in worth.wanted[:_WANTED]:
                if worth.is_coming(group) or not loading.isdisjoint(group):
                    continue
                load_s = worth.load_s(group, worker.link)
                saved = self._rows(worth, group, load_s) - self._rows(worth, group, left_s + load_s)
                if saved > _HYSTERESIS * done:
                    if self._would_serve(worth, worker, moving.loading):
                        yield Abort(worker.name, moving.loading)
                    break

    def _would_serve(self, worth: Worth, worker: WorkerPlaces, given_up: str) -> bool:
        """Whether a load for rows that wait would begin there if that one were given up."""
        state = worth.state
        workers = {**state.workers, worker.name: replace(worker, moving=None)}
        then = replace(state, workers=workers, sought=(*state.sought, given_up))
        asked = {key for group in state.waited_for for key in group}
        return any(
            isinstance(action, Fetch) and action.model in asked
            for action in replace(self, aborts=False).decide(then, worth.now_s).actions
        )

    def _may_turn_out_idle(self, worth: Worth, loading: Set[str]) -> bool:
        """Whether some load, under way or begun now, is one that nobody wishes for: it may be given up."""
        moving = (worker.moving for worker in worth.state.workers.values())
        coming = loading | {one.loading for one in moving if one is not None and not one.aborted} - {""}
        return not coming <= frozenset().union(*(wish.group for wish in worth.state.wishes))

    def _worth_of_a_load(self, worth: Worth, worker: WorkerPlaces, key: str) -> float:
        """Rows that it brings, for which nobody waits yet."""
        return worth.keep((key,), worker.link) * worth.load_s((key,), worker.link)

    def _ask_again_s(self, worth: Worth, loading: Set[str], is_idle: bool) -> float:
        state = worth.state
        if not is_idle:  # then all that may be done is to give up a load, until one is over
            could_give_up = self.aborts and worth.wanted and self._may_turn_out_idle(worth, loading)
            return worth.now_s + _AGAIN_S if could_give_up else math.inf
        if worth.wanted or worth.behind:
            return worth.now_s + _AGAIN_S
        if self.prefetch and state.sought:
            return worth.now_s + (_AGAIN_S if worth.ahead else _SELDOM_S)
        hot = max(state.demand.values(), default=0.0) if len(state.workers) > 1 else 0.0
        return worth.now_s + _SELDOM_S if hot > _HOT else math.inf


def _units(worth: Worth, worker: WorkerPlaces, group: GroupKeys) -> Iterator[tuple[GroupKeys, GroupKeys]]:
    """What a group's rows need of the worker: all of it, or a part where it is apart, or any one member."""
    if worth.in_part(group):
        yield from (((key,), group) for key in group)
    elif worth.is_apart(group):
        parts = assigned(worth.state, Wish(group, worth.now_s), lambda _: None)
        yield from ((part, group) for part, where in parts if where is worker)
    else:
        yield group, group


def _wait_for_ever(rows: WaitingRows) -> bool:
    """Whether some of them have no deadline by which they would be lost."""
    return not rows.rows or rows.fillers > 0 or (bool(rows.due_s) and rows.due_s[-1] == math.inf)


def _needed(
    state: PlacementState, leaving: list[Leaving], bytes_left: int, models_left: int
) -> list[Leaving]:
    """Those that have to leave: what others have made room for is put back, what is worth most first."""
    if len(leaving) < 2:
        return leaving
    kept: list[Leaving] = []
    for one in sorted(leaving, key=lambda one: -one.worth):
        size = state.size_bytes(one.key)
        if size <= bytes_left and models_left > 0:
            bytes_left -= size
            models_left -= 1
        else:
            kept.append(one)
    return kept


def _first_of(
    state: PlacementState, worker: WorkerPlaces, key: str, leaving: Sequence[Leaving]
) -> list[Leaving]:
    """Of those that leave for a group as many as make room for its next member."""
    held = dict.fromkeys(worker.resident)
    found: list[Leaving] = []
    for one in leaving:
        if worker.capacity.fits([state.size_bytes(each) for each in (*held, key)]):
            break
        del held[one.key]
        found.append(one)
    return found
