"""Which model answers a function by wish: a pure decision of goals and of what is known of each candidate.

    wants ─→ candidates_for ─→ candidates ─┐
    a call's goals, what is resident, load ┴→ decide ─→ the candidate, and why

INFaaS (ATC 2021) §3 has the abstraction, §5 the selection: of the variants that meet the goals the cheapest,
those that run before those that would have to be loaded. Here accuracy is never given up, since it does not
come back with the load; time may be, and then the answer says so. Who has lost a file answers nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_worker.tasks import task_named
from server.catalog.functions import ModelVersion
from server.catalog.variants import Variants, base_of
from server.catalog.wants import Wants
from server.errors import BadOption, NoMembers
from server.record import record
from server.wilson import wilson

__all__ = [
    "MOST_CANDIDATES",
    "Decision",
    "Estimate",
    "Goals",
    "HeldOut",
    "Weighed",
    "candidates_for",
    "check_had",
    "decide",
    "held_out_of",
]

MOST_CANDIDATES = 64
_BUSY = 0.9  # of the devices' time: more of it would make a queue that grows


@dataclass(frozen=True, slots=True)
class HeldOut:
    """How often a model is right on rows that have not taught it. rows: None where nobody said how many: then
    what was said of it counts as it stands. measure: what the numbers are; "" = accuracy.
    """

    accuracy: float
    low: float
    high: float
    rows: int | None = None


@record
class Goals:
    """What a call asks of the candidate that answers it. None: nothing.

    cost: of 1,000 rows at the most, as `Estimate` has it · rows: that are to come together within the goal
    """

    min_accuracy: float | None = None
    slo_s: float | None = None
    cost: float | None = None
    rows: int = 1

    def told(self) -> dict[str, Any]:
        """As views show them."""
        told = {
            "min_accuracy": self.min_accuracy,
            "slo_ms": None if self.slo_s is None else round(self.slo_s * 1000, 6),
            "cost": self.cost,
            "rows": self.rows,
        }
        return {name: value for name, value in told.items() if value is not None}

    def __str__(self) -> str:
        """As messages say them; "" where there is none."""
        told = []
        if self.min_accuracy is not None:
            told.append(f"min_accuracy {self.min_accuracy:g}")
        if self.slo_s is not None:
            rows = "" if self.rows == 1 else f" for {self.rows} rows"
            told.append(f"slo_ms {self.slo_s * 1000:g}{rows}")
        if self.cost is not None:
            told.append(f"cost {self.cost:g}")
        return ", ".join(told)


@record
class Estimate:
    """What is known of a candidate now.

    key: of the model version · low: the lower end of its held-out accuracy; None where that is not known ·
    merit: by which the better of two is told where accuracies are not known · batch_s: l̂ of the rows asked ·
    wait_s: until a worker that holds it is free; load_s: until it is loaded, 0 where it is resident · cost:
    of 1,000 rows, in seconds of a device, or where those have prices (is_priced) in their currency · share:
    of the devices' time, if all of the function's rows were its · is_guess: what it takes was never measured:
    who was measured comes first · lost: which of its files is gone and what to do, "" where all are there:
    what a worker still holds of it may leave at any time, and never comes back
    """

    key: str
    low: float | None
    merit: float
    batch_s: float
    cost: float
    wait_s: float = 0.0
    load_s: float = 0.0
    share: float = 0.0
    is_guess: bool = False
    is_priced: bool = False
    lost: str = ""

    @property
    def predicted_s(self) -> float:
        """From when rows come to when they are answered."""
        return self.wait_s + self.load_s + self.batch_s


@record
class Weighed:
    """A candidate as it was weighed. lacks: the goals that it does not keep, in words; () = none."""

    estimate: Estimate
    lacks: tuple[str, ...]

    def told(self) -> dict[str, Any]:
        """As views show it."""
        one = self.estimate
        return {
            "model": one.key,
            "accuracy_low": one.low,
            "predicted_ms": round(one.predicted_s * 1000, 3),
            "cost": round(one.cost, 6),
            "is_resident": one.load_s == 0.0,
            "lacks": list(self.lacks),
        }


@record
class Decision:
    """chosen: the key of the model that answers · is_met: whether it keeps all goals, or is the nearest."""

    goals: Goals
    chosen: str
    is_met: bool
    reason: str
    estimates: Sequence[Estimate]

    @property
    def weighed(self) -> tuple[Weighed, ...]:
        """Each candidate, and what it lacks: in words, which are made for who looks."""
        return tuple(Weighed(each, _lacks(self.goals, each)) for each in self.estimates)


def decide(goals: Goals, estimates: Sequence[Estimate]) -> Decision:
    """Which candidate answers.

    Of those that keep all goals: with a least accuracy the one that costs least, else the most accurate one.
    Where none does, of those that are accurate enough the one that is nearest in time, and in cost of equally
    fast ones. Who has lost a file is none of them. Raises `NoMembers` where none is accurate enough.
    """
    there = _there(estimates)
    accurate = _accurate(goals, there)
    kept = _soon_and_cheap(goals, accurate)
    if kept:
        if goals.min_accuracy is not None:
            chosen = min(kept, key=_by_cost)
            why = f"{'costs least' if chosen.is_priced else 'takes least of a device'}, {_cost(chosen)}"
        else:
            chosen = min(kept, key=_by_merit)
            why = "is the most accurate" if chosen.low is not None else "has the best score"
        asked = str(goals)
        told = f"{len(kept)} of {len(estimates)} keep {asked}" if asked else "no goal is set"
        reason = f"{told}; {chosen.key} {why}" if len(kept) > 1 else f"{chosen.key} alone: {told}"
        return Decision(goals, chosen.key, True, reason + _left_out(estimates, there), estimates)
    if not accurate:
        raise NoMembers(_no_such(goals, estimates))
    chosen = min(accurate, key=_by_time)
    lacks = "; ".join(_lacks(goals, chosen))
    reason = f"degraded: nothing keeps {goals} now; {chosen.key} is nearest, {lacks}"
    return Decision(goals, chosen.key, False, reason + _left_out(estimates, there), estimates)


def check_had(name: str, goals: Goals, estimates: Sequence[Estimate]) -> Decision:
    """The decision on a wish that is new. estimates: of an idle server on which all are resident.

    Raises `NoMembers` with the nearest that can be had where nothing meets it.
    """
    try:
        decision = decide(goals, estimates)
    except NoMembers as exc:
        raise NoMembers(f"function {name}: {exc.message}") from exc
    if not decision.is_met:
        raise NoMembers(f"function {name}: {_no_such(goals, estimates)}")
    return decision


def candidates_for(
    name: str,
    wants: Wants,
    models: Iterable[ModelVersion],
    dataset_of: Callable[[ModelVersion], str | None],
    alike: ModelVersion | None = None,
) -> tuple[ModelVersion, ...]:
    """The models that could answer what function `name` wants: the newest fitting version of each, and the
    variants of that.

    models: that its owner sees · alike: what the `purpose` stands for. Models behind another server are none:
    what they cost and whether they stay the same is not known here. Raises `BadOption` where there is none,
    where they are of several kinds, and for a task whose answers nobody can compare.
    """
    fitting = [
        model
        for model in models
        if not model.endpoint
        and model.parity is None  # it answers no row alone
        and wants.task in (None, model.task)
        and (wants.dataset is None or dataset_of(model) == wants.dataset)
        and (alike is None or _kind(model) == _kind(alike))
    ]
    newest: dict[str, int] = {}
    for model in fitting:
        base = base_of(model.name)
        newest[base] = max(newest.get(base, 0), model.version)
    found = sorted(
        (model for model in fitting if model.version == newest[base_of(model.name)]),
        key=lambda model: model.key,
    )
    if not found:
        raise BadOption(f"function {name}: no model that you see {_asked(wants)}")
    kinds = {_kind(model): model for model in found}
    if len(kinds) > 1:
        some = ", ".join(f"{model.name} ({_described(model)})" for model in list(kinds.values())[:4])
        raise BadOption(
            f"function {name}: models that {_asked(wants, plural=True)} answer different things: {some}; say "
            "which, as 'purpose' a model or function that does it"
        )
    task = task_named(found[0].task)
    if not task.rules:
        raise BadOption(
            f"function {name}: answers of {task.name} by different models do not mean the same, so none can "
            "stand for another; name its model"
        )
    if len(found) > MOST_CANDIDATES:
        raise BadOption(
            f"function {name}: {len(found)} models {_asked(wants, plural=True)}, and {MOST_CANDIDATES} are "
            "weighed at the most; name a 'dataset' or a 'purpose'"
        )
    return tuple(found)


def held_out_of(model: ModelVersion, variants: Variants | None = None) -> HeldOut | None:
    """What is known of how often a model is right; None where nothing is.

    What was measured of it as a variant comes before what its manifest says.
    """
    variant = None if variants is None else variants.named(model.key)
    if variant is not None and variant.held_out is not None:
        told = variant.held_out
        return HeldOut(told.accuracy, told.low, told.high, told.rows)
    if not model.accuracy:
        return None
    rows = (model.score or {}).get("rows")
    if isinstance(rows, bool) or not isinstance(rows, int) or rows < 1:
        return HeldOut(model.accuracy, model.accuracy, model.accuracy)
    low, high = wilson(model.accuracy, rows)
    return HeldOut(model.accuracy, low, high, rows)


def _there(estimates: Sequence[Estimate]) -> Sequence[Estimate]:
    """Those of which all files are there."""
    return [each for each in estimates if not each.lost]


def _left_out(estimates: Sequence[Estimate], there: Sequence[Estimate]) -> str:
    """Who is not asked, and why, behind a reason; "" where nobody is left out."""
    if len(there) == len(estimates):
        return ""
    return "; left out: " + "; ".join(f"{each.key}, {each.lost}" for each in estimates if each.lost)


def _accurate(goals: Goals, estimates: Sequence[Estimate]) -> Sequence[Estimate]:
    least = goals.min_accuracy
    if least is None:
        return estimates
    return [each for each in estimates if each.low is not None and each.low >= least]


def _soon_and_cheap(goals: Goals, estimates: Sequence[Estimate]) -> Sequence[Estimate]:
    slo_s, cost = goals.slo_s, goals.cost
    if slo_s is not None:
        estimates = [
            each
            for each in estimates
            if each.wait_s + each.load_s + each.batch_s <= slo_s and each.share <= _BUSY
        ]
    return estimates if cost is None else [each for each in estimates if each.cost <= cost]


def _lacks(goals: Goals, one: Estimate) -> tuple[str, ...]:
    found = [one.lost] if one.lost else []
    if not _accurate(goals, [one]):
        found.append("nobody has measured it" if one.low is None else f"right in {one.low:.3g} at the least")
    if goals.slo_s is not None:
        if one.predicted_s > goals.slo_s:
            found.append(f"{_ms(one.predicted_s)}{_why_late(one)}")
        elif one.share > _BUSY:
            found.append(f"would take {one.share:.0%} of the devices' time")
    if goals.cost is not None and one.cost > goals.cost:
        found.append(_cost(one))
    return tuple(found)


def _why_late(one: Estimate) -> str:
    if one.load_s:
        return f", of which {_ms(one.load_s)} to load it"
    return f", of which {_ms(one.wait_s)} in line" if one.wait_s > one.batch_s else ""


def _by_cost(one: Estimate) -> tuple[bool, float, float, str]:
    return one.is_guess, one.cost, -one.merit, one.key


def _by_merit(one: Estimate) -> tuple[bool, float, float, str]:
    return one.is_guess, -one.merit, one.cost, one.key


def _by_time(one: Estimate) -> tuple[bool, bool, float, float, str]:
    return one.is_guess, one.share > _BUSY, one.predicted_s, one.cost, one.key


def _no_such(goals: Goals, estimates: Sequence[Estimate]) -> str:
    """Why nothing keeps the goals, and the nearest on each side that can be had."""
    there = _there(estimates)
    left_out = _left_out(estimates, there)
    if not there:
        return f"no model is left to answer{left_out}"
    return _nearest(goals, there) + left_out


def _nearest(goals: Goals, estimates: Sequence[Estimate]) -> str:
    near = []
    if goals.slo_s is not None or goals.cost is not None:
        others = Goals(None, goals.slo_s, goals.cost, goals.rows)
        kept = [each for each in _soon_and_cheap(others, estimates) if each.low is not None]
        if kept:
            best = min(kept, key=_by_merit)
            near.append(f"{best.low:.3g} by {best.key}{_within(goals, is_priced=best.is_priced)}")
    accurate = _accurate(goals, estimates)
    if accurate:
        fastest = min(accurate, key=_by_time)
        cheapest = min(accurate, key=_by_cost)
        if goals.slo_s is not None:
            near.append(f"{_right(goals)}in {_ms(fastest.predicted_s)} by {fastest.key}")
        if goals.cost is not None and (goals.slo_s is None or cheapest is not fastest):
            near.append(f"{_right(goals)}for {_cost(cheapest)} by {cheapest.key}")
    elif known := [each for each in estimates if each.low is not None]:
        best = min(known, key=_by_merit)
        told = f"{best.low:.3g} by {best.key}"
        if not near:
            near.append(told)
        elif not near[0].startswith(told):
            near.append(f"{told} in {_ms(best.predicted_s)} for {_cost(best)}")
    told = (
        f"none of {len(estimates)} models keeps {goals}"
        if len(estimates) > 1
        else (f"{estimates[0].key}, the only model that fits, does not keep {goals}")
    )
    if not near:
        return f"{told}: how often they are right was not measured on held-out rows; say no min_accuracy"
    return f"{told} (accuracy by the lower end of its 95 % interval); the nearest: {'; or '.join(near)}"


def _right(goals: Goals) -> str:
    return "" if goals.min_accuracy is None else f"{goals.min_accuracy:g} "


def _within(goals: Goals, *, is_priced: bool) -> str:
    slo = "" if goals.slo_s is None else f" within {_ms(goals.slo_s)}"
    unit = "" if is_priced else " device seconds"
    return slo if goals.cost is None else f"{slo} for {goals.cost:g}{unit} per 1,000 rows"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms"


def _cost(one: Estimate) -> str:
    return f"{one.cost:.3g}{'' if one.is_priced else ' device seconds'} per 1,000 rows"


def _kind(model: ModelVersion) -> tuple[object, ...]:
    """What models must share to stand for one another."""
    return model.task, model.classes, model.input.form, model.input.columns


def _described(model: ModelVersion) -> str:
    of = f", {len(model.classes)} classes" if model.classes else ""
    return f"{model.task}{of}"


def _asked(wants: Wants, *, plural: bool = False) -> str:
    told = []
    if wants.task is not None:
        told.append(f"{'do' if plural else 'does'} {wants.task}")
    if wants.dataset is not None:
        told.append(f"{'were' if plural else 'was'} trained on the dataset {wants.dataset}")
    if wants.purpose is not None:
        told.append(f"{'do' if plural else 'does'} what {wants.purpose} does")
    return " and ".join(told)
