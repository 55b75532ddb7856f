"""What models are worth where they are, and what it would bring to load others: rows in goal a second.

The numbers of the rule `value`, at one moment, most of them found when first asked for. A model's rate is
that of its rows of late; where the order of visits says that it is due, or not soon, that counts instead. Its
worth is the part of its rows that would be lost if it had to be loaded again first. Pure.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge, nlargest
from typing import TypeVar

from server.placement.policy import FADE_S, GroupKeys, PlacementState, WorkerPlaces

__all__ = ["Leaving", "Worth", "over"]

_LEAST = 0.05  # of its rows are lost whenever a model has to be loaded: as good as none, so it may leave
_LIKELY = 0.6  # the least probability by which the order of visits is followed
_STEPS = 64
_FIRST_LOAD_S = 0.02  # while nothing is known
_PINNED_S = 1.0  # what was loaded for rows stays for so long, until a batch was sent to it
_FILLERS = 64  # rows in no hurry count for a part of one batch at most
_LOOKED_AT = 96  # of a worker's models, when it is asked who leaves
_COUNTED = 512  # rows of a group, where it is asked how many come too late
_COPY = 0.02  # of a model's worth that a copy has at least


def over(demand: float) -> float:
    """The share of its rows that a worker loses which is asked for so much of its time."""
    return max(0.0, 1 - 0.9 / demand) if demand > 0 else 0.0


def _lost(absent_s: float, batch_s: float, goal_s: float) -> float:
    """The share of a model's rows that miss their goal while it is away."""
    lost = (absent_s + batch_s - goal_s) / absent_s if absent_s > 0 else 0.0
    return 1.0 if lost > 1.0 else max(lost, _LEAST)


@dataclass(slots=True)
class Leaving:
    """A model that may leave: rows that wait for it, its worth in rows a second, its size, all as a cost."""

    key: str
    rows: int
    worth: float
    size: int


# Worth a byte, place in the list, key, rows that wait, worth, bytes: sorts by worth a byte.
_Ranked = tuple[float, int, str, int, float, int]
_Asked = TypeVar("_Asked", bound=Hashable)
_Answer = TypeVar("_Answer")


class _Found(dict[_Asked, _Answer]):
    """What was found before; `find` is asked once for each."""

    def __init__(self, find: Callable[[_Asked], _Answer]) -> None:
        super().__init__()
        self._find = find

    def __missing__(self, asked: _Asked) -> _Answer:
        found = self[asked] = self._find(asked)
        return found


class Worth:
    """`rates`, `chain`: whether rates, or else the last use alone, and the order of visits count."""

    def __init__(
        self, state: PlacementState, now_s: float, *, rates: bool = True, chain: bool = True
    ) -> None:
        self.state = state
        self.models = _Found(state.models.__getitem__)  # each is made by the core when it is first looked at
        self.now_s = now_s
        self._rates = rates
        workers = state.workers.values()
        # By worker what is there, and what of it leaves.
        self._there = [
            (worker.name, worker.resident, worker.moving.evicting if worker.moving is not None else ())
            for worker in workers
        ]
        self._keep: dict[tuple[GroupKeys, str], float] = {}
        self._keep_alone: _Found[str, dict[str, float]] = _Found(lambda link: {})
        self._load_s: _Found[str, dict[str, float]] = _Found(lambda link: {})
        self._rate: dict[str, float] = {}
        self._held_by: dict[GroupKeys, list[str]] = {}
        self._sought: dict[str, list[GroupKeys]] = {}
        self._ranked: dict[tuple[str, bool, bool], tuple[list[_Ranked], list[_Ranked]]] = {}
        self._runs: dict[GroupKeys, bool] = {}
        self._coming = {w.moving.loading for w in workers if w.moving is not None and not w.moving.aborted}
        # (worker, model) → in how many seconds it is there.
        self._there_in_s = {
            (w.name, w.moving.loading): max(0.0, w.moving.ends_s - now_s)
            for w in workers
            if w.moving is not None and w.moving.loading and not w.moving.aborted
        }
        self._too_late: dict[GroupKeys, int] = {}
        self._behind: list[GroupKeys] | None = None
        self._work_by_worker_s: dict[str, float] | None = None
        self._unheld: set[str] | None = None
        self._most_sought = -1.0  # not found yet
        self._held_twice: set[str] | None = None
        # The groups that rows wait for and that run nowhere.
        self.wanted = [group for group in state.waited_for if not self.runs(group)]
        self._wanted_alone = {group[0] for group in self.wanted if len(group) == 1}
        self._mean_load_s = self._mean_wanted_load_s()
        self._asked = {key for group in state.waited_for for key in group}  # models that rows wait for
        # The worker that is asked for most of its time; "" where there is none.
        self.hottest = max(state.demand, key=state.demand.__getitem__, default="")
        self.ahead = self._looked_ahead() if chain else {}

    # ── what is where ─────────────────────────────────────────────────────────────────────────────────

    def has(self, worker: WorkerPlaces, key: str) -> bool:
        """Whether the model is there, and stays."""
        moving = worker.moving
        return key in worker.resident and (moving is None or key not in moving.evicting)

    def holders(self, key: str) -> list[str]:
        """The workers that have it."""
        return [name for name, held, leaving in self._there if key in held and key not in leaving]

    def is_coming(self, keys: GroupKeys) -> bool:
        """Whether one of them is on its way to some worker."""
        return not self._coming.isdisjoint(keys)

    def in_part(self, group: GroupKeys) -> bool:
        """Whether some of the members may answer without the others."""
        return len(group) > 1 and all(self.models[key].share < 1 for key in group)

    def runs(self, group: GroupKeys) -> bool:
        """Whether rows of the group are being answered somewhere."""
        found = self._runs.get(group)
        if found is None:
            if self.in_part(group):
                found = any(self.holders(key) for key in group)
            else:
                found = bool(self._holding(group)) or (
                    self.is_apart(group) and all(self.holders(key) for key in group)
                )
            self._runs[group] = found
        return found

    def is_apart(self, group: GroupKeys) -> bool:
        """Whether its members may be on different workers: no worker can hold them all."""
        state = self.state
        if not state.apart or len(group) == 1:
            return False
        sizes = [self.size_bytes(key) for key in group]
        return not any(worker.capacity.fits(sizes) for worker in state.workers.values())

    def _mean_wanted_load_s(self) -> float:
        wanted = self.wanted[:_STEPS]
        link = next((worker.link for worker in self.state.workers.values()), "")
        return sum(self.load_s(group, link) for group in wanted) / len(wanted) if wanted else 0.0

    def size_bytes(self, key: str) -> int:
        """Of a model; 0 while it is not known."""
        return self.models[key].size_bytes if key in self.models or key in self.state.models else 0

    # ── what is asked for ─────────────────────────────────────────────────────────────────────────────

    def quickest(self, workers: Iterable[WorkerPlaces]) -> str:
        """The link of theirs over which what is wanted first comes soonest."""
        links = list(dict.fromkeys(worker.link for worker in workers))
        if len(links) == 1 or not self.wanted:
            return links[0]
        return min(links, key=lambda link: self.load_s(self.wanted[0], link))

    def load_s(self, keys: Collection[str], link: str) -> float:
        """What it takes to load them over that link."""
        known = self._load_s[link]
        found = 0.0
        for key in keys:
            one_s = known.get(key)
            if one_s is None:
                is_known = key in self.state.models
                one_s = self.models[key].load_s.get(link, _FIRST_LOAD_S) if is_known else 0.0
                known[key] = one_s
            found += one_s
        return found

    def row_s(self, key: str) -> float:
        """Of a batch of four."""
        return self.models[key].batch_s(4) / 4

    def _looked_ahead(self) -> dict[str, tuple[float, float, float]]:
        """Model → how probably it is among those that come next, in how many seconds, and rows of its visit.

        The likeliest successor of each is followed, as long as all of that is likely.
        """
        visits = self.state.visits
        found: dict[str, tuple[float, float, float]] = {}
        group, probability, seen = visits.last, 1.0, {visits.last}
        for step in range(1, _STEPS + 1):
            group, share = visits.next.get(group, ((), 0.0))
            probability *= share
            if probability < _LIKELY or group in seen:
                break
            seen.add(group)
            until_s = max(0.0, visits.since_s + step * visits.gap_s - self.now_s)
            for key in group:
                found.setdefault(key, (probability, until_s, visits.rows.get(group, 1.0)))
        return found

    def rate(self, key: str, load_s: float) -> float:
        """Rows a second that come for a model, in the time of two of its loads."""
        rate = self.rate_of_late(key)
        due = self.ahead.get(key)
        if due is None or load_s <= 0:
            return rate
        probability, until_s, visit = due
        horizon_s = 2 * load_s
        rows = visit + rate * (horizon_s - until_s) if until_s <= horizon_s else visit * horizon_s / until_s
        return probability * rows / horizon_s + (1 - probability) * rate

    def rate_of_late(self, key: str) -> float:
        """Rows a second that came for a model; what counts if rates do not: when the last one did."""
        found = self._rate.get(key)
        if found is None:
            model = self.models[key]
            if self._rates:
                found = model.arrivals_per_s(self.now_s)
            else:
                found = math.exp((model.arrived_s - self.now_s) / FADE_S) / FADE_S if model.rows else 0.0
            self._rate[key] = found
        return found

    def keep(self, group: GroupKeys, link: str) -> float:
        """Rows a second that are lost while the group has to be loaded again: what it is worth to have it."""
        if len(group) == 1:
            alone = self._keep_alone[link].get(group[0])
            return alone if alone is not None else self.keep_each(group, link)[0]
        found = self._keep.get((group, link))
        if found is None:
            load_s = self.load_s(group, link)
            models = [self.models[key] for key in group]
            rate = min(self.rate(key, load_s) * self.models[key].share for key in group)
            absent_s = 2 * load_s + self._behind_s(group in self.wanted)
            lost = _lost(absent_s, sum(model.batch_s(4) for model in models), min(m.goal_s for m in models))
            found = self._keep[group, link] = rate * lost
        return found

    def keep_each(self, keys: Iterable[str], link: str) -> list[float]:
        """The same of each of these models alone: nothing is asked as often as this."""
        known, loads_s = self._keep_alone[link], self._load_s[link]
        models, ahead, unserved = self.models, self.ahead, self._wanted_alone
        behind_s = self._behind_s(False)
        found = []
        for key in keys:
            worth = known.get(key)
            if worth is None:
                model, load_s = models[key], loads_s.get(key)
                if load_s is None:
                    load_s = self.load_s((key,), link)
                absent_s = 2 * load_s + (behind_s if key not in unserved else self._behind_s(True))
                rate = self.rate(key, load_s) if key in ahead else self.rate_of_late(key)
                worth = 0.0
                if rate:
                    worth = rate * model.share * _lost(absent_s, model.batch_s(4), model.goal_s)
                known[key] = worth
            found.append(worth)
        return found

    def _behind_s(self, is_wanted: bool) -> float:
        """What a link loads first of what is wanted: of one group less, if that is the one in question."""
        others = len(self.wanted) - is_wanted
        return self._mean_load_s * max(0, others) / max(1, len(self.state.workers))

    def may_come_unasked(self, key: str) -> bool:
        """Whether it may be loaded though nobody waits for it."""
        model = self.models[key]
        return not model.failures and not model.dismissed and not model.is_deadly

    def sought(self, link: str, most: int) -> list[GroupKeys]:
        """Of what is held nowhere, and no rows wait for, those worth most a second of the link."""
        found = self._sought.get(link)
        if found is None:
            keys = [key for key in self._may_be_sought if self.may_come_unasked(key)]
            if len(keys) > most:
                loads_s = self._load_s[link]
                worths = {
                    key: worth / max(1e-6, loads_s[key])
                    for key, worth in zip(keys, self.keep_each(keys, link), strict=True)
                }
                keys = nlargest(most, keys, key=worths.__getitem__)
            found = self._sought[link] = [self.unit_of(key) for key in keys]
        return found

    @property
    def _may_be_sought(self) -> set[str]:
        """Models that are held nowhere, and that no rows wait for."""
        if self._unheld is None:
            ahead = [key for key in self.ahead if not self.holders(key)]
            asked = {key for group in self.wanted for key in group}
            self._unheld = {*self.state.sought, *ahead} - asked
        return self._unheld

    @property
    def most_sought(self) -> float:
        """What is worth no less than any of these, in rows a second: all of its rows; inf = not known."""
        if self._most_sought < 0:
            sought = self.state.sought
            if self.ahead or any(len(group) > 1 for key in sought for group in self.models[key].groups):
                self._most_sought = math.inf
            else:
                self._most_sought = max((self.rate_of_late(key) for key in sought), default=0.0)
        return self._most_sought

    def unit_of(self, key: str) -> GroupKeys:
        """What has to be there for the model to be of use: itself, or all of its group."""
        model = self.models[key]
        if model.share < 1 or not model.groups or (key,) in model.groups:
            return (key,)
        return model.groups[0]

    def savable(self, group: GroupKeys, from_s: float) -> float:
        """Rows that wait for the group and meet their goals if they are answered from then on.

        Others that are answered at all, late or in no hurry, count for a small part.
        """
        waiting = self.state.waited_for.get(group)
        if waiting is None:
            return 0.0
        if not waiting.rows:
            return 1.0  # such as run alone
        in_time = max(0, waiting.rows - waiting.fillers - bisect_left(waiting.due_s, from_s))
        return in_time + _LEAST * min(self.patient(group, from_s), _FILLERS)

    def patient(self, group: GroupKeys, from_s: float) -> int:
        """Rows that are answered, if from then on, but late, or in no hurry."""
        waiting = self.state.waited_for[group]
        in_time = max(0, waiting.rows - waiting.fillers - bisect_left(waiting.due_s, from_s))
        return max(0, self.answerable(group, from_s) - in_time)

    def answerable(self, group: GroupKeys, from_s: float) -> int:
        """Rows that wait for the group and that are not refused if they are answered from then on."""
        waiting = self.state.waited_for.get(group)
        if waiting is None:
            return 0
        if not waiting.rows:
            return 1
        return (
            max(0, waiting.rows - waiting.fillers - bisect_left(waiting.deadline_s, from_s)) + waiting.fillers
        )

    def due_s(self, group: GroupKeys, from_s: float) -> float:
        """When the goal is missed of the first of those rows; inf where they have none."""
        waiting = self.state.waited_for[group]
        place = bisect_left(waiting.due_s, from_s)
        return waiting.due_s[place] if place < len(waiting.due_s) else math.inf

    def late(self, group: GroupKeys) -> bool:
        """Whether rows wait for the group that have missed their goals, and not their deadlines."""
        waiting = self.state.waited_for[group]
        return bool(waiting.due_s) and waiting.due_s[0] < self.now_s

    def waiting_for(self, key: str) -> int:
        """Rows that wait for a model, alone or with others."""
        state = self.state
        found = [state.waited_for.get(group) for group in self.models[key].groups or ((key,),)]
        return sum(waiting.rows for waiting in found if waiting is not None)

    # ── rows that wait behind others ──────────────────────────────────────────────────────────────────

    def begins(self, worker: WorkerPlaces, unit: GroupKeys, load_s: float) -> None:
        """It is decided that the unit is loaded there."""
        self._there_in_s.update(((worker.name, key), load_s) for key in unit)
        for group in [group for group in self._too_late if not set(unit).isdisjoint(group)]:
            del self._too_late[group]

    @property
    def behind(self) -> list[GroupKeys]:
        """The groups that run, and of which rows wait that come too late with those who hold them."""
        if self._behind is None:
            waited_for = self.state.waited_for if len(self.state.workers) > 1 else ()
            self._behind = [group for group in waited_for if self.too_late(group) > 0]
        return self._behind

    def too_late(self, group: GroupKeys) -> int:
        """Rows that wait for the group, and that those who hold it will answer too late."""
        found = self._too_late.get(group)
        if found is None:
            found = self._too_late[group] = self._rows_too_late(group, self._free_in_s(group))
        return found

    def saved_by(self, group: GroupKeys, worker: WorkerPlaces, load_s: float) -> int:
        """How many of these another worker would save which has the group after such a load."""
        if not (before := self.too_late(group)):
            return 0
        free_in_s = [*self._free_in_s(group), max(load_s, self._work_s[worker.name])]
        return before - self._rows_too_late(group, free_in_s)

    @property
    def _work_s(self) -> dict[str, float]:
        """Worker → seconds that it has to do: half of what runs, and its share of what waits."""
        if self._work_by_worker_s is None:
            self._work_by_worker_s = self._found_work_s()
        return self._work_by_worker_s

    def _found_work_s(self) -> dict[str, float]:
        state = self.state
        found = dict.fromkeys(state.workers, 0.0)
        for name, running in state.running.items():
            if name in found:
                found[name] = sum(self.models[key].batch_s(4) for key in running) / 2
        for group in state.waited_for:
            holders = self._holding(group)
            if holders:
                waiting_s = self._waiting_s(group) / len(holders)
            for name in holders:
                found[name] += waiting_s
        return found

    def _holding(self, group: GroupKeys) -> list[str]:
        """The workers that have all of it."""
        found = self._held_by.get(group)
        if found is None:
            if len(group) == 1:
                found = self.holders(group[0])
            else:
                workers = self.state.workers.items()
                found = [name for name, one in workers if all(self.has(one, key) for key in group)]
            self._held_by[group] = found
        return found

    def _waiting_s(self, group: GroupKeys) -> float:
        rows = max(1, self.state.waited_for[group].rows)
        return sum(self.models[key].rows_s(rows) for key in group)

    def _free_in_s(self, group: GroupKeys) -> list[float]:
        """In how many seconds each that holds the group, or soon will, is done with what waits for others."""
        holders = self._holding(group)
        own_s = self._waiting_s(group) / len(holders) if holders else 0.0
        found = [max(0.0, self._work_s[name] - own_s) for name in holders]
        for name in dict.fromkeys(name for name, key in self._there_in_s if key in group):
            worker = self.state.workers[name]
            in_s = max(
                0.0 if self.has(worker, key) else self._there_in_s.get((name, key), math.inf) for key in group
            )
            if name not in holders and in_s < math.inf:
                found.append(max(in_s, self._work_s[name]))
        return found

    def _dues_s(self, group: GroupKeys) -> Iterator[float]:
        """When the goals are missed of the rows that wait: of those beyond what is known, as these go on."""
        waiting = self.state.waited_for[group]
        known_s = waiting.due_s
        yield from known_s
        more = min(waiting.rows - waiting.fillers, _COUNTED) - len(known_s)
        if known_s and more > 0 and known_s[-1] < math.inf:
            step_s = (known_s[-1] - known_s[0]) / len(known_s)
            yield from (known_s[-1] + step_s * row for row in range(1, more + 1))

    def _rows_too_late(self, group: GroupKeys, free_in_s: list[float]) -> int:
        """Of the rows that wait, if each of those workers takes them from then on, the soonest due first."""
        if not free_in_s or self.in_part(group):
            return 0
        models = [self.models[key] for key in group]
        fixed_s = sum(one.fixed_s for one in models)
        # In batches of four, as demand is reckoned: where the largest were counted on, an l̂ that is too low
        # would leave rows behind holders who cannot make it.
        row_s = sum(one.row_s + one.fixed_s / min(4, one.max_batch) for one in models)
        begins_s = sorted(begin_s + fixed_s for begin_s in free_in_s)
        late, workers, begun_s = 0, 1, begins_s[0]
        for row, due_s in enumerate(self._dues_s(group), 1):
            done_s = (row * row_s + begun_s) / workers
            while workers < len(begins_s) and done_s > begins_s[workers]:
                begun_s += begins_s[workers]
                workers += 1
                done_s = (row * row_s + begun_s) / workers
            late += self.now_s + done_s > due_s >= self.now_s
        return late

    # ── who may leave ─────────────────────────────────────────────────────────────────────────────────

    def may_leave(
        self, worker: WorkerPlaces, load_s: float, *, all_of_them: bool = False, also_busy: bool = False
    ) -> Iterator[Leaving]:
        """The models of a worker, the cheapest a byte to leave first, for a load that takes so long.

        Of many, only such as may be worth least are looked at, unless `all_of_them`. Not those that run, nor
        those that were loaded for rows which have not been sent yet, unless `also_busy`.
        """
        ranked = self._ranked.get((worker.name, all_of_them, also_busy))
        if ranked is None:
            ranked = self._rank(worker, all_of_them, also_busy)
            self._ranked[worker.name, all_of_them, also_busy] = ranked
        unasked, asked = ranked
        if not asked:
            return (Leaving(*one[2:]) for one in unasked)
        costs = sorted(
            ((rows / (4 * load_s) + worth) / size, *one) for one in asked for rows, worth, size in [one[3:]]
        )
        return (Leaving(*one[3:]) for one in merge(costs, ((one[0], *one) for one in unasked)))

    def _rank(
        self, worker: WorkerPlaces, all_of_them: bool, also_busy: bool
    ) -> tuple[list[_Ranked], list[_Ranked]]:
        """Those that no rows wait for, those worth least a byte first; and the others, in no order."""
        keys = self._looked_at(worker, all_of_them)
        if not also_busy:
            running = self.state.running.get(worker.name, frozenset())
            keys = [key for key in keys if key not in running and not self._is_pinned(worker, key)]
        unasked: list[_Ranked] = []
        asked: list[_Ranked] = []
        for place, (key, keep) in enumerate(zip(keys, self.keep_each(keys, worker.link), strict=True)):
            model = self.models[key]
            size = max(1, model.size_bytes)
            rows, worth = 0, keep
            others = (
                [name for name in self.holders(key) if name != worker.name] if key in self._copied else ()
            )
            if others:
                worth = self._worth_of_copy(worker, key, others)
            elif (groups := model.groups) and len(groups[0]) > 1 and not self._is_of_use(groups):
                worth = 0.0  # without the others
            elif key in self._asked:
                rows = self.waiting_for(key)
            (asked if rows else unasked).append((worth / size, place, key, rows, worth, size))
        unasked.sort()
        return unasked, asked

    def _looked_at(self, worker: WorkerPlaces, all_of_them: bool) -> list[str]:
        resident = worker.resident
        coldest = self.state.coldest.get(worker.name)
        if all_of_them or coldest is None or len(resident) <= _LOOKED_AT:
            return [key for key in resident if self.has(worker, key)]
        listed = dict.fromkeys([*coldest, *self.ahead])
        return [key for key in listed if self.has(worker, key)]

    def _is_pinned(self, worker: WorkerPlaces, key: str) -> bool:
        there = worker.resident[key]
        return there.for_rows and not there.used and self.now_s - there.since_s <= _PINNED_S

    def _worth_of_copy(self, worker: WorkerPlaces, key: str, others: Sequence[str]) -> float:
        """What those lose who hold it, too, if its rows are theirs alone."""
        rate = self.rate(key, self.load_s((key,), worker.link))
        share = rate * self.row_s(key) / (len(others) * (len(others) + 1))
        demand = sum(self.state.demand.get(name, 0.0) for name in others) / len(others) + share
        return max(rate * over(demand), _COPY * self.keep((key,), worker.link))

    def _is_of_use(self, groups: Sequence[GroupKeys]) -> bool:
        """Whether a member of these groups answers rows: alone, or with the others, if they are there."""
        return any(len(group) == 1 or self.runs(group) or self.is_coming(group) for group in groups)

    @property
    def _copied(self) -> set[str]:
        """Models that more than one worker holds."""
        if self._held_twice is None:
            seen: set[str] = set()
            self._held_twice = set()
            for _, held, _ in self._there:
                self._held_twice.update(seen.intersection(held))
                seen.update(held)
        return self._held_twice
