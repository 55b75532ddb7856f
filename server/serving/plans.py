"""The plans that functions follow: which members a row is asked of, fitted anew when latencies have moved.

A plan rests on where the members live, and on what a row costs there, by l̂. It is fitted in a thread, and
again when a cost has moved to stay or the members live otherwise; until the first is there, rows go to all
members. Runs on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from server.catalog.functions import Form, Function
from server.ensemble.costs import CostWatch
from server.ensemble.places import MemberPlace, places_of
from server.ensemble.policies.by_name import selection_policy
from server.ensemble.policies.guarded import SelectionFault
from server.ensemble.policies.proxied import Proxied
from server.ensemble.selection import Ensemble, EnsembleMember, SelectionPolicy, line_through
from server.ensemble.subset_answers import by_fit
from server.scheduling.terms import Latency, LatencyByKind
from server.serving.scheduler_adapter import LatencyOf
from server.supervision import Tasks

__all__ = ["Plans", "ensemble_of"]

log = logging.getLogger("ml_udf.server.plans")

_AT_MOST_EVERY_S = 3.0  # fitting six members takes 0.4 s of a thread
_PATIENCE_S = 10.0  # for plans that are being fitted

Faulted = Callable[[Function, SelectionFault], None]
Follow = Callable[[Function, Form, Ensemble, SelectionPolicy], None]
Workers = Callable[[], Iterable[tuple[Collection[str], str]]]  # what each holds, and its kind
Places = tuple[MemberPlace | None, ...]


@dataclass(slots=True)
class _Followed:
    """By what a function's plans were last fitted."""

    costs: CostWatch | None = None
    is_guess: bool = False  # of some cost there was no measurement yet
    places: Places = ()
    policy: SelectionPolicy | None = None
    looked_s: float = -math.inf
    task: asyncio.Task[None] | None = None


class Plans:
    """`follow` is told of each plan that is ready, for rows of one form of a function.

    `faulted` is told, on the event loop, of a user's own policy that was put aside for `value`.
    """

    def __init__(
        self, latency_of: LatencyOf, follow: Follow, tasks: Tasks, workers: Workers, faulted: Faulted
    ) -> None:
        self._latency_of = latency_of
        self._tasks = tasks
        self._follow = follow
        self._workers = workers
        self._faulted = faulted
        self._followed: dict[tuple[str, Form], _Followed] = {}

    def look(self, now_s: float, function: Function, form: Form) -> None:
        """Fit plans for rows of that form, if there are none that hold.

        The first ones once each member is somewhere; later ones without those that are nowhere.
        """
        followed = self._followed.setdefault((function.key, form), _Followed())
        is_new, is_soon = followed.costs is None, now_s - followed.looked_s < _AT_MOST_EVERY_S
        if followed.task is not None or (is_soon and all(followed.places)):
            return
        places = places_of([model.key for model in function.asked], self._workers())
        if not all(places) and (is_new or is_soon or not any(places)):
            return
        if is_soon and (is_new or places == followed.places):
            return
        followed.looked_s = now_s
        ensemble = ensemble_of(function, self._latency_of, places, form)
        costs_s = [member.cost_s for member in ensemble.members]
        if followed.costs is None or places != followed.places:
            followed.costs = CostWatch(costs_s)
        elif followed.costs.has_moved(costs_s, at_once=followed.is_guess):
            followed.costs.fitted()
            ensemble = _costing(ensemble, followed.costs.costs_s)
        else:
            return
        followed.places = places
        followed.is_guess = not all(self._is_known(function, places, form))
        work = self._fit(followed, function, form, ensemble)
        followed.task = self._tasks.once("plans", work, f"plans of {function.key}")

    def forget(self, function: Function) -> None:
        """It is served no longer."""
        for key in [key for key in self._followed if key[0] == function.key]:
            del self._followed[key]

    async def policy_of(self, function: Function) -> SelectionPolicy | None:
        """The policy that the function follows, when it is made; None where rows go to all members."""
        for followed in [followed for key, followed in self._followed.items() if key[0] == function.key]:
            if followed.policy is None and followed.task is not None:
                await asyncio.wait([followed.task], timeout=_PATIENCE_S)
            if followed.policy is not None:
                return followed.policy
        return None

    def _is_known(self, function: Function, places: Places, form: Form) -> Iterable[bool]:
        for model, place in zip(function.asked, places, strict=True):
            for each in _latencies(self._latency_of(model), place, form):
                yield bool(getattr(each, "is_known", True))

    async def _fit(self, followed: _Followed, function: Function, form: Form, ensemble: Ensemble) -> None:
        try:  # whatever comes, rows go on as they went
            loop = asyncio.get_running_loop()

            def tell(fault: SelectionFault) -> None:
                loop.call_soon_threadsafe(self._faulted, function, fault)

            try:
                policy = await asyncio.to_thread(_policy_of, function, ensemble, tell)
            except ValueError as error:  # it is for other devices, say
                self._faulted(function, SelectionFault(str(function.select), "make", error))
                policy = await asyncio.to_thread(selection_policy, "value", ensemble)
            if self._followed.get((function.key, form)) is followed:
                try:
                    self._follow(function, form, ensemble, policy)
                except ValueError:  # rows wait by evidence that there was before: soon they do not
                    followed.costs = None
                    raise
                followed.policy = policy
                log.info(
                    "plans fitted function=%s form=%s policy=%s devices=%d",
                    function.name,
                    form,
                    policy.name,
                    ensemble.devices,
                )
        finally:
            followed.task = None


def ensemble_of(
    function: Function, latency_of: LatencyOf, places: Sequence[MemberPlace | None], form: Form
) -> Ensemble:
    """What a selection policy has to know of a function. Raises ValueError for one without evidence.

    places: of its members, in their order.
    """
    evidence, fit = function.evidence, function.rule.fit
    if evidence is None:
        raise ValueError(f"nothing is known of what subsets of {function.name} answer")
    most, left_out = max(2, function.max_batch), function.left_out
    members = []
    for model, place in zip(function.asked, places, strict=True):
        latencies = _latencies(latency_of(model), place, form)
        members.append(
            EnsembleMember(
                model.key,
                model.accuracy,
                *line_through(partial(_at_work, latencies), most),
                device=0 if place is None else place.device,
                is_held=place is not None,
                is_broken=model.name in left_out,
            )
        )
    combination = None if fit is None or function.proxy is not None else by_fit(fit)
    return Ensemble(tuple(members), evidence, combination, function.actor)


def _policy_of(
    function: Function, ensemble: Ensemble, faulted: Callable[[SelectionFault], None]
) -> SelectionPolicy:
    if function.proxy is not None:
        return Proxied(ensemble, function.proxy.fit, function.proxy.place)
    return selection_policy(str(function.select), ensemble, faulted)


def _costing(ensemble: Ensemble, costs_s: Sequence[float]) -> Ensemble:
    """The ensemble, if a row costs so much on each member."""
    members = []
    for member, cost_s in zip(ensemble.members, costs_s, strict=True):
        times = cost_s / member.cost_s
        fixed_s, per_row_s = times * member.fixed_s, times * member.per_row_s
        members.append(replace(member, fixed_s=fixed_s, per_row_s=per_row_s))
    return replace(ensemble, members=tuple(members))


def _latencies(latency: Latency, place: MemberPlace | None, form: Form) -> list[Latency]:
    """A member's l̂ on each kind of worker that holds it."""
    if not isinstance(latency, LatencyByKind) or place is None:
        return [latency]
    return [latency.on(kind, form) for kind in place.kinds]


def _at_work(latencies: Sequence[Latency], rows: int) -> float:
    """Of a batch, where workers of several kinds share the work: each takes as much as it can."""
    return len(latencies) / sum(1 / latency(rows) for latency in latencies)
