"""Exceptions that no test would see: in callbacks and tasks of an event loop, and in threads.

asyncio hands them to the loop's exception handler, whose default only logs, and the test passes. Here they
are kept, and fail the test in which they happened. A test that means to raise one takes the fixture
`expected_callback_errors` and empties it after having looked.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

import pytest

__all__ = ["expected_callback_errors", "no_callback_errors"]

_seen: list[dict[str, Any]] = []


def _keep(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    _seen.append(context)


@pytest.fixture(autouse=True)
def no_callback_errors(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    _seen.clear()
    monkeypatch.setattr(asyncio.BaseEventLoop, "default_exception_handler", _keep)
    yield
    gc.collect(0)  # a task that failed and that nobody awaited says so when it is freed
    told, _seen[:] = [_text(context) for context in _seen], []
    if told:
        pytest.fail("exceptions in callbacks of the event loop:\n" + "\n".join(told))


@pytest.fixture
def expected_callback_errors(no_callback_errors: None) -> list[dict[str, Any]]:
    """The contexts that `loop.call_exception_handler` was called with, so far."""
    return _seen


def _text(context: dict[str, Any]) -> str:
    where = context.get("handle") or context.get("task") or context.get("future")
    return f"{context.get('message')}: {context.get('exception')!r} in {where}"
