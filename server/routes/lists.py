"""Replies that list what may be thousands of things.

What is told of them is read on the event loop, whose they are: in a thread it would change while it is
read. But rows wait there, so it is told a little at a time, and written as JSON elsewhere.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from fastapi import Response

from server.http.replies import json_reply

__all__ = ["list_reply", "told_each"]

_Thing = TypeVar("_Thing")
_Told = TypeVar("_Told")

_A_TURN_S = 0.001


async def told_each(things: Iterable[_Thing], tell: Callable[[_Thing], _Told]) -> list[_Told]:
    """What `tell` says of each; the loop goes on between them once that has taken a millisecond.

    things: are read at once.
    """
    told: list[_Told] = []
    since_s = time.monotonic()
    for one in list(things):
        if time.monotonic() - since_s > _A_TURN_S:
            await asyncio.sleep(0)
            since_s = time.monotonic()
        told.append(tell(one))
    return told


async def list_reply(content: object) -> Response:
    """A JSON reply of any length; nobody may change `content` any more."""
    return await asyncio.to_thread(json_reply, content)
