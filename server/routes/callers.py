"""Who asks, as routes receive it: the door put it into the request."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from server.access.caller import Caller

__all__ = ["CallerOf", "caller_of"]


def caller_of(request: Request) -> Caller:
    """The caller of a request."""
    caller: Caller = request.scope["ml_udf.caller"]
    return caller


CallerOf = Annotated[Caller, Depends(caller_of)]
