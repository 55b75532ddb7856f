"""The session of the browser that sent a request, and whether a page of ours made the browser send it."""

from __future__ import annotations

from fastapi import Request

from server.access.door import wants_page
from server.access.sessions import Session
from server.errors import Forbidden

__all__ = ["check_csrf", "is_for_people", "session_of"]

_MOST_FILES, _MOST_FIELDS = 8, 1000
_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")


def session_of(request: Request) -> Session | None:
    """None for programs that send a bearer token, and for who is not logged in."""
    client = request.client
    found: Session | None = request.state.services.access.session_of(
        dict(request.scope["headers"]), "" if client is None else client.host
    )
    return found


def is_for_people(request: Request) -> bool:
    """Whether a browser asks, for somebody to read."""
    return wants_page(dict(request.scope["headers"]))


async def check_csrf(request: Request) -> None:
    """Raises `Forbidden` where a change comes with a session, and without what a page of the session's sends.

    That is the field `csrf` of a form, or the header `X-CSRF`. A program's bearer token is sent by nobody
    else, and needs none.
    """
    if request.method in ("GET", "HEAD"):
        return
    session = session_of(request)
    if session is None:
        return
    given = request.headers.get("x-csrf", "")
    if not given and request.headers.get("content-type", "").partition(";")[0].strip().lower() in _FORMS:
        # The route gets the same form: the request keeps it.
        form = await request.form(max_files=_MOST_FILES, max_fields=_MOST_FIELDS)
        given = str(form.get("csrf", ""))
    if not request.state.services.access.sessions.is_csrf(session, given):
        raise Forbidden("this did not come from a page of yours, or that is too old: load the page again")
