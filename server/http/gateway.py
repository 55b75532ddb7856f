"""The outermost layer: who may call, what a body may weigh, and which of two ways a request takes.

Every connection asks here about each head. Rows go straight to the infer route, through the backpressure
before it; everything else goes to the framework. Knows no service.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp

from server.access.actions import ALWAYS, FOLDED, action_of
from server.access.audit_entry import REFUSED, Auditing, entry_of
from server.access.caller import Caller
from server.access.door import Access, claims_of, wants_page
from server.access.rules import match_of, rule_of
from server.errors import BadOption, Forbidden, MethodNotAllowed, ServiceError, Unauthorized, UnknownFunction
from server.http.application import (
    Admitted,
    AlikeInProgress,
    AlikeRequests,
    Refused,
    Reply,
    RequestInProgress,
    WholeRequest,
)
from server.http.asgi_exchange import path_of
from server.http.backpressure import Backpressure, Route
from server.http.body import Receive, Scope, Send, too_large
from server.http.replies import error_reply
from server.http.request_head import Head

__all__ = ["ErrorPage", "Gateway"]

_REGISTER = "/register"
_UNTOLD = (b"ml-udf-audit", b"not kept yet")  # on a reply to what was changed, but is not in the audit log
_CODES = {
    400: "bad_option",
    408: "bad_option",
    413: "input_too_large",
    431: "bad_option",
    501: "unsupported",
    503: "overloaded",
}


# A request's target, a status, what to say → a body and its headers.
ErrorPage = Callable[[bytes, int, str], tuple[bytes, Mapping[str, str]]]


class Gateway:
    """Rows go to `route`, everything else to `inner`, with `state` in its requests' state.

    Bodies are bounded by `max_body_bytes`, uploads by `max_upload_bytes`.
    """

    def __init__(
        self,
        inner: ASGIApp,
        access: Access,
        route: Route,
        state: Mapping[str, Any],
        *,
        max_body_bytes: int,
        max_upload_bytes: int,
        error_page: ErrorPage | None = None,
        audit: Auditing | None = None,
    ) -> None:
        self._inner = inner
        self._access = access
        self._route = route
        self._state = state
        self._backpressure = Backpressure(route)
        self._max_body_bytes = max_body_bytes
        self._max_upload_bytes = max_upload_bytes
        self._error_page = error_page
        self._audit = audit

    # ── connection.Application ──────────────────────────────────────────────────────────────────────

    def admit(self, head: Head, address: str) -> Admitted | Refused:
        """Decide on a request by its head."""
        path, query = path_of(head.target)
        whole = self._route.takes(path)
        limit = self._limit_bytes(path)
        try:
            caller = self._access.check(head, path, address)
            if "\0" in path or b"%00" in query:
                raise BadOption("a NUL character, %00, stands in the path or query; no name has one")
            if whole and head.method != "POST":
                raise MethodNotAllowed(f"{path[:200]} does not take {head.method}")
            if head.length is not None and head.length > limit:
                raise too_large(limit)
        except ServiceError as error:
            return self._refused(error, head, path, address)
        return Admitted(path, query, whole, limit, caller)

    def _refused(self, error: ServiceError, head: Head, path: str, address: str) -> Refused:
        status, body, headers = error_reply(error)
        if isinstance(error, Unauthorized | Forbidden):
            self.refused(_refused_caller(error, head, address), head.method, path, status)
        is_page = isinstance(error, Forbidden | UnknownFunction) and rule_of(head.method, path).is_page
        if self._error_page is not None and is_page and wants_page(head.headers):
            return Refused(status, *self._error_page(head.target, status, error.message))
        return Refused(status, body, headers)

    def still_admits(self, admitted: Admitted) -> bool:
        """Whether the token of a head that came again counts still."""
        return self._access.tokens.counts(admitted.caller)

    def refusal(self, status: int, message: str) -> Refused:
        """The reply to bytes that are no request, or too many, or too slow."""
        error = ServiceError(message)
        error.code, error.status = _CODES[status], status
        _, body, headers = error_reply(error)
        return Refused(status, body, {**headers, "Retry-After": "1"} if status == 503 else headers)

    def answer(self, request: WholeRequest, reply: Reply) -> RequestInProgress | None:
        """Answer a request for rows."""
        return self._backpressure.answer(request, reply)

    def answer_alike(self, alike: AlikeRequests) -> AlikeInProgress:
        """Answer requests for rows that are alike."""
        return self._backpressure.answer_alike(alike)

    def rest_s(self, *, is_busy: bool) -> float:
        """How long reading may rest."""
        return self._route.rest_s(is_busy=is_busy)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request of the framework's."""
        scope["state"] = dict(self._state)
        limit = self._limit_bytes(scope["path"])
        size = 0

        async def bounded() -> MutableMapping[str, Any]:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > limit:
                # The framework lets its own exception alone through from a body that it parses.
                raise HTTPException(413, f"the request's body is over the limit of {limit} bytes")
            return message

        with contextlib.suppress(ClientDisconnect):  # in the middle of its body; nobody is left to be told
            if self._audit is None:
                await self._inner(scope, bounded, send)
            else:
                await self._told(self._audit, scope, bounded, send)

    def refused(self, caller: Caller, method: str, path: str, status: int) -> None:
        """Tell the audit trail that somebody was turned away."""
        if self._audit is not None:
            route = match_of(method, path)[0] or "what is not there"
            self._audit.fold(entry_of(time.time(), caller, f"{method} {route}"[:100], path, status))

    async def _told(self, audit: Auditing, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; what it changes stands in the audit trail when its reply begins."""
        caller, method, path = scope["ml_udf.caller"], scope["method"], scope["path"]
        changing = action_of(method, path)
        told: dict[str, Any] = {}
        scope["ml_udf.audit"] = told  # the routes' own words

        async def telling(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                status = message["status"]
                if changing is not None:
                    action, what = changing
                    entry = entry_of(time.time(), caller, action, told.pop("what", what), status, **told)
                    if action in FOLDED or status in REFUSED:
                        audit.fold(entry)
                    elif not await audit.keep(entry):
                        message["headers"] = [*message.get("headers", ()), _UNTOLD]
                elif status in REFUSED:
                    self.refused(caller, method, path, status)
            await send(message)

        if changing is not None and changing[0] not in ALWAYS:
            try:
                await audit.ready()
            except ServiceError as error:
                status, body, headers = error_reply(error)
                lines = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
                await send({"type": "http.response.start", "status": status, "headers": lines})
                await send({"type": "http.response.body", "body": body})
                return
        await self._inner(scope, receive, telling)

    def _limit_bytes(self, path: str) -> int:
        """What a body may weigh."""
        return self._max_upload_bytes if path == _REGISTER else self._max_body_bytes


def _refused_caller(error: ServiceError, head: Head, address: str) -> Caller:
    """Who was turned away: whom a request names counts by the word of a token alone."""
    if not (isinstance(error, Forbidden) and error.by):
        return Caller("", address, frozenset())
    try:
        user, database = claims_of(head)
    except BadOption:
        user = database = ""
    return Caller(error.by, address, frozenset(), user=user, database=database)
