"""Who asks, as routes receive it: the door put it into the request."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from server.access.caller import Caller

__all__ = ["CallerOf", "caller_of", "tell"]


async def caller_of(request: Request) -> Caller:
    """The dependency of routes that ask for it."""
    caller: Caller = request.scope["ml_udf.caller"]
    return caller


CallerOf = Annotated[Caller, Depends(caller_of)]


def tell(request: Request, what: str, *, count: int = 1, token: str = "") -> None:
    """Say to the audit trail what a request is about, where its path does not: names and counts alone.

    count: of rows · token: the name of the one that is logged in with
    """
    request.scope.setdefault("ml_udf.audit", {}).update(what=what, count=count, token=token)
