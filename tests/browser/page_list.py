"""The server's pages, by the routes of its own rules: a new one that nobody looks at fails a test."""

from __future__ import annotations

from tests.browser.kitchen import Kitchen

__all__ = ["PAGES", "address_of"]

# By the route: the page's name, under which its pictures lie, and an address of it.
PAGES: dict[str, tuple[str, str]] = {
    "/": ("overview", ""),
    "/functions": ("functions", "functions"),
    "/functions/{name}": ("function", "functions/udf_food"),
    "/sql": ("sql", "sql"),
    "/models": ("models", "models"),
    "/models/{name}": ("model", "models/food_resnet"),
    "/training": ("training", "training"),
    "/jobs/{job}": ("job", "jobs/{job}"),
    "/datasets/{name}": ("dataset", "datasets/food"),
    "/datasets/{name}/confusion": ("confusion", "datasets/food/confusion?function=udf_food"),
    "/who": ("who", "who"),
    "/docs": ("docs", "docs"),
}


def address_of(route: str, kitchen: Kitchen) -> str:
    """Below the server's root."""
    return PAGES[route][1].format(job=kitchen.job)
