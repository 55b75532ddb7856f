"""`/live`: whether the server is there, asked by pages that lost it."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from server.dashboard.page_context import PageOf
from server.dashboard.security import PAGE_HEADERS

__all__ = ["router"]

router = APIRouter(include_in_schema=False)


@router.get("/live")
async def greet(page: PageOf) -> Response:
    """Which life of the server this is."""
    return JSONResponse({"run": page.dashboard.run}, headers=PAGE_HEADERS)
