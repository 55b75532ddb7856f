"""All pages; a new one adds its router here."""

from __future__ import annotations

from fastapi import APIRouter

from server.dashboard import asset_routes, function_page, live_routes, models, overview, sql_page

__all__ = ["router"]

router = APIRouter()
for _page in (asset_routes, live_routes, overview, function_page, models, sql_page):
    router.include_router(_page.router)
