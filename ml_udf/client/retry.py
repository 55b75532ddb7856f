"""When a failed exchange is tried again: only what is safe, with jitter, inside the deadline."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from ml_udf.client.transport import Abort
from ml_udf.errors import (
    BulkHeld,
    ConnectionLost,
    DeadlineExceeded,
    MlUdfError,
    Overloaded,
    ServerUnreachable,
)

__all__ = ["left_s", "with_retries"]

# A refused connection is tried again for about 1.5 s (a restart), a broken one three times; a full queue is
# waited for until the deadline, since the server says when to come back.
_TRIES = {ServerUnreachable: 5, ConnectionLost: 3}
_FIRST_PAUSE_S = 0.1
_MAX_PAUSE_S = 2.0

Result = TypeVar("Result")


def with_retries(
    do: Callable[[], Result],
    *,
    deadline_s: float,
    abort: Abort | None = None,
    on_retry: Callable[[], None] = lambda: None,
) -> Result:
    """`do()`, tried again while that is safe and `deadline_s` (`time.monotonic()`) allows.

    Raises the last error; `DeadlineExceeded` where a full queue outlasted the deadline; `BulkHeld` at once,
    since the time that a job is held back is not the request's.
    """
    abort = Abort() if abort is None else abort  # one that is not set is false
    tries, pause_s = 0, _FIRST_PAUSE_S
    while True:
        try:
            return do()
        except MlUdfError as error:
            tries += 1
            if (
                abort
                or not error.retryable
                or isinstance(error, BulkHeld)
                or tries >= _TRIES.get(type(error), 1 << 30)
            ):
                raise
            asked_s = error.retry_after_s if isinstance(error, Overloaded) else None
            wait_s = max(asked_s or 0.0, pause_s * random.uniform(0.5, 1.0))
            if time.monotonic() + wait_s >= deadline_s:
                if isinstance(error, Overloaded):
                    raise DeadlineExceeded(
                        f"the server was full until the deadline: {error.message}",
                        hint="raise statement_timeout or ml_udf.timeout_ms, or add workers",
                    ) from error
                raise
            on_retry()
            abort.sleep(wait_s)
            if abort:
                raise
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)


def left_s(deadline_s: float) -> float:
    """Seconds until `deadline_s`. Raises `DeadlineExceeded` when there are none."""
    left = deadline_s - time.monotonic()
    if left <= 0:
        raise DeadlineExceeded(
            "the deadline passed before the rows were answered",
            hint="raise statement_timeout or ml_udf.timeout_ms",
        )
    return left
