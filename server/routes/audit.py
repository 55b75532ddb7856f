"""`/v1/audit`: who changed what, and who was refused."""

from __future__ import annotations

from fastapi import APIRouter, Response

from server.errors import BadOption
from server.http.replies import json_reply
from server.services import ServicesOf

__all__ = ["router"]

router = APIRouter(tags=["tokens"])

_PAGE = 1_000


@router.get("/v1/audit")
async def list_audit(
    services: ServicesOf,
    before: int | None = None,
    limit: int = _PAGE,
    token: str = "",
    action: str = "",
    outcome: str = "",
) -> Response:
    """What was done on all servers of the registry, the newest first; `next`: `before` of the next page."""
    if not 1 <= limit <= _PAGE:
        raise BadOption(f"'limit' must be from 1 to {_PAGE}, not {limit}")
    found = await services.audit.page(before, limit, token, action, outcome)
    more = found[-1]["id"] if len(found) == limit else None
    return json_reply({"audit": found, "next": more})
