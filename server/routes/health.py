"""Whether the server lives, whether it is ready, and its metrics."""

from __future__ import annotations

from fastapi import APIRouter, Response

from server.compiled.finder import chosen_core
from server.http.replies import json_reply
from server.observability.metrics import CONTENT_TYPE
from server.services import SeenOf, ServicesOf

__all__ = ["router"]

router = APIRouter(tags=["health"])


@router.get("/v2/health/live")
def live() -> Response:
    """The process answers."""
    return Response()


@router.get("/v2/health/ready")
def ready(services: ServicesOf) -> Response:
    """Rows would be answered now."""
    return Response(status_code=200 if services.ready() else 503)


@router.get("/v1/front")
def front(services: ServicesOf) -> Response:
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
def metrics(services: ServicesOf, seen: SeenOf) -> Response:
    """Prometheus text format: of what the caller sees, and of the whole where that is everything."""
    shown = services.exposition.render(None if seen.is_whole() else seen.sees)
    return Response(shown, headers={"Content-Type": CONTENT_TYPE})
