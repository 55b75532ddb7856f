"""`/`: how the server does now."""

from __future__ import annotations

from fastapi import APIRouter, Response

from server.dashboard.live_reply import live_reply
from server.dashboard.overview_view import OverviewView, overview_of, worker_lines
from server.dashboard.page_context import Page, PageOf
from server.dashboard.page_route import PageRoute

__all__ = ["router"]

router = APIRouter(route_class=PageRoute, include_in_schema=False)

_PARTS = {
    "state": "overview/state.html",
    "now": "overview/now.html",
    "functions": "overview/functions.html",
    "errors": "overview/errors.html",
    "workers": "overview/workers.html",
}


@router.get("/")
async def show_overview(page: PageOf) -> Response:
    """The page."""
    return await page.reply("overview.html", view=_view(page))


@router.get("/live/overview")
async def watch_overview(page: PageOf) -> Response:
    """Its parts, whenever they change."""
    page = page.seen_from("./")
    return live_reply(page, ("overview", page.sight), lambda: _view(page), _PARTS)


def _view(page: Page) -> OverviewView:
    services = page.services
    functions = page.functions()
    ready = {
        each.name
        for each in functions
        if services.catalog.is_loaded(each.name) and services.residency.is_resident(each.members)
    }
    workers = worker_lines((*services.pool.states(), *services.remote.states()), services.residency.places())
    return overview_of(services.recorder.recent(), functions, ready, workers, sees_all=page.sees_all)
