"""`/sql`: what to paste into psql, DuckDB and pandas, with this server's own address in it."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from server.dashboard.page_context import PageOf
from server.dashboard.page_route import PageRoute
from server.dashboard.sql_view import connecting, of_function

__all__ = ["router"]

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/sql")
async def show_sql(page: PageOf, request: Request) -> Response:
    """The page."""
    functions = page.functions()
    host = request.headers.get("host", "127.0.0.1")
    return await page.reply(
        "sql.html",
        connecting=connecting(
            f"{request.url.scheme}://{host}",
            with_token=bool(page.caller.token),
            function=functions[0] if functions else None,
        ),
        functions=[(each, of_function(each)) for each in functions],
    )
