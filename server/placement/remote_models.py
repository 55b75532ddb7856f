"""Models behind other servers: whether they can be asked, and the workers by which they are.

**Where they run.** In one worker process of its own, of the device `remote`, which speaks the worker's
protocol and never imports torch; it starts when the first such model is registered. Not in the server: there
what strangers answer would be read, and pictures decoded, where a fault costs everybody; tasks, columns and
cancelling are the worker's already; and the event loop waits for nobody. Not in a device's worker either: an
endpoint that is slow must not hold up what runs there. Towards the scheduler each model is as many workers as
its endpoint takes requests at once (`EndpointSlot`). Placement knows nothing of them: they take no memory
here, and nothing else can be loaded there.

    serve → Load → Loaded: the listener may ask its slots
                 → Failed: it is out, with the reason; asked for again after a pause
    a batch that the endpoint answers none of: it is out, and asked for again at once; after several in a row
        it is out with the reason, and asked for after a pause, though it said that it was there
    the process dies: all are out until it is back

A model that is out is left out of ensembles, which say so; a function of it alone waits while nothing is
known yet, and answers the reason once it is.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Protocol

from gpu_worker.model_files.endpoints import AllowedEndpoints, EndpointRefused
from gpu_worker.wire.protocol import Failed, Load, Loaded, Message
from server.catalog.functions import ModelVersion
from server.errors import BadOption, RemoteUnavailable
from server.supervision import Tasks
from server.workers.endpoint_slot import EndpointSlot
from server.workers.pool import Worker, WorkerPool, WorkerStatus

__all__ = ["RemoteListener", "RemoteModels"]

log = logging.getLogger("ml_udf.server.remote")

_FIRST_PAUSE_S: Final = 0.25
_MOST_PAUSE_S: Final = 5.0
_STARTING: Final = "the worker of models behind other servers is starting"


class RemoteListener(Protocol):
    """Called with what has changed; all on the event loop."""

    def resident_changed(self, worker: Worker, resident: frozenset[str]) -> None:
        """The worker may be asked for these."""
        ...

    def worker_lost(self, worker: Worker) -> None:
        """The worker is sent nothing more."""
        ...

    def member_out(self, model: str, reason: str, *, waits: bool) -> None:
        """The model cannot be asked; waits: nothing is known yet, and its rows may wait."""
        ...

    def member_back(self, model: str) -> None:
        """It can."""
        ...


@dataclass(slots=True, eq=False)
class _Served:
    """A model. reason: why it is out, "" while it is not. known: whether that is more than a guess."""

    model: ModelVersion
    reason: str = _STARTING
    known: bool = False
    failures: int = 0  # batches in a row that it answered none of
    slots: list[EndpointSlot] = field(default_factory=list)
    look: asyncio.Event = field(default_factory=asyncio.Event)  # something has changed
    changed: asyncio.Event = field(default_factory=asyncio.Event)  # for those who wait until it is there


class RemoteModels:
    """`pool`: of the one process. pause_s: between two looks at an endpoint that is out, from and to."""

    def __init__(
        self,
        listener: RemoteListener,
        pool: WorkerPool,
        allowed: AllowedEndpoints,
        tasks: Tasks | None = None,
        pause_s: tuple[float, float] = (_FIRST_PAUSE_S, _MOST_PAUSE_S),
    ) -> None:
        self._listener = listener
        self._pool = pool
        self._allowed = allowed
        self._tasks = tasks or Tasks()
        self._pause_s = pause_s
        self._served: dict[str, _Served] = {}
        self._worker: Worker | None = None
        self._is_started = False
        self._is_pool_started = False

    def check(self, model: ModelVersion) -> None:
        """Raises `BadOption` where rows may not be sent to where the model is."""
        if not model.endpoint:
            return
        try:
            self._allowed.check(model.endpoint)
        except EndpointRefused as exc:
            raise BadOption(f"model {model.name}: {exc}") from exc

    def serve(self, models: Iterable[ModelVersion]) -> None:
        """Of these, keep those that are behind other servers ready to be asked."""
        for model in models:
            if model.endpoint and model.key not in self._served:
                served = self._served[model.key] = _Served(model)
                self._listener.member_out(model.key, served.reason, waits=True)
                if self._is_started:
                    self._begin(served)

    def start(self) -> None:
        """Begin to keep them."""
        self._is_started = True
        for served in self._served.values():
            self._begin(served)

    async def close(self) -> None:
        """Stop, and end the process."""
        await self._tasks.close()
        if self._is_pool_started:
            await self._pool.close()

    def states(self) -> list[WorkerStatus]:
        """The process, once there is one."""
        return list(self._pool.states()) if self._is_pool_started else []

    def resident(self) -> dict[str, list[str]]:
        """Worker → keys of the models that can be asked; as `Residency.resident` says it."""
        names = [state.name for state in self.states()]
        return {name: sorted(key for key, one in self._served.items() if one.slots) for name in names}

    def reason(self, model: ModelVersion) -> str:
        """Why a model cannot be asked; "" where it can, or is none of these."""
        served = self._served.get(model.key)
        return "" if served is None else served.reason

    async def load(self, models: Iterable[ModelVersion]) -> None:
        """Return when all of these that are behind other servers can be asked.

        Raises `RemoteUnavailable` with the reason where that is known of one.
        """
        for served in [self._served[model.key] for model in models if model.key in self._served]:
            while served.reason:
                if served.known:
                    raise RemoteUnavailable(f"model {served.model.key} cannot be asked: {served.reason}")
                served.changed.clear()
                await served.changed.wait()

    # ── the process (WorkerListener) ────────────────────────────────────────────────────────────────

    def worker_up(self, worker: Worker) -> None:
        """It answers."""
        self._worker = worker
        for served in self._served.values():
            served.look.set()

    def worker_down(self, worker: Worker) -> None:
        """It is lost."""
        if self._worker is not worker:
            return
        self._worker = None
        for served in self._served.values():
            self._out(served, _STARTING, known=False)

    # ── one model ───────────────────────────────────────────────────────────────────────────────────

    def _begin(self, served: _Served) -> None:
        if not self._is_pool_started:
            self._is_pool_started = True
            self._tasks.once("remote", self._pool.start(self), "start the worker of remote models")
        self._tasks.always("remote", lambda: self._keep(served), f"keep {served.model.key}")

    async def _keep(self, served: _Served) -> None:
        """Until it is cancelled."""
        pause_s = self._pause_s[0]
        while True:
            while self._worker is None or served.slots:
                served.look.clear()
                await served.look.wait()
            if served.failures > 1:
                await asyncio.sleep(self._pause_after(served.failures))
            worker, key = self._worker, served.model.key
            if worker is None:
                continue
            reply = await worker.call(Load(0, key, str(served.model.directory)))
            if worker is not self._worker:
                continue
            if isinstance(reply, Loaded):
                pause_s = self._pause_s[0]
                self._back(served, worker)
                continue
            self._out(served, _why(reply), known=True)
            await asyncio.sleep(pause_s * random.uniform(0.75, 1.0))
            pause_s = min(2 * pause_s, self._pause_s[1])

    def _back(self, served: _Served, process: Worker) -> None:
        key = served.model.key
        log.info("remote model can be asked model=%s endpoint=%s", key, served.model.endpoint)
        served.reason, served.known = "", True
        served.slots = [
            EndpointSlot(key, number, process, lambda why: self._told(served, why))
            for number in range(served.model.concurrency)
        ]
        self._listener.member_back(key)
        for slot in served.slots:
            self._listener.resident_changed(slot, frozenset((key,)))
        served.changed.set()

    def _told(self, served: _Served, reason: str) -> None:
        """A batch was answered, or none of it; after the first of these it is asked for at once: where that
        succeeds, those who wait have lost nothing.
        """
        if not reason:
            served.failures = 0
        elif served.slots:  # else others of the same time have said it
            served.failures += 1
            self._out(served, reason, known=served.failures > 1)
            served.look.set()

    def _pause_after(self, failures: int) -> float:
        first_s, most_s = self._pause_s
        return min(first_s * 2.0 ** min(failures - 2, 20), most_s) * random.uniform(0.75, 1.0)

    def _out(self, served: _Served, reason: str, *, known: bool) -> None:
        key, slots = served.model.key, served.slots
        if slots or (known and reason != served.reason):
            log.warning("remote model is out model=%s reason=%r", key, reason)
        served.reason, served.known, served.slots = reason, known, []
        self._listener.member_out(key, reason, waits=not known)
        for slot in slots:
            self._listener.worker_lost(slot)
        served.changed.set()


def _why(reply: Message) -> str:
    return reply.message if isinstance(reply, Failed) else f"the worker answered a load with {reply.kind!r}"
