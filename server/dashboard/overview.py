"""`/`: how the server does now."""

from __future__ import annotations

from dataclasses import replace

from fastapi import APIRouter, Response
from markupsafe import Markup

from server.dashboard.live_reply import live_reply
from server.dashboard.overview_charts import Span, charts_of
from server.dashboard.overview_view import OverviewView, overview_of, worker_lines
from server.dashboard.page_context import Page, PageOf
from server.dashboard.page_route import PageRoute
from server.observability.history import DAY, HOUR
from server.placement.places import seen_places

__all__ = ["router"]

router = APIRouter(route_class=PageRoute, include_in_schema=False)

_PARTS = {
    "state": "overview/state.html",
    "now": "overview/now.html",
    "functions": "overview/functions.html",
    "errors": "overview/errors.html",
    "workers": "overview/workers.html",
    "history": "overview/history.html",
}
_SPANS = {
    HOUR.name: (HOUR, Span("hour", HOUR.slot_s)),
    DAY.name: (DAY, Span("day", DAY.slot_s)),
}


@router.get("/")
async def show_overview(page: PageOf, span: str = HOUR.name) -> Response:
    """The page."""
    span = span if span in _SPANS else HOUR.name
    return await page.reply(
        "overview.html",
        view=_view(page, span),
        span=span,
        spans=[drawn for _, drawn in _SPANS.values()],
        live=f"live/overview?span={span}",
        bulk_jobs=page.services.bulk.listed(page.caller),
    )


@router.get("/live/overview")
async def watch_overview(page: PageOf, span: str = HOUR.name) -> Response:
    """Its parts, whenever they change."""
    page, span = page.seen_from("./"), span if span in _SPANS else HOUR.name
    return live_reply(page, ("overview", page.sight, span), lambda: _view(page, span), _PARTS)


def _view(page: Page, span: str) -> OverviewView:
    services = page.services
    functions = page.functions()
    ready = {
        each.name
        for each in functions
        if services.catalog.is_loaded(each.name) and services.is_resident(each)
    }
    places = seen_places(services.residency.places(), page.view.sees_key)
    workers = worker_lines((*services.workforce.states(), *services.remote.states()), places)
    if not page.sees_all:  # how a worker ended may name what was on it
        workers = [replace(worker, last_error="") for worker in workers]
    ring, drawn = _SPANS[span]
    names = [each.name for each in functions]

    def charts() -> list[Markup]:
        goals_s = [each.slo_ms / 1000 for each in functions]
        return charts_of(slots, drawn, names, goals_s, sees_all=page.sees_all)

    slots = services.history.last(ring)
    stamp = (services.history.changes, tuple(names), page.sees_all)
    return overview_of(
        services.recorder.recent(),
        functions,
        ready,
        workers,
        lambda: page.dashboard.kept(("overview", page.sight, span), stamp, charts),
        sees_all=page.sees_all,
        changes=[
            one if page.sees_all else replace(one, reason="", by="", error="")
            for one in services.timeline.last()
            if not one.model or page.view.sees_key(one.model)
        ],
    )
