"""The contract of a pool of workers: what the dispatcher and the placement need, wherever workers live.

A worker is a process that owns a device and speaks `gpu_worker.wire.protocol`. Pools differ in how it is
started and reached: local processes (`local.py`), or actors of a Ray cluster (`ray.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from gpu_worker.wire.protocol import Message

__all__ = [
    "ElasticPool",
    "OnReply",
    "Worker",
    "WorkerInfo",
    "WorkerListener",
    "WorkerPool",
    "WorkerStatus",
]

OnReply = Callable[[Message], None]


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """What a worker says of its device when it comes up, and where it is.

    in_flight: batches that it is sent at a time. sees_pictures: whether it reads the files itself that rows
    name; else it is sent them, also to be taught by. node: its machine, "" for the server's own where there
    are no others. is_far: rows reach it over a network.
    """

    device: str
    device_name: str
    capacity_bytes: int
    in_flight: int = 2
    sees_pictures: bool = True
    node: str = ""
    is_far: bool = False


def shares_cores(info: WorkerInfo) -> bool:
    """Whether a worker computes on the processor of this machine."""
    return not info.node and not info.is_far and not info.device.startswith("cuda")


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A worker as an operator sees it; `state` is "starting", "up" or "down".

    Where workers join and leave (server/capacity/workforce.py) also "joining", "leaving", "moving" or
    "given up".
    last_error: why its last life ended, "" for none that has · last_error_at: when that was, Unix time.
    node: the machine that it runs on; "" for the server's own, and before it has one.
    """

    name: str
    state: str
    pid: int | None
    restarts: int
    info: WorkerInfo | None
    last_error: str
    last_error_at: float | None = None
    node: str = ""


class Worker(Protocol):
    """A live worker. After it is lost, another `Worker` of the same name takes its place."""

    @property
    def name(self) -> str:
        """Stable over restarts."""
        ...

    @property
    def info(self) -> WorkerInfo:
        """Its device."""
        ...

    def send(self, message: Message, on_reply: OnReply) -> int:
        """Send a message under an id of the worker's choice, which is returned; its `id` is overwritten.

        `on_reply` is called exactly once, on the event loop, with the reply; with
        `Failed(code="worker_lost")` if the worker dies first, after the listener has been called.
        """
        ...

    async def call(self, message: Message) -> Message:
        """Send and await the reply; it may be a `Failed`."""
        ...

    def cancel(self, message_id: int) -> None:
        """Ask the worker to forget an Infer; its reply still comes."""
        ...

    def kill(self, reason: str) -> None:
        """End a worker that hangs; it is then lost like any other."""
        ...


class WorkerListener(Protocol):
    """Called when workers come and go."""

    def worker_up(self, worker: Worker) -> None:
        """A worker answers; nothing is resident on it."""
        ...

    def worker_down(self, worker: Worker) -> None:
        """A worker is lost; called before its outstanding messages fail."""
        ...


class WorkerPool(Protocol):
    """Starts workers, watches them, starts lost ones again."""

    async def start(self, listener: WorkerListener) -> None:
        """Begin to start the workers; returns before they are up."""
        ...

    async def close(self) -> None:
        """End all workers; returns when they are gone."""
        ...

    def states(self) -> Sequence[WorkerStatus]:
        """Every worker, up or not."""
        ...


class ElasticPool(WorkerPool, Protocol):
    """A pool to which workers come, and from which they go, while it runs."""

    def add(self, numbers: Iterable[int]) -> str:
        """Begin to start one more worker, of the first of these numbers that is free; its name.

        Raises ValueError if none is.
        """
        ...

    def number(self, name: str) -> int:
        """Of a worker. Raises KeyError for an unknown one."""
        ...

    def retire(self, name: str) -> None:
        """From now on the worker is not started again when it is lost. Raises KeyError for an unknown one."""
        ...

    def keep(self, name: str) -> None:
        """A worker that was retired is started again when it is lost, and at once if it is already."""
        ...

    async def end(self, name: str) -> None:
        """End one worker for good; returns when it is gone, and its name free. Nothing for an unknown one."""
        ...

    async def move(self, name: str) -> None:
        """End a worker's life and begin another, where the pool chooses; returns as that begins.

        Raises KeyError for an unknown one.
        """
        ...

    def drain(self, node: str) -> Sequence[str]:
        """From now on no worker is started on that node; the names of those that are there.

        node: as `WorkerStatus.node` has it. Raises KeyError where no worker is or ever was on it.
        """
        ...

    def undrain(self, node: str) -> None:
        """It takes workers again. Raises KeyError for one that is not drained."""
        ...
