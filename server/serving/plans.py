"""The plans that functions follow: which members a row is asked of, fitted anew when latencies have moved.

A plan rests on what a row costs on each member, by l̂. It is fitted in a thread, and again when a cost has
moved by more than a fifth; until the first is there, rows go to all members. Runs on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from server.catalog.functions import Form, Function
from server.ensemble.evidence import EvidenceStates
from server.ensemble.policies.by_name import selection_policy
from server.ensemble.selection import Ensemble, EnsembleMember, SelectionPolicy
from server.ensemble.subset_answers import by_fit
from server.scheduling.terms import Latency, LatencyByKind
from server.serving.scheduler_adapter import LatencyOf
from server.supervision import Tasks

__all__ = ["Plans", "ensemble_of"]

log = logging.getLogger("ml_udf.server.plans")

_MOVED = 0.2  # of what a row costs on a member: then the plans are fitted anew
_AT_MOST_EVERY_S = 3.0  # fitting six members takes 75 ms of a thread

Follow = Callable[[Function, Form, Ensemble, SelectionPolicy], None]


@dataclass(slots=True)
class _Followed:
    """By which costs a function's plans were last fitted."""

    costs_s: tuple[float, ...] = ()
    looked_s: float = 0.0
    task: asyncio.Task[None] | None = None


class Plans:
    """`follow` is told of each plan that is ready, for rows of one form of a function."""

    def __init__(self, latency_of: LatencyOf, follow: Follow, tasks: Tasks) -> None:
        self._latency_of = latency_of
        self._tasks = tasks
        self._follow = follow
        self._followed: dict[tuple[str, Form], _Followed] = {}

    def look(self, now_s: float, function: Function, form: Form, device: str) -> None:
        """Fit plans for rows of that form on that kind of device, if there are none that hold."""
        followed = self._followed.setdefault((function.key, form), _Followed())
        if followed.task is not None or (followed.costs_s and now_s - followed.looked_s < _AT_MOST_EVERY_S):
            return
        followed.looked_s = now_s
        ensemble = ensemble_of(function, self._latency_of, device, form)
        costs_s = tuple(member.cost_s for member in ensemble.members)
        if followed.costs_s and not _has_moved(followed.costs_s, costs_s):
            return
        followed.costs_s = costs_s
        work = self._fit(followed, function, form, ensemble)
        followed.task = self._tasks.once("plans", work, f"plans of {function.key}")

    def forget(self, function: Function) -> None:
        """It is served no longer."""
        for key in [key for key in self._followed if key[0] == function.key]:
            del self._followed[key]

    async def _fit(self, followed: _Followed, function: Function, form: Form, ensemble: Ensemble) -> None:
        try:  # whatever comes, rows go on as they went
            policy = await asyncio.to_thread(selection_policy, str(function.select), ensemble)
            if self._followed.get((function.key, form)) is followed:
                self._follow(function, form, ensemble, policy)
                log.info("plans fitted function=%s form=%s policy=%s", function.name, form, policy.name)
        finally:
            followed.task = None


def ensemble_of(function: Function, latency_of: LatencyOf, device: str, form: Form) -> Ensemble:
    """What a selection policy has to know of a function. Raises ValueError for one without evidence.

    All its workers count as one device with several at work: where members live apart, that is the mean.
    """
    fit = function.rule.fit
    if fit is None or fit.evidence is None:
        raise ValueError(f"nothing is known of what subsets of {function.name} answer")
    evidence: EvidenceStates = fit.evidence
    members = []
    for model in function.members:
        latency = latency_of(model)
        on_kind: Latency = latency.on(device, form) if isinstance(latency, LatencyByKind) else latency
        most = max(2, function.max_batch)
        one_s, most_s = on_kind(1), on_kind(most)
        per_row_s = max((most_s - one_s) / (most - 1), 1e-9)
        members.append(EnsembleMember(model.key, model.accuracy, max(one_s - per_row_s, 0.0), per_row_s))
    return Ensemble(tuple(members), evidence, by_fit(fit), function.actor)


def _has_moved(before_s: Sequence[float], now_s: Sequence[float]) -> bool:
    return any(abs(now - before) > _MOVED * before for before, now in zip(before_s, now_s, strict=True))
