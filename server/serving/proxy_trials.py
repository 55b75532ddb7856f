"""What a proxy takes that is kept off, measured again from time to time: else nobody would ever know.

A proxy that saves nothing by the learned latencies is not asked, and so teaches them nothing: it would stay
away for good for what it took on a bad day. So some rows that were answered without it are put aside, a batch
of usual size at the most, and while nothing waits the proxy's model is asked of them. Nobody reads what it
says; what it took goes where every batch's time goes, and when that has moved, plans are made anew.

No proxy gets more than a hundredth of a device's time so. Runs on the event loop. Knows neither routes nor
tables.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from server.catalog.catalog import Catalog
from server.catalog.functions import Form, Function
from server.ensemble.selection import TYPICAL_ROWS
from server.errors import ServiceError
from server.serving.calls import Call
from server.serving.dispatcher import Dispatcher
from server.supervision import Tasks

__all__ = ["ProxyTrials"]

_LOOK_S = 1.0  # between two looks at who is due
_EVERY_S = 20.0  # between two trials of a proxy, at the least, and
_TIMES = 100  # what the last one took
_MOST_BYTES = 8 << 20  # put aside for a proxy
_PATIENCE_S = 10.0


@dataclass(slots=True)
class _Trial:
    """The next trial of one proxy. due_s: on the clock of `time.monotonic`."""

    due_s: float = 0.0
    rows: list[bytes] = field(default_factory=list)
    media_roots: tuple[str, ...] | None = None  # below which paths among them may be read


class ProxyTrials:
    """look_s: between two looks at who is due. every_s: between two trials of a proxy, at the least."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        catalog: Catalog,
        tasks: Tasks | None = None,
        *,
        look_s: float = _LOOK_S,
        every_s: float = _EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._dispatcher = dispatcher
        self._catalog = catalog
        self._tasks = tasks or Tasks()
        self._look_s = look_s
        self._every_s = every_s
        self._clock = clock
        self._trials: dict[tuple[str, Form], _Trial] = {}  # by the function, named with its version

    def start(self) -> None:
        """Try from now on."""
        self._tasks.always("proxy trials", self._try_in_turn)

    async def close(self) -> None:
        """Stop."""
        await self._tasks.close()

    def answered(self, call: Call) -> None:
        """A call has been answered: some of its rows may be put aside."""
        function = call.function
        if function.proxy is None or call.members is not None:
            return
        key = (function.key, call.form)
        if not self._is_kept_off(function, call.form):
            self._trials.pop(key, None)
            return
        trial = self._trials.setdefault(key, _Trial())
        most = min(TYPICAL_ROWS, function.max_batch)
        roots = _narrower(function.media_roots, call.media_roots)
        if trial.rows and roots != trial.media_roots:
            return  # those of one batch are read below the same folders
        trial.media_roots = roots
        left_bytes = _MOST_BYTES - sum(map(len, trial.rows))
        for row in call.rows[: most - len(trial.rows)]:
            if len(row) > left_bytes:
                break
            trial.rows.append(row)
            left_bytes -= len(row)

    async def try_due(self) -> None:
        """Try the proxies that are due, unless something waits."""
        served = {each.key: each for each in self._dispatcher.served()}
        for (key, form), trial in list(self._trials.items()):
            function = served.get(key)
            if function is None:
                del self._trials[key, form]
            elif trial.rows and self._clock() >= trial.due_s and not self._is_busy:
                rows, trial.rows = trial.rows, []  # others are put aside meanwhile
                took_s = await self._tried(function, form, rows, trial.media_roots)
                trial.due_s = self._clock() + max(self._every_s, _TIMES * took_s)

    async def _try_in_turn(self) -> None:
        while True:
            await asyncio.sleep(self._look_s)
            await self.try_due()

    @property
    def _is_busy(self) -> bool:
        return any(rows for rows, _ in self._dispatcher.queue_depth().values())

    def _is_kept_off(self, function: Function, form: Form) -> bool:
        followed = self._dispatcher.followed(function, form)
        if function.proxy is None or followed is None:
            return False
        return not function.proxy.place.is_asked_first(followed.plans[followed.gear])

    async def _tried(
        self, function: Function, form: Form, rows: list[bytes], media_roots: tuple[str, ...] | None
    ) -> float:
        """Ask the proxy's model by itself; the seconds that took."""
        began_s = self._clock()
        asked = self._by_itself(function)
        if asked is not None:
            call = Call(
                asked,
                form,
                rows,
                sum(map(len, rows)),
                deadline_s=time.monotonic() + _PATIENCE_S,
                row_class="bulk",
                media_roots=media_roots,
                answer_cache=False,
                is_traffic=False,
            )
            try:
                pending = self._dispatcher.begin(call)
            except ServiceError:  # it is gone, or the queue is full: there will be other rows
                return 0.0
            try:
                await pending.future
            except ServiceError:
                pass
            finally:
                self._dispatcher.end(pending)
        return self._clock() - began_s

    def _by_itself(self, function: Function) -> Function | None:
        """The proxy's model under its own name; None where it is not served."""
        assert function.proxy is not None, "only such rows were put aside"
        model = function.proxy.model
        try:
            versions = self._catalog.versions(model.name)
        except ServiceError:
            return None
        return next((each for each in versions if each.bare and each.version == model.version), None)


def _narrower(one: tuple[str, ...] | None, other: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Folders of both; where each names some, none, since nobody needs to read these rows."""
    if one is None or other is None:
        return other if one is None else one
    return one if one == other else ()
