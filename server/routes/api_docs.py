"""The REST interface as a page: Swagger UI, whose files come with a package, under the policy of our pages.

Every address is relative, so that the page works below a prefix too.
"""

from __future__ import annotations

from importlib.resources import files

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, HTMLResponse, Response

from server.http.page_headers import page_headers

__all__ = ["router"]

router = APIRouter(include_in_schema=False)

_PACKAGE = "fastapi_offline"
_FILES = {
    "swagger-ui.css": "text/css",
    "swagger-ui-bundle.js": "text/javascript",
    "favicon.png": "image/png",
}
_HEADERS = page_headers(images="'self' data:")  # its style sheet holds its icons
_KEPT = {**_HEADERS, "Cache-Control": "private, max-age=3600"}

_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>REST interface · ml_udf</title>
<link rel="icon" href="docs/favicon.png">
<link rel="stylesheet" href="docs/swagger-ui.css">
<script src="docs/swagger-ui-bundle.js" defer></script>
<script src="docs/start.js" defer></script>
</head>
<body>
<main id="swagger-ui">
<noscript>Without scripts: <a href="openapi.json">the description as JSON</a>.</noscript>
</main>
</body>
</html>
"""
_START = """\
const dark = matchMedia("(prefers-color-scheme: dark)");
const wear = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
dark.addEventListener("change", wear);
wear();
SwaggerUIBundle({ url: "openapi.json", dom_id: "#swagger-ui", deepLinking: true, validatorUrl: null });
"""


@router.get("/docs", response_class=HTMLResponse)
async def page() -> Response:
    """The page."""
    return HTMLResponse(_PAGE, headers=_HEADERS)


@router.get("/docs/start.js")
async def start() -> Response:
    """The script that fills the page."""
    return Response(_START, headers=_KEPT, media_type="text/javascript")


@router.get("/docs/{file}")
async def part(file: str) -> Response:
    """A file of Swagger UI's own."""
    if file not in _FILES:
        raise HTTPException(404)
    return FileResponse(str(files(_PACKAGE) / "static" / file), headers=_KEPT, media_type=_FILES[file])
