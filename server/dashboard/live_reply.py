"""A stream of a page's parts, as a reply."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from starlette.responses import Response, StreamingResponse

from server.dashboard.live import ViewOf
from server.dashboard.page_context import Page
from server.dashboard.security import PAGE_HEADERS

__all__ = ["live_reply"]

_HEADERS = {**PAGE_HEADERS, "X-Accel-Buffering": "no"}  # a proxy that gathers would hold them back


def live_reply(
    page: Page, key: Hashable, view_of: ViewOf, parts: Mapping[str, str], *, every: int = 1
) -> Response:
    """Server-sent events, as long as the caller is logged in; see `Live.watch`.

    parts: by the id of an element, the template of its content.
    """
    told = page.dashboard.live.watch((key, page.base), view_of, page.parts(parts), every=every)
    told = page.services.tokens.endings.stream(page.caller, told)
    return StreamingResponse(told, media_type="text/event-stream", headers=_HEADERS)
