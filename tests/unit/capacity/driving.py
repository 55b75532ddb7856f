"""A policy driven second by second, with the fleet that its actions make: loads take no time."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from server.capacity.policy import (
    Action,
    Copy,
    Downgrade,
    Drop,
    Fleet,
    Policy,
    Replicate,
    State,
    Upgrade,
    Warm,
    Worker,
    WorkerDown,
    WorkerUp,
    checked,
)


class Driven:
    """`run` feeds rates; what is decided is done at once, and remembered in `done` with its second."""

    def __init__(self, policy: Policy, fleet: Fleet) -> None:
        self.policy = policy
        self.fleet = fleet
        self.state: State = {}
        self.done: list[tuple[float, Action]] = []
        self._ask()

    @property
    def kinds(self) -> list[str]:
        return [action.kind for _, action in self.done]

    @property
    def about_copies(self) -> list[tuple[float, Action]]:
        """What was done, without what was done about workers."""
        return [one for one in self.done if not isinstance(one[1], WorkerUp | WorkerDown)]

    def run(
        self,
        rates: Iterable[float],
        late: float = 0.0,
        every_s: float = 0.5,
        together: bool = False,
        **worker: Any,
    ) -> Driven:
        """Each rate for a second, of the first function. late: the share of its rows. together: the others
        are asked as often."""
        for rate in rates:
            for _ in range(round(1 / every_s)):
                first, *others = self.fleet.functions
                then_s = self.fleet.now_s - 100
                rows = round(rate * (then_s + every_s)) - round(rate * then_s)
                first = replace(first, arrived=first.arrived + rows, late=first.late + round(late * rows))
                if together:
                    others = [replace(one, arrived=one.arrived + rows) for one in others]
                workers = {name: replace(one, **worker) for name, one in self.fleet.workers.items()}
                self.fleet = replace(
                    self.fleet, now_s=self.fleet.now_s + every_s, functions=(first, *others), workers=workers
                )
                self._ask()
        return self

    def _ask(self) -> None:
        decision = self.policy.decide(self.fleet, self.state)
        again = self.policy.decide(self.fleet, self.state)
        assert again == decision, "the same fleet and state give the same decision"
        self.state = json.loads(json.dumps(decision.state))
        allowed, refused = checked(self.fleet, decision.actions)
        assert refused == (), "a policy of ours never asks for what may not be done"
        for action in allowed:
            self.done.append((self.fleet.now_s - 100, action))
            self.fleet = after(self.fleet, action)


def after(fleet: Fleet, action: Action) -> Fleet:
    """The fleet when the action is through."""
    copies = {(one.variant, one.worker): one for one in fleet.copies}
    workers = dict(fleet.workers)
    if isinstance(action, Replicate | Upgrade | Downgrade):
        copies[action.variant, action.worker] = Copy(action.variant, action.worker)
    if isinstance(action, Warm):
        copies[action.variant, action.worker] = Copy(action.variant, action.worker, "warm")
    if isinstance(action, Upgrade | Downgrade):
        for variant, worker in action.instead_of:
            del copies[variant, worker]
            if action.keep_warm:
                copies[variant, worker] = Copy(variant, worker, "warm")
    if isinstance(action, Drop):
        del copies[action.variant, action.worker]
    if isinstance(action, WorkerUp):
        kind = fleet.devices[action.device]
        name = f"{action.device}-{len(workers)}-more"
        workers[name] = Worker(name, action.device, memory_bytes=kind.memory_bytes, since_s=fleet.now_s)
    if isinstance(action, WorkerDown):
        del workers[action.worker]
        copies = {place: one for place, one in copies.items() if place[1] != action.worker}
    return replace(fleet, copies=tuple(copies.values()), workers=workers)
