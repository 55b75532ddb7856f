"""`/login` and `/logout`: a token that is typed once, or a link that is followed once, becomes a cookie.

Nobody becomes somebody else unasked: where a browser is logged in with another token, or comes from another
site, a link asks first. Who takes a browser's place ends the session that it had.
"""

from __future__ import annotations

import math
import time
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Depends, Request, Response
from starlette.responses import RedirectResponse

from server.access.token import Token
from server.dashboard.browser_session import session_of
from server.dashboard.page_context import Page, PageOf, page_of
from server.dashboard.page_route import PageRoute
from server.dashboard.security import PAGE_HEADERS
from server.errors import Forbidden
from server.routes.callers import tell

__all__ = ["router"]

router = APIRouter(route_class=PageRoute, include_in_schema=False)


async def _unchecked(request: Request) -> Page:
    """Nobody is logged in yet who could show where the form came from; the door asks the browser."""
    return page_of(request)


UncheckedPage = Annotated[Page, Depends(_unchecked)]

_WRONG = "this is no token of this server, or it was revoked or has expired"
_OLD = "this link was followed before, or is older than ten minutes: `ml-udf login` makes another one"
_BLIND = "this token may not read, which pages need: it lacks the scope read"


@router.get("/login")
async def show_login(page: PageOf, request: Request, link: str = "", next: str = "") -> Response:
    """The form; or, with a link's code, what comes after it."""
    if page.services.tokens.is_open:
        return _on(page, next)
    if not link:
        return await page.reply("login.html", next=next, said="")
    token = page.services.access.sessions.linked(link)
    if token is not None and _is_to_be_asked(page, request, token):
        return await page.reply("login_as.html", next=next, link=link, token=token.name)
    return await _by_link(page, request, link, next)


@router.post("/login")
async def log_in(page: UncheckedPage, request: Request) -> Response:
    """Take a token, or a link's code."""
    form = await request.form(max_files=0, max_fields=10)
    wanted = str(form.get("next", ""))
    if link := str(form.get("link", "")):
        return await _by_link(page, request, link, wanted)
    secret = str(form.get("token", "")).strip()
    access = page.services.access
    token = access.tokens.of_secret(secret.encode())
    if token is None:
        wait_s = access.failed.note(page.caller.address, time.monotonic())
        if wait_s:
            seconds = math.ceil(wait_s)
            said = f"too many wrong tokens came from your address: try again in {seconds} s"
            reply = await page.reply("login.html", 429, next=wanted, said=said)
            reply.headers["Retry-After"] = str(seconds)
            return reply
        return await page.reply("login.html", 401, next=wanted, said=_WRONG)
    return await _logged_in(page, request, token, wanted)


@router.post("/logout")
async def log_out(page: PageOf, request: Request) -> Response:
    """Forget the cookie, and let no copy of it count."""
    await _end_session(page, request)
    reply = RedirectResponse(f"{page.base}login", 303, headers=dict(PAGE_HEADERS))
    reply.set_cookie(page.services.access.sessions.cookie_name, "", max_age=0, path=None, httponly=True)
    return reply


def _is_to_be_asked(page: Page, request: Request, token: Token) -> bool:
    """Whether a link would make somebody else of who is logged in, or another site's page leads to it."""
    from_elsewhere = request.headers.get("sec-fetch-site", "none") in ("cross-site", "same-site")
    return from_elsewhere or (bool(page.caller.digest) and page.caller.digest != token.digest)


async def _by_link(page: Page, request: Request, link: str, wanted: str) -> Response:
    token = page.services.access.sessions.follow(link)
    if token is None:
        return await page.reply("login.html", 401, next=wanted, said=_OLD)
    return await _logged_in(page, request, token, wanted)


async def _end_session(page: Page, request: Request) -> None:
    session = session_of(request)
    if session is not None:
        await page.services.sessions.end(session)


async def _logged_in(page: Page, request: Request, token: Token, wanted: str) -> Response:
    if "read" not in token.scopes:
        raise Forbidden(_BLIND)
    await _end_session(page, request)
    tell(request, "", token=token.name)
    sessions = page.services.access.sessions
    value, lasts_s = sessions.begin(token)
    reply = _on(page, wanted)
    # No path: the browser takes that of this page, which is the server's root below whatever prefix.
    reply.set_cookie(
        sessions.cookie_name,
        value,
        max_age=int(lasts_s),
        path=None,
        secure=_is_secure(request),
        httponly=True,
        samesite="lax",
    )
    return reply


def _on(page: Page, wanted: str) -> Response:
    """To the page that was wanted before the login, which is one of this server's, or to the first one.

    What follows the base is a path whatever it says: with no scheme or host in it that a browser would go to.
    """
    steps = wanted.split("/")
    is_ours = wanted.isprintable() and not wanted.startswith("/") and ".." not in steps and "\\" not in wanted
    return RedirectResponse(
        page.base + (quote(wanted, safe="/") if is_ours else ""), 303, headers=dict(PAGE_HEADERS)
    )


def _is_secure(request: Request) -> bool:
    """Whether the browser came by TLS: to this server, or to a proxy before it."""
    origin = request.headers.get("origin", "")
    forwarded = request.headers.get("x-forwarded-proto", "")
    return request.url.scheme == "https" or origin.startswith("https://") or forwarded == "https"
