"""Templates → HTML, every value escaped. Pure but for the templates, which are read once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from server.dashboard.assets import Assets
from server.dashboard.figures import FILTERS
from server.version import VERSION

__all__ = ["Renderer", "url_from"]


class Renderer:
    """Renders the templates of this package. Threads may share it."""

    def __init__(self, assets: Assets) -> None:
        self._assets = assets
        self._environment = Environment(
            loader=PackageLoader(__package__),
            autoescape=True,
            undefined=StrictUndefined,  # a misspelt name fails a test, and is no empty cell
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._environment.filters.update(FILTERS)
        self._environment.globals["version"] = VERSION

    def render(self, template: str, base: str, **values: Any) -> str:  # noqa: ANN401  # as templates want them
        """base: from the page to the server's root, "./" or "../…"."""
        url = url_from(base)

        def asset(name: str) -> str:
            return url(self._assets.path(name))

        return self._environment.get_template(template).render(url=url, asset=asset, **values)


def url_from(base: str) -> Callable[..., str]:
    """Relative URLs: a server behind a proxy may stand below any prefix, and does not know it."""

    def url(path: str = "") -> str:
        return base + path

    return url
