"""Several requests to one endpoint at once, each tried again where that is safe, all given up together.

Rows of a batch wait here for theirs. Who waits looks every 20 ms whether the batch is still wanted, and shuts
down what is under way where it is not, or where it has had its time. Knows no model.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from gpu_worker.errors import Cancelled
from gpu_worker.networks.network import IsCancelled
from gpu_worker.networks.remote.exchange import Call, EndpointFailed, Reply
from gpu_worker.threads import Threads

__all__ = ["Asking", "Made"]

_LOOK_S: Final = 0.02
_FIRST_PAUSE_S: Final = 0.1
_MOST_PAUSE_S: Final = 5.0

Made = TypeVar("Made")


class Asking:
    """`concurrency` requests at a time; each has `timeout_s`, and `retries` more if it fails for a while."""

    def __init__(self, concurrency: int, timeout_s: float, retries: int) -> None:
        self._timeout_s, self._retries = timeout_s, retries
        self._threads = Threads(concurrency, "remote")

    def start(self) -> None:
        """Starts its threads, if they do not run yet."""
        self._threads.start()

    def close(self) -> None:
        """Ends its threads. One may be at a request that was given up, and ends when that does."""
        threading.Thread(target=self._threads.close, name="remote ends", daemon=True).start()

    def all(
        self,
        makes: Sequence[Callable[[Try], Made]],
        is_cancelled: IsCancelled,
        ends_s: float,
    ) -> list[Made | EndpointFailed]:
        """What each of `makes` makes of its requests, or why it could not, in their order.

        Each is called in a thread with a `Try`, by which it asks. ends_s: when nobody wants it any more.
        Raises `Cancelled`, and what else `makes` raise.
        """
        jobs = [_Job(make, Try(self._timeout_s, self._retries, ends_s)) for make in makes]
        for job in jobs:
            self._threads.put(job.run)
        try:
            for job in jobs:
                while not job.done.wait(_LOOK_S):
                    if is_cancelled():
                        raise Cancelled("the request was cancelled")
                    now_s = time.monotonic()
                    for other in jobs:
                        other.attempt.check_time(now_s)
        finally:
            for job in jobs:
                job.attempt.give_up("nobody waits for it any more")
        return [job.result() for job in jobs]


class Try:
    """The requests of one row, or of some rows, one after the other."""

    def __init__(self, timeout_s: float, retries: int, ends_s: float) -> None:
        self._timeout_s, self._retries, self._ends_s = timeout_s, retries, ends_s
        self._call: Call | None = None
        self._call_ends_s = 0.0
        self._given_up = threading.Event()

    def ask(self, call_of: Callable[[], Call]) -> Reply:
        """The reply to a request that may be repeated; `call_of` makes it anew. Raises `EndpointFailed`."""
        tries, pause_s = 0, _FIRST_PAUSE_S
        while True:
            try:
                return self._once(call_of())
            except EndpointFailed as failed:
                tries += 1
                wait_s = max(failed.retry_after_s, pause_s * random.uniform(0.5, 1.0))
                late = time.monotonic() + wait_s >= self._ends_s
                if not failed.again or tries > self._retries or late or wait_s > self._timeout_s:
                    if failed.retry_after_s:
                        failed.message += f"; it asks to come back in {failed.retry_after_s:.0f} s"
                    raise
                if self._given_up.wait(wait_s):
                    raise
                pause_s = min(2 * pause_s, _MOST_PAUSE_S)

    def check_time(self, now_s: float) -> None:
        """Shuts down a request that has had its time: one whose reply drips in would go on for ever."""
        call = self._call
        if call is not None and now_s > self._call_ends_s:
            call.give_up("no whole reply came in time (remote.timeout_ms of the model)")

    def give_up(self, reason: str) -> None:
        """Shuts down what is under way; nothing more is asked."""
        self._given_up.set()
        call = self._call
        if call is not None:
            call.give_up(reason)

    def _once(self, call: Call) -> Reply:
        self._call_ends_s = min(time.monotonic() + self._timeout_s, self._ends_s)
        self._call = call
        if self._given_up.is_set():
            raise EndpointFailed(f"{call.url}: nobody waits for it any more")
        try:
            return call.run(self._call_ends_s)
        finally:
            self._call = None


class _Job(Generic[Made]):
    """One of `makes`, and what became of it."""

    def __init__(self, make: Callable[[Try], Made], attempt: Try) -> None:
        self._make = make
        self.attempt = attempt
        self.done = threading.Event()
        self._found: Made | EndpointFailed | None = None
        self._bug: BaseException | None = None

    def run(self) -> None:
        try:
            self._found = self._make(self.attempt)
        except EndpointFailed as failed:
            self._found = failed
        except BaseException as exc:
            self._bug = exc
        finally:
            self.done.set()

    def result(self) -> Made | EndpointFailed:
        if self._bug is not None:
            raise self._bug
        assert self._found is not None, "it is done"
        return self._found
