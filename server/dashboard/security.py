"""The headers of pages, and of what they load; see `server.http.page_headers`."""

from __future__ import annotations

from collections.abc import Mapping

from server.http.page_headers import page_headers

__all__ = ["ASSET_HEADERS", "PAGE_HEADERS"]

_HEADERS = page_headers(images="'self' data: blob:")  # a photo that is tried is shown from where it is

PAGE_HEADERS: Mapping[str, str] = {**_HEADERS, "Cache-Control": "no-store"}
ASSET_HEADERS: Mapping[str, str] = {
    **_HEADERS,
    "Cache-Control": "public, max-age=31536000, immutable",
}
