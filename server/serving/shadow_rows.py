"""Rows that all members are asked though their plan would not: so that it is seen how often members agree.

    answered   a small share of the rows that follow plans is put aside
    always     while nothing waits, all members are asked of some of these, as bulk; who named which class is
               told to `LearnedState.agreed`

Nobody waits for them: they are few, are dropped where there is no idle moment, and are gone with the server.
Runs on the event loop. Knows neither routes nor tables.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from random import Random

import numpy as np

from server.catalog.functions import Form, Function
from server.errors import ServiceError
from server.observability.metrics import Metrics
from server.serving.calls import Call, Reply
from server.serving.dispatcher import Dispatcher
from server.serving.learned_state import LearnedState
from server.serving.prediction_ids import told_of
from server.supervision import Tasks

__all__ = ["ShadowRows"]

_EVERY_S = 0.5
_AT_A_TIME = 16  # rows
_MOST_ROWS, _MOST_BYTES = 256, 8 << 20  # put aside, of all functions
_PATIENCE_S = 10.0


class ShadowRows:
    """share: of the rows that follow plans; 0 for none."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        learned_state: LearnedState,
        metrics: Metrics,
        tasks: Tasks | None = None,
        *,
        share: float = 0.0,
        every_s: float = _EVERY_S,
    ) -> None:
        self._dispatcher = dispatcher
        self._learned_state = learned_state
        self._metrics = metrics
        self._tasks = tasks or Tasks()
        self._share = share
        self._every_s = every_s
        self._random = Random(0)  # which rows: any are as good
        self._due: dict[str, float] = {}  # function's key → rows to put aside, the next one in part
        # function, form, the folders below which the caller's paths must lie, row
        self._aside: deque[tuple[Function, Form, tuple[str, ...] | None, bytes]] = deque()
        self._nbytes = 0

    def start(self) -> None:
        """Ask from now on."""
        if self._share > 0:
            self._tasks.always("shadow rows", self._ask_always)

    async def close(self) -> None:
        """Stop."""
        await self._tasks.close()

    def answered(self, call: Call) -> None:
        """A call has been answered: some of its rows may be put aside."""
        function = call.function
        if not self._share or call.members is not None or not function.follows_plans or not function.learns:
            return
        if function.fit is None or not function.fit.agreement:
            return
        due = self._due.get(function.key, 0.0) + self._share * len(call.rows)
        self._due[function.key] = due % 1
        for row in self._random.sample(call.rows, min(len(call.rows), math.floor(due), _MOST_ROWS)):
            if len(self._aside) < _MOST_ROWS and self._nbytes + len(row) <= _MOST_BYTES:
                self._aside.append((function, call.form, call.media_roots, row))
                self._nbytes += len(row)

    async def _ask_always(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            if self._aside and not any(rows for rows, _ in self._dispatcher.queue_depth().values()):
                await self._ask()

    async def _ask(self) -> None:
        """Ask all members of the first rows of one function, one form and one caller's folders."""
        function, form, roots, _ = self._aside[0]
        rows: list[bytes] = []
        while self._aside and self._aside[0][:3] == (function, form, roots) and len(rows) < _AT_A_TIME:
            rows.append(self._aside.popleft()[3])
            self._nbytes -= len(rows[-1])
        call = Call.of_all_members(
            function, form, rows, deadline_s=time.monotonic() + _PATIENCE_S, media_roots=roots
        )
        try:
            pending = self._dispatcher.begin(call)
        except ServiceError:  # it is gone, or the queue is full: there will be others
            return
        try:
            reply = await pending.future
        except ServiceError:
            return
        finally:
            self._dispatcher.end(pending)
        self._tell(function, reply)

    def _tell(self, function: Function, reply: Reply) -> None:
        fit = function.fit
        assert fit is not None, "only rows of functions with a fit are put aside"
        place_of = {member.name: place for place, member in enumerate(function.members)}
        for first, answer in reply.told:
            if set(place_of) != set(fit.members):
                continue
            told = told_of(function, answer)
            fine = [
                row for row, by_all in enumerate(told.by_all) if by_all and first + row not in reply.errors
            ]
            named = told.scores.argmax(axis=2)[[place_of[name] for name in fit.members]][:, fine]
            self._metrics.shadow_rows[function.name] += len(fine)
            if fine:
                self._learned_state.agreed(function, np.asarray(named))
