"""Replies, and the one place where an error becomes one: `{"error": "code: message"}` and a status.

Knows HTTP and the server's errors, no route.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import DBAPIError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from server.disk_space import no_space
from server.errors import BadOption, ServiceError
from server.http.asgi_exchange import TOLD

__all__ = ["error_reply", "json_reply", "map_errors"]

log = logging.getLogger("ml_udf.server.routes")

# What the framework itself answers: (our code, its text).
_FRAMEWORK = {
    404: "unknown_function",
    405: "bad_option",
    413: "input_too_large",
}


def json_reply(content: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON reply."""
    body = json.dumps(content, separators=(",", ":")).encode()
    return Response(body, status, dict(headers or {}), media_type="application/json")


Shown = Callable[[Request, int, str], Response | None]


def map_errors(api: FastAPI, shown: Shown = lambda request, status, message: None) -> None:
    """Every error of every route in the one form, those of the framework included.

    shown: the page that a browser gets instead, where it asked for one
    """

    async def of_service(_: Request, error: Exception) -> Response:
        assert isinstance(error, ServiceError)
        return json_reply({"error": error.wire_text}, error.status, error.headers())

    async def of_framework(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 404:
            text = f"there is no route {request.method} {request.url.path[:200]}"
        elif error.status_code == 405:
            text = f"{request.url.path[:200]} does not take {request.method}"
        else:
            text = str(error.detail)
        if (page := shown(request, error.status_code, text)) is not None:
            return page
        code = _FRAMEWORK.get(error.status_code, "bad_option")
        return json_reply({"error": f"{code}: {text}"}, error.status_code, error.headers)

    async def of_validation(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        place = ".".join(str(part) for part in first.get("loc", ()))
        wrong = BadOption(f"{place}: {first.get('msg', 'not valid')}")
        return json_reply({"error": wrong.wire_text}, wrong.status)

    async def of_storage(_: Request, error: Exception) -> Response:
        full = no_space(error)
        if full is None:
            raise error
        log.error("disk full: %s", error)
        return json_reply({"error": full.wire_text}, full.status)

    async def of_nobody(_: Request, __: Exception) -> Response:
        return Response(status_code=499)  # its client hung up in the middle of the body; nobody reads this

    async def of_anything(request: Request, error: Exception) -> Response:
        log.error("request failed method=%s path=%s", request.method, request.url.path, exc_info=error)
        request.scope[TOLD] = True  # the framework raises it once more, past this reply
        fault = ServiceError("the server failed inside; its log holds the cause")
        if (page := shown(request, fault.status, fault.message)) is not None:
            return page
        return json_reply({"error": fault.wire_text}, fault.status)

    api.add_exception_handler(ServiceError, of_service)
    api.add_exception_handler(HTTPException, of_framework)
    api.add_exception_handler(RequestValidationError, of_validation)
    api.add_exception_handler(OSError, of_storage)
    api.add_exception_handler(DBAPIError, of_storage)
    api.add_exception_handler(ClientDisconnect, of_nobody)
    api.add_exception_handler(Exception, of_anything)


def error_reply(error: ServiceError) -> tuple[int, bytes, dict[str, str]]:
    """Status, body and headers of an error."""
    body = json.dumps({"error": error.wire_text}).encode()
    return error.status, body, {"content-type": "application/json", **error.headers()}
