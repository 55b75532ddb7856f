"""Waiting for a condition instead of for a time: no longer than it takes, and never for ever."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

__all__ = ["until", "wait_until", "wait_until_steady"]

_LOOK_S = 0.005


async def until(condition: Callable[[], object], within_s: float = 20.0) -> None:
    """Let the event loop run until the condition holds. Raises TimeoutError."""
    ends_s = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > ends_s:
            raise TimeoutError(f"not within {within_s:g} s")
        await asyncio.sleep(_LOOK_S)


def wait_until(condition: Callable[[], object], within_s: float = 20.0) -> None:
    """Wait until the condition holds. Raises TimeoutError."""
    ends_s = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > ends_s:
            raise TimeoutError(f"not within {within_s:g} s")
        time.sleep(_LOOK_S)


def wait_until_steady(value: Callable[[], object], for_s: float = 0.3, within_s: float = 20.0) -> None:
    """Wait until a value has not changed for so long. Raises TimeoutError."""
    last, since_s = value(), time.monotonic()

    def is_steady() -> bool:
        nonlocal last, since_s
        if (now := value()) != last:
            last, since_s = now, time.monotonic()
        return time.monotonic() - since_s > for_s

    wait_until(is_steady, within_s)
