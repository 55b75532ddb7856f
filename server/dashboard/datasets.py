"""`/datasets/D`: what stands in a dataset, its pictures, what is confused in it; refresh and train."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Form, Request, Response
from starlette.responses import RedirectResponse

from server.catalog.functions import Function
from server.catalog.jobs import Look, Snapshot
from server.dashboard.live_reply import live_reply
from server.dashboard.page_context import Page, PageOf
from server.dashboard.page_route import PageRoute
from server.dashboard.security import PAGE_HEADERS
from server.dashboard.sharing import sharing_of
from server.dashboard.thumbnails import LARGE, SMALL
from server.dashboard.training_view import ConfusionView, confusion_view, dataset_view
from server.errors import UnknownFunction
from server.routes.callers import tell
from server.training.datasets.contents import rows_of
from server.training.recipes import recipe_for

__all__ = ["live", "router"]

router = APIRouter(prefix="/datasets/{name}", route_class=PageRoute, include_in_schema=False)
live = APIRouter(route_class=PageRoute, include_in_schema=False)

_PICTURE_HEADERS = {**PAGE_HEADERS, "Cache-Control": "private, max-age=300"}
_SHOWN_WRONG = 60


@router.get("")
async def show_dataset(page: PageOf, name: str) -> Response:
    """Its roles, its classes with examples, its snapshots and looks at test rows."""
    snapshot = await _seen(page, name)
    datasets = page.services.datasets
    contents = await page.dashboard.contents.of(datasets, snapshot)
    snapshots, looks = await datasets.snapshots(name), await datasets.looks(name)
    view = dataset_view(snapshot, contents, snapshots, _seen_looks(page, looks), page.functions())
    return await page.reply("dataset.html", view=view, sharing=sharing_of(page, "dataset", name))


@router.post("/refresh")
async def refresh_dataset(page: PageOf, name: str) -> Response:
    """Run its query again, as the token's holder."""
    await _seen(page, name)
    await page.services.datasets.refresh(name, None, page.caller.key, page.view)
    return _to(page, f"datasets/{quote(name, safe='')}")


@router.post("/train")
async def train_on_dataset(
    page: PageOf,
    request: Request,
    name: str,
    budget: Annotated[str, Form()] = "5 minutes",
    metric: Annotated[str, Form()] = "",
) -> Response:
    """Begin a job on its newest snapshot."""
    await _seen(page, name)
    form = {"dataset": name, "budget": budget, **({"metric": metric} if metric else {})}
    job = await page.services.training.start(form, page.view)
    tell(request, f"{job.dataset} job {job.id}")
    return _to(page, f"jobs/{job.id}")


@router.get("/pictures/{snapshot}/{row}")
async def send_picture(page: PageOf, name: str, snapshot: str, row: int, size: str = "") -> Response:
    """A small picture of the photo that a row of a snapshot names. size: "large" = to be looked at alone."""
    known = await _seen(page, name, snapshot)
    if not recipe_for(known.spec["task"]).pictures:
        raise UnknownFunction(f"the rows of dataset {name!r} are no pictures")
    found = await asyncio.to_thread(rows_of, page.services.datasets.file_of(known), [row])
    if not found:
        raise UnknownFunction(f"snapshot {snapshot} of dataset {name!r} has no row {row}")
    made = await page.dashboard.thumbnails.of(
        found[0].input, page.media_folders(), LARGE if size == "large" else SMALL
    )
    return Response(made, headers=_PICTURE_HEADERS, media_type="image/jpeg")


@router.get("/confusion")
async def show_confusion(
    page: PageOf, name: str, function: str, truth: str | None = None, answer: str | None = None
) -> Response:
    """What a function answers to its test rows, if it was asked; behind a cell the rows."""
    snapshot = await _seen(page, name)
    view = await _confusion(page, snapshot, _function(page, function), truth, answer)
    return await page.reply("confusion.html", view=view)


@router.post("/confusion")
async def ask_confusion(page: PageOf, name: str, function: Annotated[str, Form()]) -> Response:
    """Ask the function for the test rows; the page shows how far that is."""
    snapshot = await _seen(page, name)
    known = _function(page, function)
    page.dashboard.confusions.begin(page.services, known, snapshot, page.view)
    return _to(page, f"datasets/{quote(name, safe='')}/confusion?{urlencode({'function': function})}")


@live.get("/live/datasets/{name}/confusion/{function}")
async def watch_confusion(page: PageOf, name: str, function: str) -> Response:
    """How far the asking is."""
    snapshot, known = await _seen(page, name), _function(page, function)
    page = page.seen_from("../../")
    key = ("confusion", name, snapshot.id, known.key, page.sight)
    parts = {"confusion": "training/confusion.html"}
    return live_reply(page, key, lambda: _confusion(page, snapshot, known, None, None), parts)


async def _confusion(
    page: Page, snapshot: Snapshot, function: Function, truth: str | None, answer: str | None
) -> ConfusionView:
    told = page.dashboard.confusions.get(function, snapshot, page.view)
    behind = [] if told is None or not told.is_over else told.behind(truth, answer)
    numbers = [each.number for each in behind[:_SHOWN_WRONG]]
    rows = await asyncio.to_thread(rows_of, page.services.datasets.file_of(snapshot), numbers)
    path = f"{page.base}datasets/{quote(snapshot.dataset, safe='')}/confusion"

    def href(truth: str, answer: str) -> str:
        return f"{path}?{urlencode({'function': function.name, 'truth': truth, 'answer': answer})}#rows"

    return confusion_view(snapshot, function, told, (truth, answer), behind, rows, href)


async def _seen(page: Page, name: str, snapshot: str | None = None) -> Snapshot:
    """A dataset's snapshot, the newest unless one is named. Raises `UnknownFunction`."""
    newest = await page.dataset(name)
    return newest if snapshot is None else await page.services.datasets.snapshot(name, snapshot)


def _seen_looks(page: Page, looks: Sequence[Look]) -> list[Look]:
    """Without the names of functions that the caller does not see."""
    seen = page.seen
    return [
        look
        if look.function is None or seen.sees(look.function)
        else replace(look, function=None, version=None)
        for look in looks
    ]


def _function(page: Page, name: str) -> Function:
    found = next((each for each in page.functions() if each.name == name), None)
    if found is None:
        raise UnknownFunction(f"there is no function {name!r} here")
    return found


def _to(page: Page, path: str) -> Response:
    return RedirectResponse(page.base + path, 303, PAGE_HEADERS)
