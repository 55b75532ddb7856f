"""Errors of pages are pages: what happened, and what to do. What programs ask gets JSON, as ever."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

from server.dashboard.page_context import page_of
from server.errors import ServiceError

__all__ = ["PageRoute"]

_TITLES = {
    400: "That cannot be done",
    401: "Please log in",
    403: "Not for you",
    404: "Not here",
    410: "Gone",
    413: "Too large",
    415: "Not what this takes",
    503: "Too much at once",
    504: "Too late",
}


class PageRoute(APIRoute):
    """`APIRouter(route_class=PageRoute)`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """See `APIRoute`."""
        inner = super().get_route_handler()

        async def handled(request: Request) -> Response:
            try:
                return await inner(request)
            except ServiceError as error:
                return await _error_page(request, error.status, error.message, error.headers())
            except RequestValidationError as error:
                first = error.errors()[0]
                place = ".".join(str(part) for part in first.get("loc", ()))
                return await _error_page(request, 400, f"{place}: {first.get('msg', 'not valid')}", {})

        return handled


async def _error_page(request: Request, status: int, message: str, headers: dict[str, str]) -> Response:
    page = page_of(request)
    template = "error_part.html" if page.is_part else "error.html"
    reply = await page.reply(template, status, title=_TITLES.get(status, "That went wrong"), message=message)
    reply.headers.update({name: value for name, value in headers.items() if name != "WWW-Authenticate"})
    return reply
