"""`/v1/tokens`: who may ask this server, and `/v1/login-links`: how a browser becomes one of them."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from server.errors import BadOption
from server.http.body import json_object
from server.http.replies import json_reply
from server.routes.callers import CallerOf, tell
from server.services import ServicesOf

__all__ = ["router"]

router = APIRouter(tags=["tokens"])

_SECRET = {"Cache-Control": "no-store"}


@router.get("/v1/tokens")
async def list_tokens(services: ServicesOf) -> Response:
    """Every token, revoked ones too; no secrets, as nobody keeps them."""
    return json_reply({"tokens": await services.tokens.all()})


@router.post("/v1/tokens")
async def make_token(services: ServicesOf, caller: CallerOf, request: Request) -> Response:
    """A new token, `{"name": N, "scopes": ["infer"]}`; its `secret` is in this reply alone."""
    told, secret = await services.tokens.create(await json_object(request), caller)
    tell(request, told["name"])
    return json_reply({**told, "secret": secret}, 201, _SECRET)


@router.delete("/v1/tokens/{name}")
async def revoke_token(services: ServicesOf, name: str) -> Response:
    """It counts no more from now on; on other servers of the registry within two seconds."""
    await services.tokens.revoke(name)
    return json_reply({"name": name, "state": "revoked"})


@router.post("/v1/login-links")
async def make_link(services: ServicesOf, caller: CallerOf) -> Response:
    """Where a browser logs in once, within ten minutes, as the token that asks: below the server's root."""
    if services.tokens.is_open:
        return json_reply({"path": "", "expires_s": None}, 201, _SECRET)
    made = services.access.sessions.link_of(caller)
    if made is None:
        raise BadOption("this token counts no more")
    return json_reply({"path": f"login?link={made}", "expires_s": 600}, 201, _SECRET)
