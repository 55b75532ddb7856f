"""`POST /functions/F/share`, and alike for models and datasets: who sees a thing, and whose it is."""

from __future__ import annotations

from urllib.parse import quote

from fastapi import APIRouter, Request, Response
from starlette.responses import RedirectResponse

from server.access.caller import Kind
from server.dashboard.page_context import Page, PageOf
from server.dashboard.page_route import PageRoute
from server.dashboard.security import PAGE_HEADERS
from server.dashboard.sharing_view import SharingView, asked_sharing, sharing_view

__all__ = ["router", "sharing_of"]

router = APIRouter(route_class=PageRoute, include_in_schema=False)


def sharing_of(page: Page, kind: Kind, name: str) -> SharingView | None:
    """What the page of a thing shows of this; None where there are no tokens to share it with."""
    if page.services.tokens.is_open:
        return None
    return sharing_view(page.view, kind, name, may=page.may_train if kind == "dataset" else page.may_deploy)


@router.post("/functions/{name}/share")
async def share_function(page: PageOf, name: str, request: Request) -> Response:
    """Raises `UnknownFunction`, and as `Ownership.share`."""
    page.seen.check_function(name)
    return await _share(page, "function", name, request)


@router.post("/models/{name}/share")
async def share_model(page: PageOf, name: str, request: Request) -> Response:
    """In all its versions. Raises as the others."""
    page.seen.model(name)
    return await _share(page, "model", name, request)


@router.post("/datasets/{name}/share")
async def share_dataset(page: PageOf, name: str, request: Request) -> Response:
    """And its jobs. Raises as the others."""
    await page.dataset(name)
    return await _share(page, "dataset", name, request)


async def _share(page: Page, kind: Kind, name: str, request: Request) -> Response:
    form = await request.form(max_files=0, max_fields=10)
    known = sharing_view(page.view, kind, name, may=True)
    await page.services.ownership.share(page.view, kind, name, asked_sharing(form, known))
    where = f"{kind}s/{quote(name, safe='')}#sharing"
    return RedirectResponse(page.base + where, 303, PAGE_HEADERS)
