"""Whether the server lives, whether it is ready, and its metrics."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Response

from server.compiled.finder import chosen_core
from server.http.replies import json_reply
from server.observability.metrics import CONTENT_TYPE
from server.services import SeenOf, ServicesOf

__all__ = ["router"]

router = APIRouter(tags=["health"])


@router.get("/v2/health/live")
async def live() -> Response:
    """The process answers."""
    return Response()


@router.get("/v2/health/ready")
async def ready(services: ServicesOf) -> Response:
    """Rows would be answered now."""
    return Response(status_code=200 if services.ready() else 503)


@router.get("/v1/front")
async def front(services: ServicesOf) -> Response:
    """What reads the connections, keeps answers, and decides: in Python or not, each with its reason.

    `answer_store`: null where no answers are kept.
    """
    store = services.answer_store
    told = None if store is None else {"name": store.name, "why": store.why}
    core = chosen_core()
    return json_reply(
        {
            "front": services.front.name,
            "why": services.front.why,
            "answer_store": told,
            "core": {"name": core.name, "why": core.why},
        }
    )


@router.get("/metrics")
async def metrics(services: ServicesOf, seen: SeenOf) -> Response:
    """Prometheus text format: of what the caller sees, and of the whole where that is everything."""
    sees = None
    if not seen.is_whole():
        sees = {name for (name, _), _ in services.metrics.items() if seen.sees(name)}.__contains__
    shown = await asyncio.to_thread(services.exposition.look().text, sees)
    return Response(shown, headers={"Content-Type": CONTENT_TYPE})
