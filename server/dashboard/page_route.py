"""Errors of pages are pages: what happened, and what to do. What programs ask gets JSON, as ever."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

from server.dashboard.browser_session import is_for_people
from server.dashboard.error_page import TITLES
from server.dashboard.page_context import page_of
from server.errors import BadOption, ServiceError
from server.http.replies import json_reply

__all__ = ["PageRoute"]


class PageRoute(APIRoute):
    """`APIRouter(route_class=PageRoute)`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """See `APIRoute`."""
        inner = super().get_route_handler()

        async def handled(request: Request) -> Response:
            try:
                return await inner(request)
            except ServiceError as error:
                return await _error_page(request, error)
            except RequestValidationError as error:
                first = error.errors()[0]
                place = ".".join(str(part) for part in first.get("loc", ()))
                return await _error_page(request, BadOption(f"{place}: {first.get('msg', 'not valid')}"))

        return handled


async def _error_page(request: Request, error: ServiceError) -> Response:
    page = page_of(request)
    if not (page.is_part or is_for_people(request)):
        return json_reply({"error": error.wire_text}, error.status, error.headers())
    status, message, headers = error.status, error.message, error.headers()
    template = "error_part.html" if page.is_part else "error.html"
    reply = await page.reply(template, status, title=TITLES.get(status, "That went wrong"), message=message)
    reply.headers.update({name: value for name, value in headers.items() if name != "WWW-Authenticate"})
    return reply
