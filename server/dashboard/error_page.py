"""Errors that no page of ours meets itself: what the door refuses, what is not there, what fails inside."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import Request, Response
from starlette.responses import HTMLResponse

from server.access.caller import NOBODY
from server.access.rules import rule_of
from server.dashboard.browser_session import is_for_people
from server.dashboard.dashboard import Dashboard
from server.dashboard.navigation import NAVIGATION
from server.dashboard.page_context import base_of
from server.dashboard.security import PAGE_HEADERS

__all__ = ["TITLES", "refused_page", "shown_error"]

TITLES: Mapping[int, str] = {
    400: "That cannot be done",
    401: "Please log in",
    403: "Not for you",
    404: "Not here",
    410: "Gone",
    413: "Too large",
    415: "Not what this takes",
    429: "Too much from you",
    503: "Too much at once",
    504: "Too late",
    507: "The disk is full",
}


def shown_error(request: Request, status: int, message: str) -> Response | None:
    """The page that a browser gets for a path of pages; None for programs, and what they ask."""
    dashboard: Dashboard | None = getattr(request.state, "dashboard", None)
    is_page = rule_of(request.method, request.scope["path"]).is_page
    if dashboard is None or not is_page or not is_for_people(request):
        return None
    text = error_page(dashboard, base_of(request.scope["raw_path"]), status, message)
    return HTMLResponse(text, status, PAGE_HEADERS)


def refused_page(
    dashboard: Dashboard, target: bytes, status: int, message: str
) -> tuple[bytes, Mapping[str, str]]:
    """Body and headers of what the door answers to a browser. target: of the request, with its query."""
    text = error_page(dashboard, base_of(target.partition(b"?")[0]), status, message)
    return text.encode(), {"Content-Type": "text/html; charset=utf-8", **PAGE_HEADERS}


def error_page(dashboard: Dashboard, base: str, status: int, message: str) -> str:
    """What happened, to whomever. base: from the path to the server's root."""
    return dashboard.renderer.render(
        "error.html",
        base,
        caller=NOBODY,
        csrf="",
        navigation=NAVIGATION,
        run=dashboard.run,
        title=TITLES.get(status, "That went wrong"),
        message=message,
    )
