"""Whether the server lives, whether it is ready, and its metrics."""

from __future__ import annotations

from fastapi import APIRouter, Response

from server.observability.metrics import CONTENT_TYPE
from server.services import ServicesOf

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


@router.get("/metrics")
def metrics(services: ServicesOf) -> Response:
    """Prometheus text format."""
    return Response(services.exposition.render(), headers={"Content-Type": CONTENT_TYPE})
