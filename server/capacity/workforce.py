"""The workers of this server: one more, or one less, while rows flow.

    join    the pool starts a worker → it loads what it begins with → it counts
            each model takes rows there as soon as it is loaded; a worker that never gets ready is given up
    move    its needed models are loaded elsewhere → it finishes what it has → it is started on another node
    leave   its needed models are loaded elsewhere → it takes no more rows → it finishes what it has → it ends

One change at a time, each to its end. A worker that is killed as it joins is started again, within the same
patience; one that is killed as it leaves has left. Its rows run again elsewhere, as ever. Who wants a change,
and why, is not decided here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from server.capacity.timeline import Entry, Timeline
from server.errors import BadOption, Overloaded, ServiceError
from server.placement.residency import Residency
from server.serving.dispatcher import Dispatcher
from server.settings import WorkerBounds
from server.supervision import Tasks
from server.workers.pool import ElasticPool, WorkerStatus

__all__ = ["Change", "TrainingOnWorkers", "Workforce"]

log = logging.getLogger("ml_udf.server.capacity")

_LOOK_S = 0.02
_PAUSE_FIRST_S, _PAUSE_MOST_S = 60.0, 900.0  # after a worker was given up, until another is tried unasked


class TrainingOnWorkers(Protocol):
    """What is under way on workers beside rows."""

    def withdraw(self, name: str) -> None:
        """Nothing new is asked of the worker; what it is at goes on."""
        ...

    def readmit(self, name: str) -> None:
        """It may be asked again."""
        ...

    def is_busy(self, name: str) -> bool:
        """Whether a trial or a question is under way there."""
        ...


@dataclass(frozen=True, slots=True)
class Change:
    """A worker that joins, leaves or is moved. `done` ends when that is over, however; it raises nothing."""

    kind: Literal["join", "leave", "move"]
    worker: str
    done: asyncio.Task[None]

    @property
    def action(self) -> str:
        """As the timeline has it."""
        return {"join": "worker_up", "leave": "worker_down", "move": "worker_moved"}[self.kind]


class Workforce:
    """`devices`: the device of each worker there may be, by its number, as --device names it.

    patience_s: for a process to answer, and again for its models; and for a leaving one's batches.
    """

    def __init__(
        self,
        pool: ElasticPool,
        residency: Residency,
        dispatcher: Dispatcher,
        training: TrainingOnWorkers,
        bounds: WorkerBounds,
        devices: Sequence[str],
        timeline: Timeline,
        patience_s: float,
        tasks: Tasks | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.bounds = bounds
        self.kinds = tuple(device.partition(":")[0] for device in devices)  # by number
        self._pool = pool
        self._residency = residency
        self._dispatcher = dispatcher
        self._training = training
        self._timeline = timeline
        self._patience_s = patience_s
        self._tasks = tasks or Tasks()
        self._clock = clock
        self._change: Change | None = None
        self._given_up: dict[str, WorkerStatus] = {}
        self._join_s = 0.0
        self._pause_s = _PAUSE_FIRST_S
        self._not_before_s = -float("inf")
        self.joined = 0  # since the start
        self.left = 0
        self.gave_up = 0

    async def close(self) -> None:
        """Break off what is under way; the pool ends its workers itself."""
        await self._tasks.close()

    # ── what there is ─────────────────────────────────────────────────────────────────────────────────

    def states(self) -> Sequence[WorkerStatus]:
        """Every worker: "joining" until it counts, "leaving" until it is gone; "given up", the last such."""
        change = self._change
        found = []
        for status in self._pool.states():
            if change is not None and change.worker == status.name:
                moving = {"join": "joining", "leave": "leaving", "move": "moving"}
                status = replace(status, state=moving[change.kind])
            found.append(status)
        return (*found, *self._given_up.values())

    def numbered(self) -> Sequence[tuple[int, WorkerStatus]]:
        """Every worker that there is with its number, of which its device follows."""
        there = (status for status in self.states() if status.state != "given up")
        return [(self._pool.number(status.name), status) for status in there]

    @property
    def join_s(self) -> float:
        """What the last worker that joined took to do so; 0 while none has."""
        return self._join_s

    @property
    def change(self) -> Change | None:
        """What is under way."""
        return self._change

    @property
    def pause_left_s(self) -> float:
        """Until another worker is tried unasked, after one was given up."""
        return max(0.0, self._not_before_s - self._clock())

    def is_blocked(self, name: str) -> bool:
        """Whether a trial, or a question of training's, is under way on the worker: it may not leave now."""
        return self._training.is_busy(name)

    # ── one more ──────────────────────────────────────────────────────────────────────────────────────

    def join(self, reason: str, by: str, kind: str = "") -> Change:
        """Begin to have one more worker. kind: of its device, as in `kinds`; "" = any.

        Raises `Overloaded` while another change is under way, `BadOption` if there are as many as may be.
        """
        self._check_free()
        count = len(self._pool.states())
        if count >= self.bounds.most:
            raise BadOption(
                f"there are {count} workers, and --workers {self.bounds} allows no more; "
                "start the server with a larger MAX: --workers MIN:MAX"
            )
        # Which device `auto` is, its worker finds out.
        numbers = [number for number, each in enumerate(self.kinds) if not kind or each in (kind, "auto")]
        try:
            name = self._pool.add(numbers)
        except ValueError:
            raise BadOption(f"all {len(numbers)} workers of {kind} are there that --device names") from None
        self._given_up.pop(name, None)
        self._residency.expect(count + 1)
        log.info("worker joins worker=%s reason=%r by=%r", name, reason, by)
        entry = self._timeline.begin("worker_up", name, reason, by)
        return self._begin("join", name, self._join(name, count, entry))

    async def _join(self, name: str, before: int, entry: Entry) -> None:
        began_s = self._clock()
        try:
            is_ready = await self._gets_ready(name)
            if not is_ready:
                await self._give_up(name, before, entry)
                return
        finally:
            self._change = None
        self._pause_s = _PAUSE_FIRST_S
        self._join_s = self._clock() - began_s
        self.joined += 1
        log.info("worker joined worker=%s", name)
        entry.over("done")

    async def _gets_ready(self, name: str) -> bool:
        """Whether it answers in time. For its models it has as long again; then it counts without them."""
        ends_s, was_up = self._clock() + self._patience_s, False
        while self._clock() < ends_s:
            if self._status(name).state == "up":
                if not was_up:
                    was_up, ends_s = True, self._clock() + self._patience_s
                if self._residency.is_settled(name):
                    return True
            await asyncio.sleep(_LOOK_S)
        return self._status(name).state == "up"

    async def _give_up(self, name: str, before: int, entry: Entry) -> None:
        status = self._status(name)
        why = status.last_error or "it said nothing"
        error = f"worker {name} was not ready within {self._patience_s:g} s (--worker-start-s): {why}"
        self._pool.retire(name)
        await self._pool.end(name)
        self._residency.gone(name)
        self._residency.expect(before)
        self._given_up[name] = replace(
            status, state="given up", pid=None, last_error=error, last_error_at=time.time()
        )
        self.gave_up += 1
        self._not_before_s = self._clock() + self._pause_s
        log.error("worker given up worker=%s reason=%r not_again_for_s=%.0f", name, error, self._pause_s)
        self._pause_s = min(2 * self._pause_s, _PAUSE_MOST_S)
        entry.over("given up", error)

    # ── one less ──────────────────────────────────────────────────────────────────────────────────────

    def leave(self, name: str, reason: str, by: str) -> Change:
        """Begin to have that worker leave.

        Raises `BadOption` for one that there is not, and if there are no more than there must be;
        `Overloaded` while another change is under way, training works on it, or no other worker is up.
        """
        states = {status.name: status for status in self._pool.states()}
        if name not in states:
            known = ", ".join(states)
            raise BadOption(f"there is no worker {name!r}; there are: {known}")
        self._check_free()
        if len(states) <= self.bounds.least:
            raise BadOption(
                f"there are {len(states)} workers, and --workers {self.bounds} allows no fewer; "
                "start the server with a smaller MIN: --workers MIN:MAX"
            )
        if self._training.is_busy(name):
            raise Overloaded(
                f"training works on {name}; let it leave when the trial is over, "
                "or pause its job first: ml-udf jobs JOB --pause",
                30.0,
            )
        if not any(status.state == "up" for status in states.values() if status.name != name):
            raise Overloaded(f"no worker but {name} is up; GET /v1/workers says how the others fare", 10.0)
        self._pool.retire(name)
        self._training.withdraw(name)
        self._residency.leave(name)
        self._residency.expect(len(states) - 1)
        log.info("worker leaves worker=%s reason=%r by=%r", name, reason, by)
        entry = self._timeline.begin("worker_down", name, reason, by)
        return self._begin("leave", name, self._leave(name, len(states), entry))

    async def _leave(self, name: str, before: int, entry: Entry) -> None:
        try:
            await self._has_its_models_elsewhere(name)
            self._dispatcher.retire(name)
            await self._finishes(name)
            await self._pool.end(name)
        except Exception as error:
            self._pool.keep(name)
            self._residency.stay(name)
            self._residency.expect(before)
            log.warning("worker does not leave worker=%s reason=%r", name, str(error))
            entry.over("failed", str(error) or repr(error))
            if not isinstance(error, ServiceError):
                raise
        else:
            self._residency.gone(name)
            self.left += 1
            log.info("worker left worker=%s", name)
            entry.over("done")
        finally:
            self._dispatcher.readmit(name)
            self._training.readmit(name)
            self._change = None

    async def _has_its_models_elsewhere(self, name: str) -> None:
        try:
            async with asyncio.timeout(self._patience_s):
                await self._residency.load_beside(name)
        except TimeoutError:
            raise Overloaded(
                f"what {name} holds could not be loaded elsewhere within {self._patience_s:g} s "
                "(--worker-start-s)",
                30.0,
            ) from None

    async def _finishes(self, name: str) -> None:
        """Its batches are over. Training that began as it was asked to leave has the time that it takes."""
        ends_s = self._clock() + self._patience_s
        while True:
            has_rows = not self._dispatcher.has_finished(name) or not self._residency.is_still(name)
            if has_rows and self._clock() >= ends_s:
                log.warning("worker leaves unfinished, its rows run again elsewhere worker=%s", name)
                has_rows = False
            if not has_rows and not self._training.is_busy(name):
                return
            await asyncio.sleep(_LOOK_S)

    # ── inside ────────────────────────────────────────────────────────────────────────────────────────

    # ── a node less ───────────────────────────────────────────────────────────────────────────────────

    def drain(self, node: str, reason: str, by: str) -> Sequence[str]:
        """Begin to have a node's workers moved to others, one after the other; from now on it gets none.

        Returns their names. One that finds no other node with a device free is down until there is one.
        Raises `BadOption` for a node that is not known, `Overloaded` while another change is under way, or
        training works there.
        """
        self._check_free()
        try:
            names = self._pool.drain(node)
        except KeyError:
            there = ", ".join(dict.fromkeys(each.node for each in self._pool.states() if each.node))
            raise BadOption(f"there is no node {node!r}; workers are on: {there or 'no node'}") from None
        busy = [name for name in names if self._training.is_busy(name)]
        if busy:
            self._pool.undrain(node)
            raise Overloaded(
                f"training works on {', '.join(busy)}; drain the node when the trial is over, "
                "or pause its job first: ml-udf jobs JOB --pause",
                30.0,
            )
        log.info("node drained node=%r workers=%s reason=%r by=%r", node, names, reason, by)
        if names:
            self._begin("move", names[0], self._move_all(names, reason, by))
        return names

    def undrain(self, node: str) -> None:
        """It gets workers again, as they are started. Raises `BadOption` for one that is not drained."""
        try:
            self._pool.undrain(node)
        except KeyError:
            raise BadOption(f"the node {node!r} is not drained") from None

    async def _move_all(self, names: Sequence[str], reason: str, by: str) -> None:
        try:
            for name in names:
                if self._change is not None:
                    self._change = replace(self._change, worker=name)
                entry = self._timeline.begin("worker_moved", name, reason, by)
                try:
                    await self._move(name)
                except Exception as error:
                    entry.over("failed", str(error) or repr(error))
                    raise
                entry.over("done")
        finally:
            self._change = None

    async def _move(self, name: str) -> None:
        self._training.withdraw(name)
        self._residency.leave(name)
        try:
            with contextlib.suppress(ServiceError):  # whoever has no room elsewhere waits until it is back
                await self._has_its_models_elsewhere(name)
            self._dispatcher.retire(name)
            await self._finishes(name)
            await self._pool.move(name)
        finally:
            self._residency.stay(name)
            self._dispatcher.readmit(name)
            self._training.readmit(name)

    def _begin(
        self, kind: Literal["join", "leave", "move"], name: str, work: Coroutine[Any, Any, None]
    ) -> Change:
        done = self._tasks.once(kind, work, f"{kind} {name}")
        self._change = Change(kind, name, done)
        return self._change

    def _check_free(self) -> None:
        if self._change is not None:
            verb = {"join": "joins", "leave": "leaves", "move": "moves"}[self._change.kind]
            raise Overloaded(f"worker {self._change.worker} {verb}; ask again when that is over", 2.0)

    def _status(self, name: str) -> WorkerStatus:
        return next(status for status in self._pool.states() if status.name == name)
