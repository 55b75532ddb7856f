"""What axe-core finds in a page. Its script comes in a package; the page's own policy stays in force."""

from __future__ import annotations

import json
from importlib.resources import files

from playwright.sync_api import Page

__all__ = ["barriers"]

_AXE = (files("axe_playwright_python") / "axe.min.js").read_text()
_RUN = "outside => axe.run({exclude: outside}, {resultTypes: ['violations']})"
_GRAVE = ("serious", "critical")


def barriers(page: Page, *, outside: tuple[str, ...] = ()) -> list[str]:
    """What is serious or critical, each with its place. outside: selectors of what is not ours."""
    page.evaluate(_AXE)  # by the debugger, which no policy of contents keeps out
    found = page.evaluate(_RUN, [[selector] for selector in outside])
    return [
        f"{violation['id']}: {violation['help']} at {json.dumps(node['target'])}: {node['html'][:160]}"
        for violation in found["violations"]
        if violation["impact"] in _GRAVE
        for node in violation["nodes"]
    ]
