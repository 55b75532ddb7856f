"""Capacity that follows the load: a policy is asked again and again, and what it decides is carried out.

    fleet, as it is now → policy.decide → checked → one action after the other, each to its end → timeline

While actions are carried out the policy goes on seeing the load, and what it then decides is not done: it is
asked again once they are over, and sees what has become of them. Decisions are the policy's alone. A policy
thinks in a thread: with hundreds of models that takes milliseconds, in which rows come.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from server.capacity.observed import model_of
from server.capacity.policy import (
    Action,
    Downgrade,
    Drop,
    Fleet,
    Policy,
    Replicate,
    State,
    Upgrade,
    Warm,
    WorkerDown,
    WorkerUp,
    checked,
)
from server.capacity.timeline import Outcome, Timeline
from server.capacity.workforce import Change
from server.catalog.functions import ModelVersion
from server.errors import ServiceError
from server.supervision import Tasks

__all__ = ["Autoscaler", "Decided", "Fleets", "Models", "Workers"]

log = logging.getLogger("ml_udf.server.capacity")

_LEAST_EVERY_S = 0.2
_REMEMBERED = 1200  # decisions: ten minutes of one that is asked twice a second
_REMEMBERED_LOADS = 60_000  # functions' loads in all of them


class Fleets(Protocol):
    """Where fleets are read."""

    def read(self) -> Fleet:
        """As it is now."""
        ...

    def model(self, variant: str) -> ModelVersion | None:
        """The model version that a variant of the last fleet is."""
        ...


class Workers(Protocol):
    """Who has workers join and leave."""

    def join(self, reason: str, by: str, kind: str = "") -> Change:
        """Begin to have one more. Raises `ServiceError`."""
        ...

    def leave(self, name: str, reason: str, by: str) -> Change:
        """Begin to have that worker leave. Raises `ServiceError`."""
        ...


class Models(Protocol):
    """Who moves models to and from workers."""

    async def load_on(self, name: str, model: ModelVersion) -> bool:
        """Load the model there if there is room; whether it is there then."""
        ...

    async def unload_from(self, name: str, key: str) -> None:
        """Evict the model there."""
        ...

    def read_on(self, name: str, model: ModelVersion) -> bool:
        """Have it read into the host's memory; whether that is a memory of its own."""
        ...


@dataclass(frozen=True, slots=True)
class Decided:
    """What a policy saw, and what it answered; is_done: whether that was begun."""

    fleet: Fleet
    actions: tuple[Action, ...]
    is_done: bool


class Autoscaler:
    """`policy.every_s` apart, from `start` to `close`."""

    def __init__(
        self,
        policy: Policy,
        fleets: Fleets,
        workers: Workers,
        models: Models,
        timeline: Timeline,
        tasks: Tasks | None = None,
    ) -> None:
        self._policy = policy
        self._fleets = fleets
        self._workers = workers
        self._models = models
        self._timeline = timeline
        self._tasks = tasks or Tasks()
        self._state: State = {}
        self._acting: asyncio.Task[None] | None = None
        self._last_fault = ""
        self._remembered_loads = 0
        self._decided: deque[Decided] = deque()

    @property
    def policy(self) -> str:
        """Its name."""
        return self._policy.name

    @property
    def decided(self) -> Sequence[Decided]:
        """The last decisions, oldest first; a copy, as others are made while they are told."""
        return tuple(self._decided)

    def start(self) -> None:
        """Begin to ask."""
        self._tasks.always("capacity", self._follow, "capacity follows the load")

    async def close(self) -> None:
        """Ask no more; what is under way is left as it is."""
        await self._tasks.close()

    async def _follow(self) -> None:
        while True:
            await self.step()
            await asyncio.sleep(max(_LEAST_EVERY_S, self._policy.every_s))

    async def step(self) -> None:
        """Ask once, and begin what is decided, unless something is under way."""
        fleet = self._fleets.read()
        try:
            decision = await asyncio.to_thread(self._policy.decide, fleet, self._state)
        except Exception as error:
            self._fault(error)
            return
        self._state = decision.state
        warm = {(one.variant, one.worker) for one in fleet.copies if one.state == "warm"}
        # What lies in host memory alone gives way there by itself, and nobody asks it to.
        wanted = [
            one
            for one in decision.actions
            if not (isinstance(one, Drop) and (one.variant, one.worker) in warm)
        ]
        actions, refused = checked(fleet, wanted)
        for why in refused:
            log.debug("capacity policy may not policy=%s %s", self._policy.name, why)
        is_free = self._acting is None or self._acting.done()
        self._remember(Decided(fleet, actions, is_done=is_free and bool(actions)))
        if actions and is_free:
            self._acting = self._tasks.once("capacity", self._carry_out(actions), "carry out capacity")

    def _remember(self, decided: Decided) -> None:
        self._decided.append(decided)
        self._remembered_loads += len(decided.fleet.functions)
        while len(self._decided) > _REMEMBERED or self._remembered_loads > _REMEMBERED_LOADS:
            self._remembered_loads -= len(self._decided.popleft().fleet.functions)

    def _fault(self, error: Exception) -> None:
        """A policy that faults begins anew, from what it knew at first; said once for each fault."""
        self._state = {}
        if repr(error) != self._last_fault:
            self._last_fault = repr(error)
            log.error("capacity policy failed policy=%s", self._policy.name, exc_info=error)

    async def _carry_out(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, WorkerUp | WorkerDown):
                await self._change(action)
            else:
                await self._move(action)

    async def _change(self, action: WorkerUp | WorkerDown) -> None:
        """Workers tell the timeline themselves, but of what they could not begin."""
        try:
            if isinstance(action, WorkerUp):
                change = self._workers.join(action.reason, self._policy.name, action.device)
            else:
                change = self._workers.leave(action.worker, action.reason, self._policy.name)
        except ServiceError as error:
            worker = action.worker if isinstance(action, WorkerDown) else ""
            self._refused(action.kind, worker, action.reason, str(error))
            return
        await asyncio.wait({change.done})

    async def _move(self, action: Replicate | Warm | Upgrade | Downgrade | Drop) -> None:
        model, worker = self._fleets.model(action.variant), action.worker
        entry = self._timeline.begin(
            action.kind, worker, action.reason, self._policy.name, model_of(action.variant)
        )
        outcome: Outcome = "done"
        error = ""
        if model is None:
            outcome, error = "refused", "no function that is served asks it any more"
        elif isinstance(action, Drop):
            await self._models.unload_from(worker, model.key)
        elif isinstance(action, Warm):
            if not self._models.read_on(worker, model):
                outcome, error = "refused", "its device has no memory of its own"
        elif not await self._models.load_on(worker, model):
            outcome, error = "failed", "there was no room, or it could not be loaded"
        elif isinstance(action, Upgrade | Downgrade):
            for variant, place in action.instead_of:
                await self._models.unload_from(place, model_of(variant))
        log.info(
            "capacity action=%s worker=%s model=%s outcome=%s reason=%r",
            action.kind,
            worker,
            model_of(action.variant),
            outcome,
            action.reason,
        )
        entry.over(outcome, error)

    def _refused(self, kind: str, worker: str, reason: str, error: str) -> None:
        """Once; a policy that cannot have it asks again and again."""
        last = next(iter(self._timeline.last()), None)
        if last is None or (last.action, last.worker, last.error) != (kind, worker, error):
            self._timeline.begin(kind, worker, reason, self._policy.name).over("refused", error)
