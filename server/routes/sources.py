"""`/v1/sources`: the databases that datasets may be read from, as the operator named them."""

from __future__ import annotations

from fastapi import APIRouter, Response

from server.http.replies import json_reply
from server.services import ServicesOf, ViewOf

__all__ = ["router"]

router = APIRouter(prefix="/v1/sources", tags=["datasets"])


@router.get("")
async def list_sources(services: ServicesOf, view: ViewOf) -> Response:
    """Each connection, the database roles that may use it, and what is wrong with it; never its DSN."""
    return json_reply({"sources": await services.datasets.sources(view)})
