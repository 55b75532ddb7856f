"""Waiting for a condition instead of for a time: no longer than it takes, and never for ever."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

__all__ = ["has_sleeping_thread", "once", "until", "wait_for_job", "wait_until", "wait_until_steady"]

_LOOK_S = 0.005
_WITHIN_S = 60.0  # a bound, for what never comes: machines may be busy
_JOB_LOOK_S = 0.2


async def until(condition: Callable[[], object], within_s: float = _WITHIN_S) -> None:
    """Let the event loop run until the condition holds. Raises TimeoutError."""
    ends_s = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > ends_s:
            raise TimeoutError(f"not within {within_s:g} s")
        await asyncio.sleep(_LOOK_S)


def wait_until(condition: Callable[[], object], within_s: float = _WITHIN_S) -> None:
    """Wait until the condition holds. Raises TimeoutError."""
    ends_s = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > ends_s:
            raise TimeoutError(f"not within {within_s:g} s")
        time.sleep(_LOOK_S)


def wait_until_steady(value: Callable[[], object], for_s: float = 0.3, within_s: float = _WITHIN_S) -> None:
    """Wait until a value has not changed for so long. Raises TimeoutError."""
    last, since_s = value(), time.monotonic()

    def is_steady() -> bool:
        nonlocal last, since_s
        if (now := value()) != last:
            last, since_s = now, time.monotonic()
        return time.monotonic() - since_s > for_s

    wait_until(is_steady, within_s)


def wait_for_job(value: Callable[[str], object], job: int, within_s: float) -> None:
    """Wait until a training job has ended well. value: what a statement answers, the one value.

    Raises TimeoutError, and AssertionError where it ended otherwise.
    """
    ends_s = time.monotonic() + within_s
    while value(f"SELECT state FROM ml_udf.jobs WHERE id = {job}") == "running":
        if time.monotonic() > ends_s:
            raise TimeoutError(f"job {job} did not end")
        time.sleep(_JOB_LOOK_S)
    state = value(f"SELECT state || ' ' || reason FROM ml_udf.jobs WHERE id = {job}")
    assert str(state).startswith("done"), state


@contextlib.contextmanager
def once(holds: Callable[[], object], act: Callable[[], object]) -> Iterator[list[float]]:
    """`act` in another thread as soon as `holds`; yields a list that then holds when."""
    acted_s: list[float] = []

    def run() -> None:
        wait_until(holds)
        acted_s.append(time.monotonic())
        act()

    with ThreadPoolExecutor(1) as pool:
        acting = pool.submit(run)
        yield acted_s
        acting.result()


def has_sleeping_thread(pid: int) -> bool:
    """Whether a thread of the process sleeps by the clock, as a model does that is made to be slow."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # one has just ended
        threads = Path(f"/proc/{pid}/task").iterdir()
        return any("nanosleep" in (thread / "wchan").read_text() for thread in threads)
    return False
