"""What is said of how a function's members are selected now: its plan, its price, what is expected of it.

Pure: from a function, the plans that its rows follow and l̂ to numbers with units. Pages, views and metrics
show them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from server.catalog.functions import Form, Function, ModelVersion
from server.ensemble.fit import ACCURACY
from server.ensemble.gearing import FollowedPlans
from server.ensemble.plan import Plan
from server.ensemble.selection import TYPICAL_ROWS
from server.scheduling.terms import Latency

__all__ = ["Selection", "Selections", "row_s", "selection_of"]


@dataclass(frozen=True, slots=True)
class Selection:
    """policy: `select` of the function, `static` where that is a list of names.

    gear: of so many `gears`, 0 the richest · price_per_device_second: right answers that a second of a device
    has to bring, by the present plan · expected_accuracy: of rows that are not cut short, by held-out rows,
    or by labelled ones since the fit was made anew; where answers are no classes, what they are worth by the
    `measure`, 1 at best (`ensemble/worths.py`), which else is None · device_seconds_a_row: in expectation, by
    l̂ · cascade: what was asked of a proxy and what came of it, and the share of rows that it has answered
    since the server started. None: there is no plan, or it is not known.
    """

    policy: str
    gear: int | None = None
    gears: int | None = None
    price_per_device_second: float | None = None
    expected_accuracy: float | None = None
    device_seconds_a_row: float | None = None
    measure: str | None = None
    cascade: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """As the routes say it."""
        told = asdict(self)
        return {
            name: value
            for name, value in told.items()
            if value is not None or name not in ("measure", "cascade")
        }


class Followed(Protocol):
    """Who knows what is served, and by which plans."""

    def served(self) -> Collection[Function]:
        """Every version that is served."""
        ...

    def followed(self, function: Function, form: Form) -> FollowedPlans | None:
        """The plans that its rows follow; None where they follow none."""
        ...


class Selections:
    """Of all functions. `latency_of(model, form)`: l̂ of rows of that form."""

    def __init__(
        self,
        followed: Followed,
        latency_of: Callable[[ModelVersion, Form], Latency],
        by_proxy: Callable[[Function], tuple[int, int]] = lambda function: (0, 0),
    ) -> None:
        """by_proxy: rows that were answered, and those of them by the proxy alone."""
        self._followed = followed
        self._latency_of = latency_of
        self._by_proxy = by_proxy

    def of(self, function: Function) -> Selection:
        """How the members of one are selected now."""
        form = function.form
        plans = self._followed.followed(function, form)
        found = selection_of(function, plans, lambda model: self._latency_of(model, form))
        if function.cascade is None:
            return found
        rows, by_proxy = self._by_proxy(function)
        share = by_proxy / rows if rows else None
        told = {**function.cascade, "answered_rows": rows, "answered_share": share}
        told |= _saving(function, plans, lambda model: self._latency_of(model, form))
        return replace(found, cascade=told)

    def all(self) -> Mapping[tuple[str, int], Selection]:
        """The same of all that are served, by (function, version)."""
        return {(each.name, each.version): self.of(each) for each in self._followed.served()}


def selection_of(
    function: Function, followed: FollowedPlans | None, latency_of: Callable[[ModelVersion], Latency]
) -> Selection:
    """followed: by its rows; None where they go to all members."""
    policy = function.select if isinstance(function.select, str) else "static"
    if followed is not None:
        plan = followed.plans[followed.gear]
        return Selection(
            policy,
            followed.gear,
            len(followed.plans),
            max(plan.prices, default=None),
            _expected(function, plan),
            plan.device_s,
            _measure(function),
        )
    expected = function.full_accuracy
    taken_s = sum(row_s(function, model, latency_of) for model in function.members)
    return Selection(
        policy, expected_accuracy=expected, device_seconds_a_row=taken_s, measure=_measure(function)
    )


def _saving(
    function: Function, followed: FollowedPlans | None, latency_of: Callable[[ModelVersion], Latency]
) -> dict[str, Any]:
    """What a proxy saves of the device's time by l̂ now, and why it is kept off where that is nothing."""
    proxy = function.proxy
    if proxy is None:
        return {}
    costs_s = {model.key: row_s(function, model, latency_of) for model in function.asked}
    full_s = sum(costs_s[model.key] for model in function.members)
    rest_s = sum(costs_s[model.key] for model in function.members if model != proxy.model)
    own_s, share = costs_s[proxy.model.key], proxy.fit.levels[0].share
    saved = 1 - (own_s + (1 - share) * rest_s) / full_s
    is_asked = followed is None or proxy.place.is_asked_first(followed.plans[followed.gear])
    if proxy.model.name in function.left_out:
        kept_off = f"{proxy.model.name} was found broken, and is asked for labels alone"
    else:
        kept_off = (
            f"{proxy.model.name} takes {1000 * own_s:.3g} ms of a row and leaves {1 - share:.1%} of the rows "
            f"to what takes {1000 * rest_s:.3g} ms: the full function's {1000 * full_s:.3g} ms are no more"
        )
    return {"saved_share": round(saved, 4), "kept_off": None if is_asked else kept_off}


def _measure(function: Function) -> str | None:
    """Of answers that are no classes, by what their worth was measured; else None."""
    fit = function.rule.fit
    return None if fit is None or fit.measure == ACCURACY or function.combine != fit.rule else fit.measure


def _expected(function: Function, plan: Plan) -> float | None:
    """How often a plan is right: at the least, where a proxy answers; where it was not judged row by row, no
    more often than the best members together.

    A plan reckons as if rows of one state of evidence were alike. Those that it goes on asking are harder
    than the others, so by itself it promises more, and most after a refit on few rows.
    """
    if function.proxy is not None:  # of a plan of its it is how often the full function agrees
        full = function.full_accuracy
        return None if full is None else max(0.0, full - (1 - plan.accuracy))
    fit = function.rule.fit
    if fit is None or fit.evidence is None or fit.evidence.judged is not None:
        return plan.accuracy
    evidence = fit.evidence
    return min(plan.accuracy, max(evidence.accuracy(subset) for subset in evidence.subsets))


def row_s(function: Function, model: ModelVersion, latency_of: Callable[[ModelVersion], Latency]) -> float:
    """Seconds of a device that a member takes for a row of a batch of usual size, by l̂."""
    rows = min(TYPICAL_ROWS, function.max_batch)
    return latency_of(model)(rows) / rows
