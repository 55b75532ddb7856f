"""The outermost layer: who may call, how large bodies may be, and infer ahead of the framework.

An ASGI application around the framework's; a request to infer passes nothing else. Knows no service.
"""

from __future__ import annotations

import hmac
from collections.abc import MutableMapping
from typing import Any
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from server.errors import BodyTooLarge, Unauthorized
from server.routes.body import Receive, Scope, Send, header
from server.routes.health import HEALTH_PATHS
from server.routes.infer import InferRoute, is_infer
from server.routes.replies import error_reply, send_error
from server.settings import is_loopback
from server.shortcut import Reply, Waiting, WholeRequest
from server.turnstile import Turnstile

__all__ = ["Front"]

_REGISTER = "/register"


class Front:
    """`infer` and the `turnstile` before it are set once the services run.

    Bodies are bounded by `max_body_bytes`, uploads by their own.
    """

    infer: InferRoute
    turnstile: Turnstile

    def __init__(
        self, inner: ASGIApp, token: str | None, *, max_body_bytes: int, max_upload_bytes: int
    ) -> None:
        self._inner = inner
        self._expected = None if token is None else f"Bearer {token}".encode()
        self._max_body_bytes = max_body_bytes
        self._max_upload_bytes = max_upload_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or run the lifespan."""
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        path: str = scope["path"]
        if self._expected is None and _is_foreign_page(scope):
            await send_error(
                send, Unauthorized("web pages of other hosts may not call a server without a token")
            )
        elif self._expected is not None and path not in HEALTH_PATHS and not self._is_authorized(scope):
            await send_error(send, _no_token())
        elif is_infer(path):
            await self.infer(scope, receive, send)
        else:
            await self._bounded(scope, receive, send)

    def answer(self, request: WholeRequest, reply: Reply) -> Waiting | None:
        """Answer an infer request that came the short way; pages, which send their origin, never do."""
        if self._expected is not None and not self._is_token(request.headers.get(b"authorization", b"")):
            reply(*error_reply(_no_token()))
            return None
        return self.turnstile.answer(request, reply)

    def _is_authorized(self, scope: Scope) -> bool:
        return self._is_token((header(scope, b"authorization") or "").encode("latin-1"))

    def _is_token(self, sent: bytes) -> bool:
        scheme, _, token = sent.partition(b" ")
        assert self._expected is not None
        return hmac.compare_digest(scheme.capitalize() + b" " + token.strip(), self._expected)

    async def _bounded(self, scope: Scope, receive: Receive, send: Send) -> None:
        limit = self._max_upload_bytes if scope["path"] == _REGISTER else self._max_body_bytes
        error = BodyTooLarge(f"the request's body is over the limit of {limit} bytes")
        announced = header(scope, b"content-length")
        if announced is not None and announced.isdigit() and int(announced) > limit:
            await send_error(send, error)
            return
        size = 0

        async def bounded() -> MutableMapping[str, Any]:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > limit:
                # The framework lets its own exception alone through from a body that it parses.
                raise HTTPException(413, error.message)
            return message

        await self._inner(scope, bounded, send)


def _no_token() -> Unauthorized:
    return Unauthorized("this server wants a bearer token, and none or another was sent")


def _is_foreign_page(scope: Scope) -> bool:
    # A browser lets any page post to loopback, and names the page's host; programs send no Origin.
    origin = header(scope, b"origin")
    if origin is None:
        return False
    try:
        host = urlsplit(origin).hostname
    except ValueError:
        return True
    return host is None or not is_loopback(host)
