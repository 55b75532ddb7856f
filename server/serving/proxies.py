"""Proxies: whether a cheap model may answer in place of a function, found out before it is deployed.

    held-out rows ─→ the function's models and the proxy, as they serve ─→ server/ensemble/proxy.py

What each model says is asked of the running server, in the bulk class, of the models under their own names:
so what is compared is what will answer, whatever runs it. No labels are read. Runs on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_worker.wire.protocol import Answer, Column, MemberAnswer
from server.catalog.cascade_spec import CascadeAsked
from server.catalog.catalog import Catalog
from server.catalog.functions import Form, Function, ModelVersion
from server.catalog.selections import row_s
from server.ensemble.answer import AnswerRule
from server.ensemble.proxy import OTHERWISE, ProxyFit, ProxyRefused, fit_proxy, promised_share
from server.errors import BadOption
from server.scheduling.terms import Latency
from server.serving.calls import Call, Reply
from server.serving.dispatcher import Dispatcher

__all__ = ["HeldOutRows", "Proxies", "RowsFor"]

log = logging.getLogger("ml_udf.server.proxies")

_AT_A_TIME = 1_000  # rows

LatencyOfRows = Callable[[ModelVersion, Form], Latency]


@dataclass(frozen=True, slots=True)
class HeldOutRows:
    """Rows that have taught none of the models. groups: [rows], of equal numbers they are one observation."""

    form: Form
    rows: Sequence[bytes]
    groups: NDArray[np.int64]


RowsFor = Callable[[Sequence[ModelVersion]], Awaitable[HeldOutRows]]  # of models that will answer


class Proxies:
    """`latency_of(model, form)`: l̂ of rows of that form."""

    def __init__(self, dispatcher: Dispatcher, catalog: Catalog, latency_of: LatencyOfRows) -> None:
        self._dispatcher = dispatcher
        self._catalog = catalog
        self._latency_of = latency_of

    async def find(
        self,
        draft: Function,
        asked: CascadeAsked,
        proxy: ModelVersion | None,
        rows: HeldOutRows,
    ) -> tuple[ModelVersion, ProxyFit | ProxyRefused]:
        """Whether `proxy`, or the best of the function's own models, keeps the agreement asked for.

        draft: the function without it; all models are loaded. Raises `BadOption` where nothing can be found
        out, and as calls do.
        """
        if rows.form not in draft.forms:
            raise BadOption(
                f"function {draft.name}: its cascade is to be shown by rows of form {rows.form}, and it "
                f"takes {' or '.join(draft.forms)}"
            )
        models = draft.members if proxy is None or proxy in draft.members else (*draft.members, proxy)
        told = {model.key: await self._told(model, rows) for model in models}
        answers, fine = _full_answers(draft, [told[model.key] for model in draft.members])
        if not fine.any():
            raise BadOption(
                f"function {draft.name}: its models have an answer to none of {len(rows.rows)} held-out "
                f"rows: {next(iter(told[draft.members[0].key].errors.values()), 'no row')}"
            )
        scores = {model.key: _scores_of(told[model.key], len(draft.classes))[fine] for model in models}
        groups, truth = rows.groups[fine], answers[fine]
        least = draft.min_confidence

        def found() -> tuple[ModelVersion, ProxyFit | ProxyRefused]:
            chosen = proxy
            if chosen is None:
                chosen = max(
                    draft.members,
                    key=lambda model: (
                        promised_share(scores[model.key], truth, asked.agreement, groups=groups, least=least)
                        * self._saved_s(draft, model)
                    ),
                )
            names = [model.name for model in draft.members]
            of = scores[chosen.key]
            return chosen, fit_proxy(
                chosen.name, names, of, truth, asked.agreement, groups=groups, least=least
            )

        model, fit = await asyncio.to_thread(found)
        said = fit.reason if isinstance(fit, ProxyRefused) else f"share={fit.levels[0].share:.3f}"
        log.info("proxy %s function=%s agreement=%g: %s", model.key, draft.name, asked.agreement, said)
        return model, fit

    def _saved_s(self, draft: Function, proxy: ModelVersion) -> float:
        """What a row saves that a member of the function answers for all."""
        return sum(self._row_s(draft, model) for model in draft.members if model != proxy)

    def _row_s(self, draft: Function, model: ModelVersion) -> float:
        return row_s(draft, model, lambda each: self._latency_of(each, draft.form))

    async def _told(self, model: ModelVersion, rows: HeldOutRows) -> _Told:
        """What a model says of all rows."""
        function = next(
            each for each in self._catalog.versions(model.name) if each.bare and each.version == model.version
        )
        told = _Told(model.key, {}, {})
        for first in range(0, len(rows.rows), _AT_A_TIME):
            part = list(rows.rows[first : first + _AT_A_TIME])
            call = Call(
                function,
                rows.form,
                part,
                sum(map(len, part)),
                outputs=("label", "confidence", "scores"),
                row_class="bulk",
                is_traffic=False,
            )
            pending = self._dispatcher.begin(call)
            try:
                reply = await pending.future
            finally:
                self._dispatcher.end(pending)
            told.take(reply, first, len(rows.rows))
        return told


@dataclass(slots=True)
class _Told:
    """What one model says of rows; by row, why it says nothing."""

    key: str
    columns: dict[str, Column]
    errors: dict[int, str]

    def take(self, reply: Reply, first: int, total: int) -> None:
        for name, column in reply.columns.items():
            if name not in self.columns:
                self.columns[name] = column.empty(total)
            self.columns[name].put(first, column, 0, reply.rows)
        self.errors.update((first + row, error.message) for row, error in reply.errors.items())


def _full_answers(draft: Function, told: Sequence[_Told]) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """By row, the place of the function's answer among its classes; and whether all its models had one."""
    rule: AnswerRule = draft.rule
    members = [MemberAnswer(each.key, list(each.columns.values())) for each in told]
    found = rule.answer(Answer(0, members, []))
    places = {label: place for place, label in enumerate(draft.classes)}
    labels: Sequence[Any] = found.columns[draft.task.value.name].values
    answers = np.array([places.get(label, OTHERWISE) for label in labels], np.intp)
    answers[[error.index for error in found.errors]] = OTHERWISE
    answers[list(found.defaulted)] = OTHERWISE
    fine = np.ones(len(answers), np.bool_)
    for each in told:
        fine[list(each.errors)] = False
    return answers, fine


def _scores_of(told: _Told, classes: int) -> NDArray[np.float64]:
    """[rows, classes], not a number where there is no answer."""
    data: Any = told.columns["scores"].data
    scores = np.frombuffer(data, "<f4").reshape(-1, classes).astype(np.float64)
    scores[list(told.errors)] = np.nan
    return scores
