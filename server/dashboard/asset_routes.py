"""`/assets`: what pages are made of beside their text."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from server.dashboard.dashboard import Dashboard
from server.dashboard.security import ASSET_HEADERS, PAGE_HEADERS

__all__ = ["router"]

router = APIRouter(include_in_schema=False)


async def _dashboard(request: Request) -> Dashboard:
    dashboard: Dashboard = request.state.dashboard
    return dashboard


DashboardOf = Annotated[Dashboard, Depends(_dashboard)]


@router.get("/assets/{digest}/{name}")
async def send_asset(dashboard: DashboardOf, digest: str, name: str) -> Response:
    """One file; under a digest of another version there is nothing, so that nobody keeps it as that."""
    asset = dashboard.assets.get(name) if digest == dashboard.assets.digest else None
    if asset is None:
        return Response("not here; load the page again\n", 404, PAGE_HEADERS, "text/plain")
    return Response(asset.content, headers=ASSET_HEADERS, media_type=asset.media_type)


@router.get("/favicon.ico")
async def send_icon(dashboard: DashboardOf) -> Response:
    """Browsers ask for it by themselves."""
    icon = dashboard.assets.get("icon.svg")
    assert icon is not None
    return Response(icon.content, headers=PAGE_HEADERS, media_type=icon.media_type)
