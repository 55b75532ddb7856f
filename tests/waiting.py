"""Waiting for a condition instead of for a time: no longer than it takes, and never for ever."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

__all__ = ["until", "wait_until"]

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
