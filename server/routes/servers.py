"""`/v1/servers`: the servers that share the registry, and which of them does what only one may do."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from fastapi import APIRouter, Response

from server.catalog.lease import Holding, SeenServer
from server.http.replies import json_reply
from server.services import ServicesOf

__all__ = ["router"]

router = APIRouter(tags=["workers"])

_SILENT_S = 15.0  # each says every five seconds that it lives


@router.get("/v1/servers")
async def list_servers(services: ServicesOf) -> Response:
    """Those of the last hour: `state` is leading, standby or gone. `here`: the one that answers."""
    seen, held, now_s = await asyncio.to_thread(services.lease.servers)
    mine = services.lease.server
    return json_reply(
        {
            "here": mine.name,
            "servers": [
                {
                    "name": each.name,
                    "version": each.version,
                    "state": _state(each, held, now_s),
                    "started_at": _at(each.started_s),
                    "seen_at": _at(each.seen_s),
                }
                for each in seen
            ],
        }
    )


def _state(server: SeenServer, held: Holding, now_s: float) -> str:
    if held.holder == server.id and now_s < held.until_s:
        return "leading"
    return "gone" if now_s - server.seen_s > _SILENT_S else "standby"


def _at(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="seconds")
