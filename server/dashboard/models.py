"""`/models`: what there is to run, where it is, what has moved; and the card of one model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from fastapi import APIRouter, Response

from server.catalog.functions import ModelVersion, forms_of
from server.dashboard.live_reply import live_reply
from server.dashboard.models_view import LatencyCurve, ModelsView, model_card, models_of
from server.dashboard.page_context import Page, PageOf
from server.dashboard.page_route import PageRoute
from server.dashboard.sharing import sharing_of
from server.dashboard.variants_view import variant_lines
from server.errors import UnknownFunction
from server.observability.moves import seen_moves
from server.placement.places import seen_places

__all__ = ["router"]

router = APIRouter(route_class=PageRoute, include_in_schema=False)

_PARTS = {"models": "models/list.html", "moves": "models/moves.html"}
_EVERY = 3  # ticks


@router.get("/models")
async def show_models(page: PageOf) -> Response:
    """Every model that the caller sees."""
    return await page.reply("models.html", view=_view(page))


@router.get("/live/models")
async def watch_models(page: PageOf) -> Response:
    """The list and the timeline, whenever they change."""
    page = page.seen_from("./")
    return live_reply(page, ("models", page.sight), lambda: _view(page), _PARTS, every=_EVERY)


@router.get("/models/{name}")
async def show_model(page: PageOf, name: str) -> Response:
    """One model."""
    versions = [model for model in page.models() if model.name == name]
    if not versions:
        raise UnknownFunction(f"there is no model {name!r} here")
    file_bytes = await asyncio.to_thread(_file_bytes, versions)
    services = page.services
    view = model_card(
        versions,
        page.functions(),
        seen_places(services.residency.places(), page.view.sees_key),
        services.remote.resident(),
        seen_moves(services.metrics.moves.last(), page.view.sees_key),
        {model.key: _learned(page, model) for model in versions},
        {model.key: services.remote.reason(model) for model in versions},
        file_bytes,
        time.time(),
    )
    variants = {
        model.version: variant_lines(services.variants.of(model.name, model.version)) for model in versions
    }
    return await page.reply(
        "model.html", view=view, variants=variants, sharing=sharing_of(page, "model", name)
    )


def _view(page: Page) -> ModelsView:
    services = page.services
    return models_of(
        page.models(),
        page.functions(),
        seen_places(services.residency.places(), page.view.sees_key),
        services.remote.resident(),
        seen_moves(services.metrics.moves.last(), page.view.sees_key),
        time.time(),
    )


def _learned(page: Page, model: ModelVersion) -> list[LatencyCurve]:
    forms = forms_of(model.task, model.input.form)
    learned = page.services.latencies(model).learned()
    return [
        LatencyCurve(device, form, tuple(points))
        for (device, form), points in sorted(learned.items())
        if form in forms and points
    ]


def _file_bytes(models: Sequence[ModelVersion]) -> dict[str, dict[str, int]]:
    """By version and file; those that are not there are left out. Blocking."""
    found: dict[str, dict[str, int]] = {}
    for model in models:
        sizes = found.setdefault(model.key, {})
        for file in model.files:
            try:
                sizes[file.name] = (model.directory / file.name).stat().st_size
            except OSError:
                continue
    return found
