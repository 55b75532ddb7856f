"""`forecast`: each option's next 30 seconds are simulated; the least of cost and price of late rows is done.

A function's rate is forecast each second. Every 2 s, functions by turns, or at once when half a second
brings more rows than chance would, these options are held against doing nothing: another variant instead of
a copy, or of all; a copy elsewhere; up to three copies on CPUs; a copy less; a worker more, with a copy.
Then, of workers: one less. An option is worth

    cost of 30 s + 30 s · what it costs a second then + P · (late rows + what the last peak would cost again)

What makes fewer rows late is done at once, where it is over five times dearer on the second time or at a
jump. What saves is done when it has saved over 3 % five times running. P follows what has become of the
rows: up while more than .8 % of the last five minutes' were late and still are, else slowly down again.
`forecast-warm` keeps copies that leave in host memory after a peak, where that is worth it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from server.capacity.forecasting import RateForecast, is_jump
from server.capacity.outlook import (
    HORIZON_S,
    RatesAhead,
    Serving,
    cost_of,
    late_ahead,
    rates_ahead,
)
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
from server.capacity.sharing import Place, Sharing

__all__ = ["Forecast"]

_DECIDES_S = 2.0
_SAMPLE_S = 1.0
_TURNS = 4  # functions take turns: a quarter of them each half second
_TIMES, _TIMES_WARM = 5, 3  # running that a saving is seen before it is done
_SAVES = 0.03  # of an option's worth, at least
_SAVES_ROWS, _SAVES_ROWS_SHARED = 1.0, 20.0  # and what so many late rows cost at first
_GAINS = 0.15  # of what there is costs: gained at least, where fewer rows are late
# And what so many late rows cost at first. Where functions share devices each step disturbs the others.
_GAINS_ROWS, _GAINS_ROWS_SHARED = 5.0, 30.0
_DEAR = 5.0  # times what there is: such a step is thought over once
_PEAK_S, _PEAK_BUCKET_S = 120.0, 5.0
_LATE_S, _LATE_BUCKET_S = 300.0, 10.0
_LATE_NOW_S = 30.0
_LATE_SHARE = 0.008
_LATE_SHARE_SHARED = 0.35  # where functions share workers, and are late for each other's passes
_PRICE_UP, _PRICE_DOWN, _PRICE_MOST = 1.03, 0.98, 100.0
_LATE_ROW_S = 1 / 3  # of the dearest copy's time: what a late row costs at least
_LATE_TIMES_SHARED = 1.3  # where functions share workers: it hardly rises there
_LATE_ROW_ROWS = 30.0  # and so many rows on any copy
_ENDLESS_S = HORIZON_S  # the goal of rows that have none: they may wait, but the queue may not grow for ever
_NOTHING = 1e-6  # rows/s: none
# A jump that nothing has foretold, to so many times the rate: of how much of a load's time the rows that are
# too many then are counted, at the least price of a late row.
_JUMPS_TO, _JUMPS = 4.0, 0.025
_JUMP_ROWS = 5.0  # so few of them are not worth a copy
_LEAST_SHARE = 0.05  # of a worker that its other functions leave


@dataclass
class _Seen:
    """What is remembered of a function. Plain values when written; lists are replaced, never changed."""

    at_s: float
    arrived: int
    decided_s: float
    forecast: RateForecast | None = None
    sampled_s: float = 0.0
    sampled: int = 0
    peaks: Sequence[Sequence[float]] = ()  # [since, most rows/s]
    late: Sequence[Sequence[float]] = ()  # [since, arrived until then, late until then]
    price: float = 1.0  # times the least price of a late row
    saving: int = 0  # how often running
    dear: int = 0
    retiring: dict[str, list[list[str]]] = field(default_factory=dict)  # "variant@worker" → those it replaces
    jumped: bool = False

    def to_json(self) -> dict[str, Any]:
        one = self.forecast
        forecast = one and {"level": one.level, "trend": one.trend, "variance": one.variance}
        return {**vars(self), "forecast": forecast}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> _Seen:
        forecast = plain["forecast"]
        return cls(
            **{
                **plain,
                "forecast": forecast and RateForecast(**forecast),
                "retiring": dict(plain["retiring"]),
            }
        )


@dataclass(frozen=True)
class _Option:
    """What may be done about a function, and the copies that it would have."""

    actions: tuple[Action, ...]
    serving: tuple[Serving, ...]
    extra_per_s: float = 0.0  # of a worker that comes for it
    dearer: bool = False


class Forecast:
    """See the module's docstring."""

    every_s = ASKED_EVERY_S = 0.5

    def __init__(self, name: str = "forecast", *, keep_warm: bool = False) -> None:
        self.name = name
        self._keep_warm = keep_warm

    def decide(self, fleet: Fleet, state: State) -> Decision:
        """See the module's docstring. The state grows with the functions, not with the time."""
        known = state.get("functions", {})
        functions = {
            one.name: self._seen(fleet, one, known.get(one.name), number % _TURNS)
            for number, one in enumerate(fleet.functions)
        }
        asked = any(seen.jumped or _is_due(seen, fleet.now_s) for seen in functions.values())
        due = fleet.now_s - state.get("decided_s", -math.inf) >= _DECIDES_S - 1e-6
        actions: list[Action] = []
        down = dict(state.get("down", {}))
        if asked or due:
            round_ = _Round(fleet, functions, keep_warm=self._keep_warm)
            for load in fleet.functions:
                seen = functions[load.name]
                is_due = _is_due(seen, fleet.now_s)
                if is_due or seen.jumped:
                    actions += round_.about(load, seen, due=is_due)
                if is_due:
                    seen.decided_s = fleet.now_s
            if due:
                more, down = round_.about_workers(down, quiet=not actions)
                actions += more
        remembered = {
            "decided_s": fleet.now_s if due else state.get("decided_s", fleet.now_s),
            "functions": {name: seen.to_json() for name, seen in functions.items()},
            "down": down,
        }
        return Decision(tuple(actions), remembered)

    def _seen(self, fleet: Fleet, load: FunctionLoad, before: Mapping[str, Any] | None, turn: int) -> _Seen:
        """The function with what has come since; `jumped` where that is more than chance."""
        now_s = fleet.now_s
        if before is None or load.arrived < before["arrived"]:  # new, or counted anew
            return _Seen(
                now_s,
                load.arrived,
                now_s - turn * _DECIDES_S / _TURNS,
                sampled_s=now_s,
                sampled=load.arrived,
                late=[[now_s, load.arrived, load.late]],
            )
        seen = _Seen.from_json(before)
        seen.jumped = False
        for_s, rows = now_s - seen.at_s, load.arrived - seen.arrived
        if for_s <= 0:
            return seen
        if seen.forecast is not None and is_jump(rows, seen.forecast.at(0.0) * for_s):
            seen.jumped = True
        if now_s - seen.sampled_s >= _SAMPLE_S - 1e-6:
            whole_s = now_s - seen.sampled_s
            rate = (load.arrived - seen.sampled) / whole_s
            seen.forecast = RateForecast(rate) if seen.forecast is None else seen.forecast.seen(rate, whole_s)
            seen.sampled_s, seen.sampled = now_s, load.arrived
        if seen.jumped and seen.forecast is not None and rows / for_s > seen.forecast.level:
            seen.forecast = seen.forecast.moved_to(rows / for_s)
        if seen.forecast is not None:
            seen.peaks = _with_peak(seen.peaks, now_s, seen.forecast.level)
        seen.late = _with_late(seen.late, now_s, load)
        seen.at_s, seen.arrived = now_s, load.arrived
        return seen


def _is_due(seen: _Seen, now_s: float) -> bool:
    return now_s - seen.decided_s >= _DECIDES_S - 1e-6


def _with_peak(
    peaks: Sequence[Sequence[float]], now_s: float, rows_per_s: float
) -> Sequence[Sequence[float]]:
    if not peaks or now_s - peaks[-1][0] >= _PEAK_BUCKET_S:
        return [*(one for one in peaks if now_s - one[0] <= _PEAK_S), [now_s, rows_per_s]]
    if rows_per_s > peaks[-1][1]:
        return [*peaks[:-1], [peaks[-1][0], rows_per_s]]
    return peaks


def _with_late(
    late: Sequence[Sequence[float]], now_s: float, load: FunctionLoad
) -> Sequence[Sequence[float]]:
    if not late or now_s - late[-1][0] >= _LATE_BUCKET_S:
        return [*(one for one in late if now_s - one[0] <= _LATE_S), [now_s, load.arrived, load.late]]
    return late


def _many_late(load: FunctionLoad, since: Sequence[float], may_be: float) -> bool:
    """Whether more of its rows since then were late than chance makes of the share that may be."""
    _, arrived, late = since
    rows = load.arrived - arrived
    if rows <= 0:
        return False
    bound = may_be + 2 * math.sqrt(may_be * (1 - may_be) / rows)
    return (load.late - late) / rows > bound


class _Round:
    """One decision: the functions in their order, each seeing what has been decided for those before."""

    def __init__(self, fleet: Fleet, functions: Mapping[str, _Seen], *, keep_warm: bool) -> None:
        self._fleet = fleet
        self._functions = functions
        self._keep_warm = keep_warm
        self._taken: list[Action] = []
        self._standing_as_is: dict[str, tuple[Serving, ...]] = {}
        self._reasons: dict[str, str] = {}
        self._given: dict[tuple[str, str], tuple[float, float, float]] = {}
        self._least_late_prices: dict[str, float] = {}
        self._crowdings: dict[tuple[str, str], float] = {}
        self._copies = {name: self._standing(name) for name in functions}
        self._loads = {one.name: one for one in fleet.functions}
        self._sharing = Sharing(fleet.workers)
        for name in functions:
            self._book(name, self._staying(name))
        self._free_of_charge = not any(
            one.price_per_gb_s or one.price_per_hour for one in fleet.devices.values()
        )
        self._joining = {one.device for one in fleet.workers.values() if one.state == "joining"}
        self._warm = {(one.variant, one.worker): one for one in fleet.copies if one.state == "warm"}
        self._links_free_s = {name: self._link_free_s(name) for name in fleet.workers}
        self._free_bytes = {one.name: fleet.free_bytes(one) for one in fleet.workers.values()}
        self._held = {name: {one.variant for one in copies} for name, copies in fleet.by_worker.items()}
        self._of_kind: dict[str, list[Worker]] = {}
        for worker in fleet.workers.values():
            self._of_kind.setdefault(worker.device, []).append(worker)

    def _link_free_s(self, worker: str) -> float:
        """Until what loads there is ready."""
        loading = (one for one in self._fleet.by_worker[worker] if one.state == "loading")
        return max((one.ready_s - self._fleet.now_s for one in loading), default=0.0)

    def _standing(self, function: str) -> dict[tuple[str, str], Copy]:
        """Its copies that answer or will, by their place; those that leave when another is ready are not."""
        seen = self._functions[function]
        found = {
            (one.variant, one.worker): one
            for one in self._fleet.by_function.get(function, ())
            if one.state in ("ready", "loading") and self._fleet.workers[one.worker].state != "leaving"
        }
        for place in list(seen.retiring):
            variant, _, worker = place.rpartition("@")
            copy = found.get((variant, worker))
            if copy is None or copy.state == "ready":
                del seen.retiring[place]
        return found

    def _retiring(self, function: str) -> set[tuple[str, str]]:
        retiring = self._functions[function].retiring.values()
        return {(variant, worker) for places in retiring for variant, worker in places}

    def _book(self, function: str, places: Iterable[tuple[str, str]]) -> None:
        """Its rows' share of the time of the workers on which it will stay, for its neighbours to see."""
        forecast = self._functions[function].forecast
        self._sharing.book(
            function,
            forecast.level if forecast else 0.0,
            min(self._loads[function].goal_s, _ENDLESS_S),
            [self._place(function, one) for one in sorted(places)],
        )

    def _staying(self, function: str) -> set[tuple[str, str]]:
        """Where its copies will be when all that is under way is over."""
        return set(self._copies[function]) - self._retiring(function)

    def _rebook(self, function: str, actions: Iterable[Action]) -> None:
        """Its neighbours are to see what has just been decided: else two of them would both move away."""
        self._book(function, _after(self._staying(function), actions))
        self._given.clear()
        self._standing_as_is.clear()
        self._crowdings.clear()

    # ── whose way its passes are in ──────────────────────────────────────────────────────────────────

    def _place(self, function: str, place: tuple[str, str]) -> Place:
        variant, worker = place
        return Place(worker, *_rate(self._fleet.variants[variant], self._loads[function].goal_s))

    def _in_the_way(self, function: str, actions: Sequence[Action]) -> tuple[float, float]:
        """Other functions' rows that are late in the horizon for what is done, and their price."""
        if all(isinstance(one, WorkerUp) for one in actions):
            return 0.0, 0.0
        places = _after(self._staying(function), actions)
        late = self._sharing.late_beside(function, [self._place(function, one) for one in sorted(places)])
        rows = {name: HORIZON_S * rows_per_s for name, rows_per_s in late.items()}
        return sum(rows.values()), sum(many * self._late_price(name) for name, many in rows.items())

    def _crowding(self, variant: Variant, worker: str) -> float:
        """What late rows cost a second that a copy there would make: its own, and its neighbours'."""
        key = (variant.name, worker)
        if key not in self._crowdings:
            place = self._place(variant.function, key)
            late = self._sharing.late_by_one_more(variant.function, place)
            price = sum(rows_per_s * self._late_price(name) for name, rows_per_s in late.items())
            self._crowdings[key] = round(price, 6)
        return self._crowdings[key]

    # ── what a copy gives and costs ──────────────────────────────────────────────────────────────────

    def _serving(
        self,
        variant: Variant,
        worker: Worker | None,
        goal_s: float,
        from_s: float = 0.0,
        until_s: float = math.inf,
    ) -> Serving:
        """On that worker, beside the others there; None: on a worker that comes for it."""
        if worker is None:
            (rows_per_s, batch_s), blocked = _rate(variant, goal_s), 0.0
        else:
            key = (variant.name, worker.name)
            if key not in self._given:
                self._given[key] = self._beside(variant, worker.name, goal_s)
            rows_per_s, batch_s, blocked = self._given[key]
        return Serving(rows_per_s, batch_s, self._price(variant), from_s, until_s, blocked)

    def _beside(self, variant: Variant, worker: str, goal_s: float) -> tuple[float, float, float]:
        """What a copy gives beside others there, seconds of a batch, and the share that others block."""
        rows_per_s, batch_s = _rate(variant, goal_s)
        left = max(_LEAST_SHARE, 1 - self._sharing.taken(worker, without=variant.function))
        slack_s = min(goal_s, _ENDLESS_S) - batch_s
        return rows_per_s * left, batch_s, self._sharing.blocked(variant.function, worker, slack_s)

    def _price(self, variant: Variant) -> float:
        return self._fleet.copy_price_per_s(variant)

    def _worker_price(self, device: str) -> float:
        """A second of a worker; where nothing has a price, workers have one: else all of them would come."""
        return 1.0 if self._free_of_charge else self._fleet.devices[device].price_per_hour / 3600

    def _load_s(self, variant: Variant, worker: Worker) -> float:
        """Until it is ready there, after what loads there already."""
        takes_s = variant.load_s
        warm = self._warm.get((variant.name, worker.name))
        if warm is not None and variant.warm_load_s is not None:
            takes_s = variant.warm_load_s + max(0.0, warm.ready_s - self._fleet.now_s)
        return takes_s + self._links_free_s[worker.name]

    def _late_price(self, function: str) -> float:
        """P: what one of its late rows costs."""
        return self._least_late_price(function) * self._functions[function].price

    def _least_late_price(self, function: str) -> float:
        """P at first. Where functions share workers a row of one is worth as much as another's."""
        if not self._least_late_prices:
            self._least_late_prices = {
                one.name: self._late_price_alone(choices)
                for one in self._fleet.functions
                if (choices := self._fleet.choices(one))
            }
            if self._sharing.is_shared:
                same = _LATE_TIMES_SHARED * statistics.median(self._least_late_prices.values())
                self._least_late_prices = dict.fromkeys(self._least_late_prices, same)
        return self._least_late_prices.get(function, 0.0)

    def _late_price_alone(self, choices: Sequence[Variant]) -> float:
        prices = [(one, self._price(one) + self._worker_price(one.device)) for one in choices]
        return max(max(_LATE_ROW_S, _LATE_ROW_ROWS / one.rows_per_s) * price for one, price in prices)

    # ── one function ─────────────────────────────────────────────────────────────────────────────────

    def about(self, load: FunctionLoad, seen: _Seen, *, due: bool) -> list[Action]:
        """What is done for it now."""
        choices = self._fleet.choices(load)
        if seen.forecast is None or not choices:
            return []
        copies = self._copies[load.name]
        if not copies and not load.waiting and seen.forecast.level < _NOTHING:
            return []
        shares = self._sharing.is_shared
        if due:
            self._follow_late_rows(load, seen, shares=shares)
        peak = max(one[1] for one in seen.peaks)
        if not load.waiting and peak < _NOTHING and [name for name, _ in copies] == [choices[0].name]:
            return []  # nothing comes, and less cannot be had
        goal_s = min(load.goal_s, _ENDLESS_S)
        late_price = self._late_price(load.name)
        ahead = rates_ahead(seen.forecast)
        # In a hurry what is needed comes first; on shared workers others lack what one has in reserve.
        level = 0.0 if seen.jumped or shares else seen.forecast.at(HORIZON_S)
        worth = _Worth(ahead, load.waiting, goal_s, late_price, late_price / seen.price, peak, level)
        nothing = _Option((), self._as_is(load))
        found = worth.of(nothing, self._reload_s(load, choices))
        best: tuple[float, float, _Option] | None = None
        gain_rows, saving_rows = (
            (_GAINS_ROWS_SHARED, _SAVES_ROWS_SHARED) if shares else (_GAINS_ROWS, _SAVES_ROWS)
        )
        gain = max(_GAINS * worth.least(nothing), gain_rows * late_price / seen.price)
        saving = max(_SAVES * found[0], saving_rows * late_price / seen.price)
        spends = found[0] - worth.least(nothing) >= gain  # else nothing that costs more can be worth it
        for option in self._options(load, choices, spends=spends):
            bound = best[0] if best else found[0]
            least = worth.least(option)
            if least >= bound and not (shares and _takes_away(option.actions)):
                continue
            rows, harm = self._in_the_way(load.name, option.actions) if shares else (0.0, 0.0)
            if least + harm >= bound:
                continue
            value, late = worth.of(option, self._reload_s(load, choices, option), bound - harm)
            if value + harm < bound:
                best = (value + harm, late + rows, option)
        actions = self._done(load.name, found, best, nothing, gain, saving, due=due)
        return actions or (self._insured(load, choices) if due and self._keep_warm else [])

    def _insured(self, load: FunctionLoad, choices: Sequence[Variant]) -> list[Action]:
        """One variant in host memory: the next larger than runs; on CPUs alone, one for the last peak."""
        seen, copies = self._functions[load.name], self._copies[load.name]
        if any(one.state == "loading" for one in copies.values()):
            return []
        running = [self._fleet.variants[name] for name, _ in copies]
        gives = sum(_rate(one, load.goal_s)[0] for one in running)
        peak = max(one[1] for one in seen.peaks)
        able = [one for one in choices if one.device != "cpu" and one.warm_load_s is not None]
        if any(one.device != "cpu" for one in running):
            most = max(one.rows_per_s for one in running)
            wanted = next((one for one in able if one.rows_per_s > most), None)
        elif peak > gives:
            enough = [one for one in able if _rate(one, load.goal_s)[0] >= peak]
            wanted = next(iter(enough or able[-1:]), None)
        else:
            wanted = None
        warm = [one for one in self._fleet.by_function[load.name] if one.state == "warm"]
        actions: list[Action] = [
            Drop(one.variant, one.worker, reason=f"{load.name}: another one would be next, or none")
            for one in warm
            if wanted is None or one.variant != wanted.name
        ]
        if wanted is not None and all(one.variant != wanted.name for one in warm):
            where = [worker for name, worker in copies if self._fleet.variants[name].device == wanted.device]
            places = where or [one.name for one in self._places(wanted, set())]
            if places:
                actions.append(Warm(wanted.name, places[0], reason=f"{load.name}: would be next"))
        return self._take(load.name, actions)

    def _done(
        self,
        function: str,
        found: tuple[float, float],
        best: tuple[float, float, _Option] | None,
        nothing: _Option,
        gain: float,
        saving: float,
        *,
        due: bool,
    ) -> list[Action]:
        """The best option's actions, if it is time for them. gain, saving: what it must be worth at least."""
        seen = self._functions[function]
        gained = found[0] - best[0] if best else 0.0
        fewer_late = best is not None and best[1] < found[1] - 1e-9
        if fewer_late and gained < gain:
            seen.dear = 0
            return []
        saves = best is not None and not fewer_late and gained > saving
        if due:
            seen.saving = seen.saving + 1 if saves else 0
        if best is None or not (fewer_late or saves):
            seen.dear = 0
            return []
        option = best[2]
        if fewer_late:
            before, after = cost_of(nothing.serving)[1], cost_of(option.serving)[1] + option.extra_per_s
            if after > _DEAR * before > 0 and not seen.jumped and seen.dear == 0:
                seen.dear = 1
                return []
        elif seen.saving < (_TIMES_WARM if self._keep_warm else _TIMES):
            return []
        seen.dear = seen.saving = 0
        return self._take(function, option.actions)

    def _take(self, function: str, actions: Iterable[Action]) -> list[Action]:
        """Those that can be done after all that is decided already."""
        wanted, seen = list(actions), self._functions[function]
        if not wanted:
            return []
        allowed, refused = checked(self._fleet, [*self._taken, *wanted])
        if refused:
            return []
        for action in wanted:
            if isinstance(action, Upgrade | Downgrade):
                place = f"{action.variant}@{action.worker}"
                seen.retiring[place] = [list(one) for one in action.instead_of]
            if isinstance(action, WorkerUp):
                self._joining.add(action.device)
        self._taken = list(allowed)
        self._rebook(function, wanted)
        return wanted

    def _follow_late_rows(self, load: FunctionLoad, seen: _Seen, *, shares: bool) -> None:
        """P up, where too many rows were late in the last five minutes and still are; else down.

        Of late rows that are over and done with a higher price brings none back. Where functions share
        workers, rows are late for others' passes, and what one has for a higher price makes others' late.
        """
        now_s, may_be = self._fleet.now_s, _LATE_SHARE_SHARED if shares else _LATE_SHARE
        of_late = next((one for one in seen.late if now_s - one[0] <= _LATE_NOW_S), seen.late[-1])
        many = _many_late(load, seen.late[0], may_be) and _many_late(load, of_late, may_be)
        seen.price = min(_PRICE_MOST, max(1.0, seen.price * (_PRICE_UP if many else _PRICE_DOWN)))

    def _as_is(self, load: FunctionLoad) -> tuple[Serving, ...]:
        """Its copies if nothing is done."""
        if load.name not in self._standing_as_is:
            self._standing_as_is[load.name] = self._without(load, frozenset())
        return self._standing_as_is[load.name]

    def _without(self, load: FunctionLoad, leaving: frozenset[tuple[str, str]]) -> tuple[Serving, ...]:
        """Its other copies if nothing is done: they get ready, and what they replace leaves."""
        now_s = self._fleet.now_s
        seen, copies = self._functions[load.name], self._copies[load.name]
        leaves_s: dict[tuple[str, str], float] = {}
        for place, replaced in seen.retiring.items():
            variant, _, worker = place.rpartition("@")
            new = copies.get((variant, worker))
            if new is None:
                continue  # decided in this very round: nothing leaves before it loads
            for old_variant, old_worker in replaced:
                leaves_s[old_variant, old_worker] = max(0.0, new.ready_s - now_s)
        return tuple(
            self._serving(
                self._fleet.variants[copy.variant],
                self._fleet.workers[copy.worker],
                load.goal_s,
                max(0.0, copy.ready_s - now_s) if copy.state == "loading" else 0.0,
                leaves_s.get(place, math.inf),
            )
            for place, copy in copies.items()
            if place not in leaving
        )

    def _reload_s(
        self, load: FunctionLoad, choices: Sequence[Variant], option: _Option | None = None
    ) -> float:
        """How long it would take to get more again: of the variant that gives most, warm where one is."""
        most = max(choices, key=lambda one: one.rows_per_s)
        warm_s = most.warm_load_s
        kept = option is not None and any(
            isinstance(action, Downgrade | Upgrade | Drop) and action.keep_warm for action in option.actions
        )
        there = any(one.state == "warm" for one in self._fleet.by_function.get(load.name, ()))
        return warm_s if warm_s is not None and (kept or there) else most.load_s

    # ── options ──────────────────────────────────────────────────────────────────────────────────────

    def _options(self, load: FunctionLoad, choices: Sequence[Variant], *, spends: bool) -> Iterable[_Option]:
        """Additions; where nothing of it loads, changes and removals too. spends: with what costs more."""
        copies = self._copies[load.name]
        if spends:
            yield from self._additions(load, choices)
        if any(one.state == "loading" for one in copies.values()):
            return
        yield from self._changes(load, choices, spends=spends)
        yield from self._removals(load)

    def _additions(self, load: FunctionLoad, choices: Sequence[Variant]) -> Iterable[_Option]:
        as_is = self._as_is(load)
        taken = {worker for _, worker in self._copies[load.name]}
        for variant in choices:
            places = self._places(variant, taken)
            for count in range(1, (3 if variant.device == "cpu" else 1) + 1):
                if len(places) < count:
                    break
                more = tuple(
                    self._serving(variant, one, load.goal_s, self._load_s(variant, one))
                    for one in places[:count]
                )
                why = self._why(load)
                actions = tuple(Replicate(variant.name, one.name, reason=why) for one in places[:count])
                yield _Option(actions, as_is + more)
            kind = self._fleet.devices[variant.device]
            of_kind = [one for one in self._fleet.workers.values() if one.device == kind.name]
            going = sum(one.state == "leaving" for one in of_kind)
            if len(of_kind) - going < kind.most and kind.name not in self._joining:
                fresh = self._serving(variant, None, load.goal_s, kind.join_s + variant.load_s)
                price = self._worker_price(kind.name)
                up = WorkerUp(kind.name, reason=self._why(load))
                yield _Option((up,), (*as_is, fresh), price)

    def _changes(self, load: FunctionLoad, choices: Sequence[Variant], *, spends: bool) -> Iterable[_Option]:
        """Another variant instead of all copies, or of one; copies on CPUs instead of others."""
        copies = self._copies[load.name]
        groups = [tuple(copies)] if len(copies) < 2 else [tuple(copies), *self._ones(load)]
        for group in groups:
            if not group:
                continue
            before = {worker for _, worker in group}
            others = {worker for _, worker in copies if worker not in before}
            price = sum(self._price(self._fleet.variants[name]) for name, _ in group)
            for variant in choices:
                if not spends and self._price(variant) >= price:
                    break  # the cheapest come first
                if len(group) == 1 and variant.name == group[0][0]:
                    places = self._places(variant, before | others)  # it moves
                else:
                    same = [
                        self._fleet.workers[name]
                        for name in sorted(before)
                        if self._fits(variant, self._fleet.workers[name])
                    ]
                    places = same or self._places(variant, others)
                most = 3 if variant.device == "cpu" else 1
                for count in range(1, min(most, len(places)) + 1):
                    yield from self._instead(load, group, variant, places[:count])

    def _instead(
        self,
        load: FunctionLoad,
        group: tuple[tuple[str, str], ...],
        variant: Variant,
        places: Sequence[Worker],
    ) -> Iterable[_Option]:
        ready_s = max(self._load_s(variant, one) for one in places)
        staying = self._without(load, frozenset(group))
        leaving = tuple(
            self._serving(
                self._fleet.variants[name], self._fleet.workers[worker], load.goal_s, until_s=ready_s
            )
            for name, worker in group
        )
        coming = tuple(self._serving(variant, one, load.goal_s, ready_s) for one in places)
        before = sum(self._price(self._fleet.variants[name]) for name, _ in group)
        dearer = len(places) * self._price(variant) >= before
        why = self._why(load)
        more = tuple(Replicate(variant.name, one.name, reason=why) for one in places[:-1])
        make = Upgrade if dearer else Downgrade
        for keep_warm in (False, True) if self._keep_warm and not dearer else (False,):
            last = make(variant.name, places[-1].name, group, keep_warm, reason=why)
            waits = tuple(
                Serving(0.0, 0.0, self._fleet.copy_price_per_s(self._fleet.variants[name], "warm"), ready_s)
                for name, _ in group
                if keep_warm
            )
            yield _Option((*more, last), staying + leaving + coming, sum(one.price_per_s for one in waits))

    def _removals(self, load: FunctionLoad) -> Iterable[_Option]:
        """One copy less; where there are more, one copy that is ready is left alone."""
        copies = self._copies[load.name]
        groups = list(self._ones(load)) if len(copies) > 1 else []
        if len(copies) > 2:
            groups += [tuple(one for one in copies if one != kept) for (kept,) in self._ones(load, most=True)]
        for group in groups:
            rest = self._without(load, frozenset(group))
            why = self._why(load)
            yield _Option(tuple(Drop(*place, reason=why) for place in group), rest)

    def _ones(self, load: FunctionLoad, *, most: bool = False) -> Iterable[tuple[tuple[str, str], ...]]:
        """Of each variant that runs one copy, the one that gives least, or most: the others are no better."""
        found: dict[str, tuple[float, tuple[str, str]]] = {}
        for place in self._copies[load.name]:
            variant, worker = place
            serving = self._serving(self._fleet.variants[variant], self._fleet.workers[worker], load.goal_s)
            gives = -serving.rows_per_s if most else serving.rows_per_s
            if variant not in found or gives < found[variant][0]:
                found[variant] = gives, place
        return [(place,) for _, place in found.values()]

    def _places(self, variant: Variant, without: set[str]) -> list[Worker]:
        """Where a copy may go: host memory that holds it first, then where it is least in anybody's way."""
        able = [
            one
            for one in self._of_kind.get(variant.device, ())
            if one.name not in without and self._fits(variant, one)
        ]
        return sorted(
            able,
            key=lambda one: (
                (variant.name, one.name) not in self._warm,
                self._crowding(variant, one.name),
                round(self._sharing.taken(one.name), 3),
                one.name,
            ),
        )

    def _fits(self, variant: Variant, worker: Worker) -> bool:
        return (
            worker.device == variant.device
            and worker.state == "ready"
            and self._free_bytes[worker.name] >= variant.size_bytes
            and variant.name not in self._held[worker.name]
        )

    def _why(self, load: FunctionLoad) -> str:
        if load.name not in self._reasons:
            forecast = self._functions[load.name].forecast
            level = forecast.at(HORIZON_S) if forecast else 0.0
            gives = sum(one.rows_per_s for one in self._as_is(load) if one.until_s > HORIZON_S)
            self._reasons[load.name] = f"{load.name}: {level:.0f} rows/s expected, {gives:.0f} can be had"
        return self._reasons[load.name]

    # ── workers ──────────────────────────────────────────────────────────────────────────────────────

    def about_workers(self, before: Mapping[str, int], *, quiet: bool) -> tuple[list[Action], dict[str, int]]:
        """A worker less, where that has saved five times running; one at a time, and nothing beside it."""
        times: dict[str, int] = {}
        best: tuple[float, Worker] | None = None
        for worker in self._fleet.workers.values():
            saved = self._saved_without(worker)
            if saved <= 0:
                continue
            times[worker.name] = before.get(worker.name, 0) + 1
            if times[worker.name] >= _TIMES and (best is None or saved > best[0]):
                best = (saved, worker)
        if best is None or not quiet:
            return [], times
        down = WorkerDown(best[1].name, reason="the others suffice")
        if checked(self._fleet, [*self._taken, down])[1]:
            return [], times
        return [down], {}

    def _saved_without(self, worker: Worker) -> float:
        """What ending it is worth, over 60 s and 3 % of what it is held against; 0 = it is needed."""
        fleet, kind = self._fleet, self._fleet.devices[worker.device]
        ready = sum(one.state == "ready" for one in self._of_kind[worker.device])
        if worker.state != "ready" or worker.blocked or ready <= kind.least or worker.device in self._joining:
            return 0.0
        if any(one.state == "loading" for one in fleet.by_worker[worker.name]):
            return 0.0
        saved = 2 * HORIZON_S * self._worker_price(worker.device)
        held = saved
        there = (fleet.variants[one.variant].function for one in fleet.by_worker[worker.name])
        for function in dict.fromkeys(name for name in there if name in self._loads):
            copies, load, seen = self._copies[function], self._loads[function], self._functions[function]
            leaving = frozenset(place for place in copies if place[1] == worker.name)
            if not leaving:
                continue
            rest = [one for place, one in copies.items() if place not in leaving | self._retiring(function)]
            if not any(one.state == "ready" for one in rest) or seen.forecast is None:
                return 0.0
            choices = fleet.choices(load)
            late_price = self._late_price(function)
            worth = _Worth(
                rates_ahead(seen.forecast),
                load.waiting,
                min(load.goal_s, _ENDLESS_S),
                late_price,
                late_price / seen.price,
                max(one[1] for one in seen.peaks),
                seen.forecast.at(HORIZON_S),
            )
            as_is = worth.of(_Option((), self._as_is(load)), self._reload_s(load, choices))
            reload_s = kind.join_s + self._reload_s(load, choices)
            without = worth.of(_Option((), self._crowded(load, leaving, worker)), reload_s)
            saved += as_is[0] - without[0]
            held += as_is[0]
        return saved if saved > _SAVES * held else 0.0

    def _crowded(
        self, load: FunctionLoad, leaving: frozenset[tuple[str, str]], worker: Worker
    ) -> tuple[Serving, ...]:
        """Its other copies, with what its neighbours bring along from the worker that leaves."""
        moving = self._sharing.taken(worker.name, without=load.name)
        rest = self._without(load, leaving)
        each = moving / max(1, len(rest))
        return tuple(
            Serving(
                one.rows_per_s * max(_LEAST_SHARE, 1 - each),
                one.batch_s,
                one.price_per_s,
                one.from_s,
                one.until_s,
            )
            for one in rest
        )


def _takes_away(actions: Iterable[Action]) -> bool:
    """Whether a copy leaves: it is then less in the way of its neighbours."""
    return any(isinstance(action, Upgrade | Downgrade | Drop) for action in actions)


def _after(places: Iterable[tuple[str, str]], actions: Iterable[Action]) -> set[tuple[str, str]]:
    """Where a function's copies are once the actions are done."""
    found = set(places)
    for action in actions:
        if isinstance(action, Replicate | Upgrade | Downgrade):
            found.add((action.variant, action.worker))
        if isinstance(action, Upgrade | Downgrade):
            found -= set(action.instead_of)
        if isinstance(action, Drop):
            found.discard((action.variant, action.worker))
    return found


def _rate(variant: Variant, goal_s: float) -> tuple[float, float]:
    """Rows/s of a copy alone, and seconds of the batches that give them: two must fit into the goal."""
    return variant.best_within(min(goal_s, _ENDLESS_S) / 2)


@dataclass(frozen=True)
class _Worth:
    """What options are held against each other by."""

    ahead: RatesAhead
    waiting: int
    goal_s: float
    late_price: float
    least_late_price: float
    peak: float
    level: float

    def least(self, option: _Option) -> float:
        """A bound from below that needs no simulation: what it costs."""
        cost, price_per_s = cost_of(option.serving)
        return cost + HORIZON_S * price_per_s + 2 * HORIZON_S * option.extra_per_s

    def of(self, option: _Option, reload_s: float, most: float = math.inf) -> tuple[float, float]:
        """Its worth, less is better, and the rows expected to be late. most: one above it may be too low."""
        gives = sum(one.rows_per_s for one in option.serving if one.until_s > HORIZON_S)
        again = HORIZON_S / _PEAK_S * max(0.0, self.peak - gives) * reload_s
        jump = max(0.0, _JUMPS * (_JUMPS_TO * self.level - gives) * reload_s - _JUMP_ROWS)
        least = self.least(option) + self.late_price * again + self.least_late_price * jump
        most_late = (most - least) / self.late_price if self.late_price else math.inf
        if most_late <= 0:
            return least, 0.0
        late = late_ahead(option.serving, self.ahead, self.waiting, self.goal_s, most_late)
        return least + self.late_price * late, late
