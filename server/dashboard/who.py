"""`/who`: who asks, which tokens there are, and what was done with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.datastructures import FormData
from starlette.responses import RedirectResponse

from server.access.actions import ACTIONS, BY_SERVER_ALONE
from server.access.caller import DEFAULT_SHARES, SCOPES
from server.access.token_form import told_grants, told_shares
from server.dashboard.page_context import Page, PageOf
from server.dashboard.page_route import PageRoute
from server.dashboard.security import PAGE_HEADERS
from server.errors import BadOption
from server.routes.callers import tell

__all__ = ["router"]

router = APIRouter(prefix="/who", route_class=PageRoute, include_in_schema=False)

_ENTRIES = 50
_ACTIONS = sorted({action for action in ACTIONS.values() if action} | BY_SERVER_ALONE)
_PATTERNS = ("functions", "models", "datasets", "sources", "media_roots")


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Which entries of the trail; "" = whichever. before: only those older than this number."""

    token: str = ""
    action: str = ""
    outcome: str = ""
    before: int | None = None


@router.get("")
async def show_who(
    page: PageOf, token: str = "", action: str = "", outcome: str = "", before: int | None = None
) -> Response:
    """The page; what was done, as far as it is asked for."""
    return await _reply(page, wanted=AuditFilter(token, action, outcome, before))


@router.post("/tokens")
async def make_token(page: PageOf, request: Request) -> Response:
    """A new token; this reply is the one place where its secret stands."""
    form = await request.form(max_files=0, max_fields=100)
    was_open = page.services.tokens.is_open
    try:
        told, secret = await page.services.tokens.create(_asked(form), page.caller)
    except BadOption as error:
        return await _reply(page, 400, said=error.message, given=form)
    tell(request, told["name"])
    access = page.services.access
    token = access.tokens.of_secret(secret.encode())
    # From now on the server wants tokens, of this browser too.
    link = access.sessions.link(token) if was_open and token is not None else ""
    return await _reply(page, made={**told, "secret": secret, "link": link})


@router.post("/tokens/{name}/revoke")
async def revoke_token(page: PageOf, name: str) -> Response:
    """It counts no more."""
    await page.services.tokens.revoke(name)
    return RedirectResponse(f"{page.base}who#tokens", 303, headers=dict(PAGE_HEADERS))


async def _reply(
    page: Page,
    status: int = 200,
    *,
    said: str = "",
    given: FormData | None = None,
    made: dict[str, Any] | None = None,
    wanted: AuditFilter | None = None,
) -> Response:
    may_see = page.caller.is_admin
    tokens = await page.services.tokens.all() if may_see else []
    asked = wanted or AuditFilter()
    audit = (
        await page.services.audit.page(asked.before, _ENTRIES, asked.token, asked.action, asked.outcome)
        if may_see
        else []
    )
    return await page.reply(
        "who.html",
        status,
        tokens=[each for each in tokens if each["state"] != "revoked"],
        revoked=[each for each in tokens if each["state"] == "revoked"],
        grants=told_grants(page.caller.grants),
        shares=told_shares(page.caller.shares),
        scopes=[scope for scope in SCOPES if page.caller.may(scope)],
        all_scopes=SCOPES,
        all_shares=told_shares(DEFAULT_SHARES),
        patterns=_PATTERNS,
        is_open=page.services.tokens.is_open,
        said=said,
        given={} if given is None else given,
        given_scopes=[] if given is None else given.getlist("scopes"),
        made=made,
        audit=audit,
        older=audit[-1]["id"] if len(audit) == _ENTRIES else None,
        filter=asked,
        actions=_ACTIONS,
    )


def _asked(form: FormData) -> dict[str, Any]:
    """The form as a program would send it: what is left empty is left out."""
    asked: dict[str, Any] = {"name": str(form.get("name", "")).strip()}
    asked["scopes"] = [str(scope) for scope in form.getlist("scopes")]
    for name in (*_PATTERNS, "users", "expires"):
        if text := str(form.get(name, "")).strip():
            asked[name] = text
    shares: dict[str, Any] = {}
    for name, default in told_shares(DEFAULT_SHARES).items():
        if text := str(form.get(f"share-{name}", "")).strip():
            shares[name] = text if isinstance(default, str) else _number(name, text)
    return {**asked, "shares": shares}


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise BadOption(f"the share {name!r} must be a number, not {text[:40]!r}") from None
