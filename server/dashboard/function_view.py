"""What the page of a function shows beside a try: pure, from the server's state to values with units."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from server.cache.counts import CacheCounts
from server.catalog.functions import Function, ModelVersion
from server.catalog.selections import Selection
from server.dashboard import figures
from server.dashboard.charts import units
from server.dashboard.charts.lines import Series, line_chart
from server.ensemble.gearing import FollowedPlans
from server.ensemble.selection import TYPICAL_ROWS
from server.observability.stats import FunctionStats
from server.scheduling.terms import Latency

__all__ = [
    "CallerLine",
    "DecisionLine",
    "FunctionView",
    "MemberLine",
    "SizeLine",
    "SubsetLine",
    "VersionLine",
    "callers_of",
    "kept_of",
    "latency_chart",
    "members_of",
    "sizes_of",
    "subsets_of",
    "versions_of",
    "why_of",
]

_SUBSETS = 31  # all of five members


@dataclass(frozen=True, slots=True)
class MemberLine:
    """A member. one_row_s: a batch of one, by l̂; row_s: a row of a batch of `TYPICAL_ROWS`.

    places: of workers that hold it · asks: whether rows are asked of it now, and why
    """

    key: str
    accuracy: float | None
    places: tuple[str, ...]
    one_row_s: float
    row_s: float
    is_asked: bool
    asks: str


@dataclass(frozen=True, slots=True)
class SubsetLine:
    """How often these members together are right on held-out rows, or what their answers are worth."""

    members: tuple[str, ...]
    accuracy: float
    is_all: bool


@dataclass(frozen=True, slots=True)
class VersionLine:
    """A deployment. at_s: Unix time"""

    version: int
    members: tuple[str, ...]
    at_s: float | None
    is_current: bool
    is_served: bool


@dataclass(frozen=True, slots=True)
class CallerLine:
    """Rows that were answered since the server started, by who asked."""

    caller: str
    in_name_of: str  # the user and database that a caller names
    rows: int
    share: float


@dataclass(frozen=True, slots=True)
class SizeLine:
    """Batches of one size since the server started: what they took on average, and what l̂ says."""

    rows: int
    batches: int
    took_s: float
    predicted_s: float


@dataclass(frozen=True, slots=True)
class DecisionLine:
    """Of a function by wish, which model answers calls with some goals, and why. since_s: Unix time."""

    goals: str
    chosen: str
    is_met: bool
    reason: str
    rows: int
    since_s: float


@dataclass(frozen=True, slots=True)
class FunctionView:
    """One function, as it is served now."""

    name: str
    version: int
    task: str
    is_model: bool
    is_ready: bool
    facts: tuple[tuple[str, str], ...]
    classes: tuple[str, ...]
    why: str
    measure: str
    members: tuple[MemberLine, ...]
    subsets: tuple[SubsetLine, ...]
    versions: tuple[VersionLine, ...]
    sizes: tuple[SizeLine, ...]
    callers: tuple[CallerLine, ...]
    drift: tuple[Any, ...]  # of `server.training.drift.DriftOf`
    decisions: tuple[DecisionLine, ...] = ()
    kept: tuple[tuple[str, str], ...] = ()  # of the answer cache, since the server started


def members_of(
    function: Function,
    plans: FollowedPlans | None,
    resident: Mapping[str, Collection[str]],
    latency_of: Callable[[ModelVersion], Latency],
) -> tuple[MemberLine, ...]:
    """resident: worker → keys of the models that it holds."""
    said = _asked(function, plans)
    lines = []
    for place, model in enumerate(function.members):
        latency = latency_of(model)
        rows = min(TYPICAL_ROWS, function.max_batch)
        is_asked, asks = said[place]
        places = tuple(sorted(worker for worker, keys in resident.items() if model.key in keys))
        if not places:
            is_asked, asks = False, "not loaded anywhere yet: the next rows bring it"
        lines.append(
            MemberLine(
                model.key,
                model.accuracy or None,
                places,
                latency(1),
                latency(rows) / rows,
                is_asked,
                asks,
            )
        )
    return tuple(lines)


def _asked(function: Function, plans: FollowedPlans | None) -> list[tuple[bool, str]]:
    """By member: whether the plan of now asks it, and a sentence that says so."""
    if len(function.members) == 1:
        return [(True, "answers alone")]
    if plans is None:
        return [(True, "asked by its stage" if function.pipeline else "asked of every row")] * len(
            function.members
        )
    choices = plans.plans[plans.gear].choices
    first = set(choices[0].ask)
    later = {number for choice in choices for number in choice.ask} - first
    lines = []
    for number, model in enumerate(function.members):
        if model.name in function.left_out:
            lines.append((False, "left out: labels say that it errs"))
        elif number in first:
            lines.append((True, "asked first"))
        elif number in later:
            lines.append((True, "asked where the first are not sure"))
        else:
            lines.append((False, "not asked at this load: its time is worth more elsewhere"))
    return lines


def why_of(function: Function, selection: Selection, fault: str | None) -> str:
    """How the members that answer are chosen now, in a sentence."""
    if fault:
        return f"Its own policy was put aside, and `value` answers: {fault}"
    if selection.cascade is not None:
        return _cascade_told(selection.cascade)
    if function.pipeline is not None:
        return "Rows go from stage to stage."
    if len(function.members) == 1:
        return "One model answers."
    if selection.gear is None:
        return "Every row is asked of all members."
    gears = selection.gears or 1
    if gears == 1:
        return "It follows the only plan that is worth its time."
    level = "the richest" if selection.gear == 0 else "the poorest" if selection.gear == gears - 1 else "one"
    load = "the load leaves room" if selection.gear == 0 else "the load leaves no room for a richer one"
    return f"It follows plan {selection.gear + 1} of {gears}, {level}: {load}."


def _cascade_told(told: Mapping[str, Any]) -> str:
    """What came of the proxy that was asked for."""
    if not told["is_used"]:
        return f"Every row is asked of the full function. No proxy is used: {told['reason']}."
    if told.get("kept_off"):
        why = f"Its proxy is kept off: {told['kept_off']}."
        return f"Every row is asked of the full function. {why}"
    answered = told.get("answered_share")
    so_far = "" if answered is None else f", {answered:.1%} of the rows since the server started"
    saved = told.get("saved_share")
    saves = "" if saved is None else f" It saves {saved:.0%} of the device's time."
    return (
        f"{told['proxy']} is asked first, and answers where it is sure{so_far};"
        " the others go to the full function. "
        f"{told['agreement']:.1%} of rows are to be answered as by that: {told['agrees']:.1%} of "
        f"{told['proof_rows']:,} held-out rows were, {told['low']:.1%} at the least.{saves}"
    )


def subsets_of(function: Function) -> tuple[SubsetLine, ...]:
    """The best first; not all of many."""
    names = {model.key: model.name for model in function.members}
    lines = [
        SubsetLine(
            tuple(names[model.key] for model in function.members if model.key in subset),
            accuracy,
            len(subset) == len(function.members),
        )
        for subset, accuracy in function.held_out.items()
        if subset
    ]
    lines.sort(key=lambda line: (-line.accuracy, len(line.members)))
    if len(lines) > _SUBSETS:
        lines = [line for place, line in enumerate(lines) if place < _SUBSETS or line.is_all]
    return tuple(lines)


def versions_of(
    deployed: Sequence[tuple[int, Sequence[str], float | None]], served: Sequence[Function]
) -> tuple[VersionLine, ...]:
    """deployed: (version, members, Unix time), the newest first."""
    numbers = {each.version for each in served}
    current = served[-1].version
    return tuple(
        VersionLine(version, tuple(members), at_s, version == current, version in numbers)
        for version, members, at_s in deployed
    )


def sizes_of(
    function: Function,
    stats: FunctionStats,
    latency_of: Callable[[ModelVersion], Latency],
    saved_s: Callable[[int], float],
) -> tuple[SizeLine, ...]:
    """saved_s: of a batch of so many rows, what each member after the first takes less than alone."""
    lines = []
    for rows, by_size in sorted(stats.by_size.items()):
        batches = by_size.forward.count
        if not rows or not batches:
            continue
        took_s = (by_size.forward.seconds + by_size.decode.seconds) / batches
        alone_s = [latency_of(model)(rows) for model in function.members]
        predicted_s = max(max(alone_s), sum(alone_s) - saved_s(rows) * (len(alone_s) - 1))
        lines.append(SizeLine(rows, batches, took_s, predicted_s))
    return tuple(lines)


def latency_chart(sizes: Sequence[SizeLine]) -> Markup | None:
    """What batches took, by their size, beside what l̂ says; None of one size, which is no line."""
    if len(sizes) < 2:
        return None
    took = [(float(line.rows), 1000 * line.took_s) for line in sizes]
    predicted = [(float(line.rows), 1000 * line.predicted_s) for line in sizes]
    series = [Series("took", took, is_strong=True), Series("predicted (l̂)", predicted)]
    return line_chart("Time of a batch, on average", series, units.MILLISECONDS, x_axis="rows")


def kept_of(cache: CacheCounts) -> tuple[tuple[str, str], ...]:
    """What the answer cache did for a version; nothing where no row of it asked, and nothing is kept."""
    if not cache.asked and not cache.entries:
        return ()

    def rows(counted: int) -> str:
        share = f" ({figures.percent(counted / cache.asked)})" if cache.asked else ""
        return f"{figures.count(counted)} {'row' if counted == 1 else 'rows'}{share}"

    facts = [
        ("answered before", rows(cache.hits)),
        ("came with an equal one", rows(cache.coalesced)),
        ("computed", rows(cache.misses)),
        ("kept now", f"{figures.count(cache.entries)} answers, {figures.byte_size(cache.nbytes)}"),
    ]
    if cache.evictions:
        facts.append(("left for want of room", f"{figures.count(cache.evictions)} answers"))
    return tuple(facts)


def callers_of(stats: FunctionStats, *, only: str | None = None) -> tuple[CallerLine, ...]:
    """The busiest first. only: who may see nobody else."""
    total = sum(stats.callers.values()) or 1
    return tuple(
        CallerLine(_named(caller), in_name_of, rows, rows / total)
        for (caller, in_name_of), rows in stats.callers.most_common()
        if only is None or caller == only
    )


def _named(caller: str) -> str:
    """Who it is: a token, or, where the server has none, whoever is at an address."""
    token, _, address = caller.partition("@")
    return caller if token or not address else f"without a token, from {address}"
