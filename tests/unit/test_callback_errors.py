"""A test in which a callback of the event loop fails does not pass."""

from __future__ import annotations

import asyncio
from typing import Any


def test_an_exception_in_a_callback_is_kept(expected_callback_errors: list[dict[str, Any]]):
    async def main() -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 / 0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(main())
    assert isinstance(expected_callback_errors.pop()["exception"], ZeroDivisionError)
    assert not expected_callback_errors


def test_an_exception_in_a_task_that_nobody_awaits_is_kept(expected_callback_errors: list[dict[str, Any]]):
    async def fail() -> None:
        raise ValueError("nobody looks")

    async def main() -> None:
        task = asyncio.ensure_future(fail())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        del task

    asyncio.run(main())
    assert isinstance(expected_callback_errors.pop()["exception"], ValueError)
