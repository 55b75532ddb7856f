"""Logging in, making a token, seeing it once, revoking it, logging out: in front of a real browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from playwright.sync_api import expect

from ml_udf.client import Client
from ml_udf.tokens import TokenCalls
from tests.browser.accessibility import barriers
from tests.browser.watch import LOOKS, Look, Watch, picture
from tests.inference_server import InferenceServer, inference_server

WIDER_THAN_ITSELF = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
pytestmark = pytest.mark.security


class Site:
    """A server that wants tokens, and its admin's."""

    def __init__(self, server: InferenceServer) -> None:
        self.url = server.url
        with closing(Client(server.url)) as client:
            self.admin = str(TokenCalls(client).create("root", ["admin"])["secret"])

    def revoke(self, name: str) -> None:
        with closing(Client(self.url, token=self.admin)) as client:
            TokenCalls(client).revoke(name)

    def make(self, name: str, *scopes: str) -> str:
        with closing(Client(self.url, token=self.admin)) as client:
            return str(TokenCalls(client).create(name, scopes)["secret"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with inference_server(tmp_path_factory.mktemp("home")) as server:
        yield Site(server)


def log_in(watch: Watch, site: Site, token: str, page: str = "") -> None:
    watch.page.goto(f"{site.url}/{page}")
    watch.page.get_by_label("Token", exact=True).fill(token)
    watch.page.get_by_role("button", name="Log in").click()


@pytest.mark.parametrize("look", LOOKS, ids=str)
def test_a_person_logs_in_makes_a_token_and_revokes_it(
    look_at: Callable[..., Watch], site: Site, look: Look
) -> None:
    watch = look_at(look)
    page = watch.page
    page.goto(f"{site.url}/who")
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    assert barriers(page) == []
    picture(page, "login", look)
    watch.allow("/login", 401)
    page.get_by_label("Token", exact=True).fill("mludf_wrong")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_contain_text("no token of this server")
    page.get_by_label("Token", exact=True).fill(site.admin)
    page.get_by_role("button", name="Log in").click()
    expect(page).to_have_url(f"{site.url}/who")
    name = f"shop-{look}"
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_label("infer", exact=True).check()
    page.get_by_label("Expires", exact=True).fill("90d")
    page.get_by_role("button", name="Make it").click()
    secret = page.locator("#secret").inner_text()
    assert secret.startswith("mludf_")
    assert barriers(page) == []
    picture(page, "who-made", look)
    page.goto(f"{site.url}/who")
    assert secret not in page.content()
    picture(page, "who-admin", look)
    assert not page.evaluate(WIDER_THAN_ITSELF)
    assert barriers(page) == []
    watch.say_yes()
    page.get_by_role("button", name=f"Revoke {name}").click()
    expect(page.get_by_role("button", name=f"Revoke {name}")).to_have_count(0)
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    page.goto(f"{site.url}/who")
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()


def test_without_scripts_it_works_as_well(look_at: Callable[..., Watch], site: Site) -> None:
    watch = look_at(scripts=False)
    log_in(watch, site, site.admin, "who")
    watch.page.get_by_label("Name", exact=True).fill("plain")
    watch.page.get_by_label("read", exact=True).check()
    watch.page.get_by_role("button", name="Make it").click()
    assert watch.page.locator("#secret").inner_text().startswith("mludf_")
    watch.page.goto(f"{site.url}/who")
    watch.page.get_by_role("button", name="Revoke plain").click()
    expect(watch.page.get_by_role("button", name="Revoke plain")).to_have_count(0)


def test_a_refused_person_gets_a_page(look_at: Callable[..., Watch], site: Site) -> None:
    watch = look_at()
    log_in(watch, site, site.make("reader", "read"))
    expect(watch.page.get_by_role("heading", name="Overview")).to_be_visible()
    watch.allow("/nothing", 404)
    watch.page.goto(f"{site.url}/nothing")
    expect(watch.page.get_by_role("heading", name="Not here")).to_be_visible()
    assert barriers(watch.page) == []


def test_who_looks_at_a_live_page_is_sent_to_log_in_once_the_token_is_revoked(
    look_at: Callable[..., Watch], site: Site
) -> None:
    watch = look_at()
    log_in(watch, site, site.make("looker", "read"))
    expect(watch.page.locator("#link-state")).to_have_text("live")
    watch.allow("/live/overview", 401)
    site.revoke("looker")
    expect(watch.page.locator("#link-state")).not_to_have_text("live", timeout=60_000)
    watch.page.reload()
    expect(watch.page.get_by_role("heading", name="Log in")).to_be_visible()
