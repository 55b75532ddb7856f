"""Loads and evictions under way: of one model one after the other, of several beside each other."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from gpu_worker.errors import Cancelled, NoRoom
from gpu_worker.wire.protocol import Load, Read, Unload

__all__ = ["Orders"]

_MOST = 256

Order = Load | Read | Unload


@dataclass(slots=True, eq=False)
class _Order:
    """A message and whether it was taken back."""

    message: Order
    given_up: threading.Event = field(default_factory=threading.Event)


class Orders:
    """`carry_out(message, is_cancelled)` in a thread for each model, of one model in the order they came.

    It answers by itself; `failed(id, error)` answers orders that it never got. Thread-safe.
    """

    def __init__(
        self,
        carry_out: Callable[[Order, Callable[[], bool]], object],
        failed: Callable[[int, Exception], object],
    ) -> None:
        self._carry_out = carry_out
        self._failed = failed
        self._waiting: dict[str, deque[_Order]] = {}  # by model; the first is being carried out
        self._changed = threading.Condition()

    def put(self, message: Order) -> None:
        """Takes an order."""
        with self._changed:
            line = self._waiting.setdefault(message.model, deque())
            if sum(map(len, self._waiting.values())) < _MOST:
                line.append(_Order(message))
                if len(line) == 1:
                    args = (message.model, line)
                    threading.Thread(target=self._work, args=args, name=f"load {message.model}").start()
                return
        self._failed(message.id, NoRoom(f"{_MOST} loads and evictions wait already; try again later"))

    def cancel(self, target: int) -> bool:
        """Gives the load of that id up, if it is under way or waits. Whether there is one."""
        with self._changed:
            found = [
                (line, order)
                for line in self._waiting.values()
                for order in line
                if order.message.id == target and not isinstance(order.message, Unload)
            ]
            for line, order in found:
                order.given_up.set()
                if line[0] is not order:  # the first ends by itself
                    line.remove(order)
        for line, order in found:
            if order not in line:
                self._failed(target, Cancelled("the load was given up before it began"))
        return bool(found)

    def cancel_all(self) -> None:
        """Gives every load up: nobody waits for any."""
        with self._changed:
            targets = [order.message.id for line in self._waiting.values() for order in line]
        for target in targets:
            self.cancel(target)

    def join(self) -> None:
        """Returns when all are carried out."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting)

    def _work(self, model: str, line: deque[_Order]) -> None:
        order: _Order | None = line[0]
        while order is not None:
            self._carry_out(order.message, order.given_up.is_set)
            with self._changed:
                line.popleft()
                order = line[0] if line else None
                if order is None:
                    del self._waiting[model]
                    self._changed.notify_all()
