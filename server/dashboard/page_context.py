"""What every page is given: who looks at it, what they may do, and how it is answered.

async def show(page: PageOf) -> Response:
    return await page.reply("name.html", view=view_of(page.services.…))
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from fastapi import Depends, Request, Response
from starlette.responses import HTMLResponse

from server.access.caller import NOBODY, Caller, Kind
from server.access.seen_catalog import SeenCatalog
from server.access.view import View, common_folders
from server.catalog.functions import Function, ModelVersion
from server.catalog.jobs import Snapshot
from server.dashboard.browser_session import check_csrf, session_of
from server.dashboard.dashboard import Dashboard
from server.dashboard.navigation import NAVIGATION
from server.dashboard.security import PAGE_HEADERS
from server.services import Services

__all__ = ["Page", "PageOf", "base_of", "page_of"]


@dataclass(frozen=True, slots=True)
class Page:
    """One request for a page.

    base: from the page to the server's root · csrf: what every change made from the page must bring along, in
    the field `csrf` of a form or in the header `X-CSRF` · is_part: a script asks for a part of the page alone
    """

    services: Services
    dashboard: Dashboard
    caller: Caller
    csrf: str
    base: str
    path: str
    is_part: bool = False

    @property
    def may_deploy(self) -> bool:
        """Whether the page shows what changes functions and models."""
        return self.caller.may("deploy")

    @property
    def may_infer(self) -> bool:
        """Whether the page lets functions be tried."""
        return self.caller.may("infer")

    @property
    def may_train(self) -> bool:
        """Whether the page shows datasets, and what begins and ends jobs."""
        return self.caller.may("train")

    @property
    def view(self) -> View:
        """What the caller sees."""
        return self.services.views.of(self.caller)

    @property
    def seen(self) -> SeenCatalog:
        """The catalog as the caller sees it."""
        return self.services.seen_by(self.view)

    @property
    def sees_all(self) -> bool:
        """Whether the caller sees everything that there is: sums over all then tell them nothing new."""
        return self.seen.is_whole()

    @property
    def sight(self) -> Hashable:
        """What the caller sees: pages of those who see the same are alike."""
        return self.caller.token

    def functions(self) -> list[Function]:
        """The functions that the caller sees, by name, in their current versions."""
        return [served[-1] for served in self.seen.functions()]

    def models(self) -> list[ModelVersion]:
        """The model versions that the caller sees, by name and version."""
        return self.seen.models()

    def sees(self, kind: Kind, name: str) -> bool:
        """Whether a thing exists for the caller."""
        return self.view.sees(kind, name)

    def bare_models(self) -> list[Function]:
        """The models that the caller sees as they answer by themselves, each in its newest version."""
        return list({each.name: each for each in self.seen if each.bare}.values())

    def function(self, name: str) -> Function:
        """A function or model of that name, if the caller sees it. Raises `UnknownFunction`."""
        return self.seen.versions(name)[-1]

    async def datasets(self) -> list[Snapshot]:
        """The datasets that the caller sees."""
        return await self.services.datasets.all(self.view)

    async def dataset(self, name: str) -> Snapshot:
        """A dataset of that name, if the caller sees it. Raises `UnknownFunction`."""
        return await self.services.datasets.newest(name, self.view)

    def media_folders(self) -> list[str]:
        """The folders below which the caller's pictures lie, resolved."""
        roots = [os.path.realpath(root) for root in self.services.settings.media_root]
        return list(common_folders(roots, self.view.media_roots) or ())

    def seen_from(self, base: str) -> Page:
        """The same for parts of a page that stands elsewhere: their links start from there."""
        return replace(self, base=base)

    async def reply(self, template: str, status: int = 200, **values: Any) -> Response:  # noqa: ANN401  # as templates want them
        """The page as a reply; it is rendered in a thread, beside the event loop."""
        return HTMLResponse(await asyncio.to_thread(self.html, template, **values), status, PAGE_HEADERS)

    def html(self, template: str, **values: Any) -> str:  # noqa: ANN401  # as above
        """A template's text. Takes milliseconds: not for the event loop."""
        return self.dashboard.renderer.render(
            template,
            self.base,
            page=self,
            caller=self.caller,
            csrf=self.csrf,
            navigation=NAVIGATION,
            run=self.dashboard.run,
            **values,
        )

    def parts(self, templates: Mapping[str, str]) -> Callable[[Any], Mapping[str, str]]:
        """What `Live.watch` renders of a view: by the id of an element, the template that is its content.

        Others may be sent the same text: it holds no form, and nothing that is this caller's alone.
        """
        shared = replace(self, csrf="", caller=NOBODY)
        return lambda view: {id: shared.html(template, view=view) for id, template in templates.items()}


def page_of(request: Request) -> Page:
    """The page that a request asks for."""
    session = session_of(request)
    return Page(
        request.state.services,
        request.state.dashboard,
        request.scope["ml_udf.caller"],
        "" if session is None else session.csrf,
        base_of(request.scope["raw_path"]),
        request.url.path,
        request.headers.get("x-part") == "1",
    )


def base_of(raw_path: bytes) -> str:
    """From a path, as the browser has it, to the root: "./" from `/`, "../" from `/functions/f`."""
    return "../" * (raw_path.count(b"/") - 1) or "./"


async def checked_page_of(request: Request) -> Page:
    """The dependency of every page. What changes something must show that a page of ours sent it.

    Raises `Forbidden`.
    """
    await check_csrf(request)
    return page_of(request)


PageOf = Annotated[Page, Depends(checked_page_of)]
