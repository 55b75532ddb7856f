"""All pages; a new one adds its router here."""

from __future__ import annotations

from fastapi import APIRouter

from server.dashboard import (
    asset_routes,
    datasets,
    function_page,
    jobs,
    live_routes,
    login,
    models,
    overview,
    sharing,
    sql_page,
    training,
    who,
)

__all__ = ["router"]

router = APIRouter()
for _page in (
    asset_routes,
    live_routes,
    login,
    overview,
    function_page,
    models,
    training,
    who,
    datasets,
    jobs,
    sharing,
    sql_page,
):
    router.include_router(_page.router)
for _page_of_one in (datasets, jobs):
    router.include_router(_page_of_one.live)
