"""Every page, as it is looked at: light and dark, wide and narrow, below a prefix, and without scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import expect

from server.access.rules import RULES
from tests.browser.accessibility import barriers
from tests.browser.kitchen import Kitchen
from tests.browser.page_list import PAGES, address_of
from tests.browser.prefix_proxy import below_a_prefix
from tests.browser.watch import EVERY_LOOK, Look, Watch, picture

# What pages are made of, by the beginning of its path; and logging in, where nobody needs to.
NO_PAGES = ("/live", "/docs/", "/openapi.json", "/datasets/{name}/pictures/", "/login")
NOT_OURS = ("#swagger-ui",)
OURS = [route for route in PAGES if route != "/docs"]  # which is all script
HEADING = "h1, .swagger-ui .title"
LINKS = "all => all.map(one => new URL(one.getAttribute('href'), document.baseURI).href)"  # SVG has links too
WIDER_THAN_ITSELF = "document.documentElement.scrollWidth > document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def prefixed(kitchen: Kitchen) -> Iterator[str]:
    with below_a_prefix(kitchen.server.port) as url:
        yield url


def show(watch: Watch, url: str) -> None:
    """Open a page, and wait until it is live if it says that it will be."""
    reply = watch.page.goto(url)
    assert reply is not None
    assert reply.status == 200
    if watch.page.locator("body[data-live]").count():
        expect(watch.page.locator("#link-state")).to_have_text("live")
    expect(watch.page.locator(HEADING).first).to_be_visible(timeout=30_000)  # of /docs, scripts make it


def test_every_page_of_the_server_is_looked_at() -> None:
    found = {path for (method, path), rule in RULES.items() if method == "GET" and rule.is_page}
    assert {path for path in found if not path.startswith(NO_PAGES)} == set(PAGES)


@pytest.mark.parametrize("look", EVERY_LOOK, ids=str)
@pytest.mark.parametrize("route", PAGES)
def test_a_page_shows_itself_without_a_fault(
    glance_at: Callable[..., Watch], kitchen: Kitchen, route: str, look: Look
) -> None:
    watch = glance_at(look)
    show(watch, f"{kitchen.url}/{address_of(route, kitchen)}")
    picture(watch.page, PAGES[route][0], look)
    assert not watch.page.evaluate(WIDER_THAN_ITSELF), "it is scrolled sideways"
    assert watch.page.title()
    assert watch.page.locator(HEADING).count() == 1
    assert barriers(watch.page, outside=NOT_OURS) == []


@pytest.mark.parametrize("route", PAGES)
def test_a_page_works_below_a_prefix(
    glance_at: Callable[..., Watch], kitchen: Kitchen, prefixed: str, route: str
) -> None:
    watch = glance_at()
    show(watch, f"{prefixed}/{address_of(route, kitchen)}")
    assert all(url.startswith(f"{prefixed}/") for url in watch.requested)
    links = watch.page.locator("a[href]").evaluate_all(LINKS)
    assert links
    assert all(link.startswith(f"{prefixed}/") for link in links)


@pytest.mark.parametrize("route", OURS)
def test_a_page_says_the_same_without_scripts(
    glance_at: Callable[..., Watch], kitchen: Kitchen, route: str
) -> None:
    plain, live = glance_at(scripts=False), glance_at()
    address = f"{kitchen.url}/{address_of(route, kitchen)}"
    for watch in (plain, live):
        watch.page.goto(address)
    headings = [watch.page.locator("h1, h2, h3").all_inner_texts() for watch in (plain, live)]
    assert headings[0] == headings[1] != []
