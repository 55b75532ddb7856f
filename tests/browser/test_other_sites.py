"""A page of somebody else's, in a browser that reaches this server: it sees nothing and changes nothing.

It stands on another port of the same host (cookies know no ports), or under another name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import httpx
import pytest
from playwright.sync_api import Response

from server.access.rules import RULES
from tests.browser.other_site import OtherSite, other_site
from tests.browser.watch import Watch
from tests.inference_server import InferenceServer, inference_server
from tests.models import hashing_model

pytestmark = pytest.mark.security

FUNCTION = "udf_text"
POSTED = sorted({re.sub(r"{[^}]*}", FUNCTION, path) for method, path in RULES if method == "POST"})
READ = ("/v1/functions", "/metrics", "/v1/jobs", "/openapi.json")
# As programs send it: nothing that makes a browser ask first.
POST_ALL = """async ([url, paths, type]) => {
  for (const path of paths) {
    const body = type === null ? undefined : new Blob(['{"models": ["second"]}'], {type});
    try { await fetch(url + path, {method: "POST", mode: "no-cors", credentials: "include", body}); }
    catch (error) {}
  }
}"""
READ_ALL = """async ([url, paths]) => {
  const got = [];
  for (const path of paths) {
    for (const mode of ["cors", "no-cors"]) {
      try { got.push(await (await fetch(url + path, {mode, credentials: "include"})).text()); }
      catch (error) { got.push(""); }
    }
  }
  return got;
}"""
CHANGE_ALL = """async ([url, path]) => {
  const got = [];
  for (const [method, type] of [["PUT", "application/json"], ["DELETE", "text/plain"],
                                ["POST", "application/json"]]) {
    const init = {method, headers: {"Content-Type": type}, body: "{}", credentials: "include"};
    try { got.push((await fetch(url + path, init)).status); } catch (error) { got.push("refused"); }
  }
  return got;
}"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InferenceServer]:
    """Without a token: whoever reaches it may do everything."""
    folder = tmp_path_factory.mktemp("open")
    with inference_server(folder / "home") as running:
        for name in ("first", "second"):
            running.deploy(hashing_model(folder, name), FUNCTION)
        yield running


@pytest.fixture
def site() -> Iterator[OtherSite]:
    with other_site() as running:
        yield running


@pytest.fixture(params=["same_site", "cross_site"])
def elsewhere(request: pytest.FixtureRequest, site: OtherSite) -> str:
    return str(getattr(site, request.param))


def state(server: InferenceServer) -> object:
    return [httpx.get(f"{server.url}/v1/{what}").json() for what in ("functions", "models", "jobs")]


@pytest.mark.parametrize("content_type", [None, "text/plain", "application/x-www-form-urlencoded"])
def test_it_posts_to_no_route(
    look_at: Callable[..., Watch], server: InferenceServer, elsewhere: str, content_type: str | None
) -> None:
    before = state(server)
    watch = look_at()
    watch.allow(".*", 403)
    watch.page.goto(elsewhere)
    answered: dict[str, int] = {}

    def note(reply: Response) -> None:
        answered[reply.url] = reply.status

    watch.page.on("response", note)
    watch.page.evaluate(POST_ALL, [server.url, POSTED, content_type])
    assert answered == {f"{server.url}{path}": 403 for path in POSTED}
    assert state(server) == before


def test_it_reads_nothing(look_at: Callable[..., Watch], server: InferenceServer, elsewhere: str) -> None:
    watch = look_at()
    watch.page.goto(elsewhere)
    got = watch.page.evaluate(READ_ALL, [server.url, READ])
    watch.faults.clear()  # the browser's own words about each
    assert got == [""] * 2 * len(READ)


def test_what_a_browser_asks_leave_for_is_not_granted(
    look_at: Callable[..., Watch], server: InferenceServer, elsewhere: str
) -> None:
    before = state(server)
    watch = look_at()
    watch.page.goto(elsewhere)
    got = watch.page.evaluate(CHANGE_ALL, [server.url, f"/v1/functions/{FUNCTION}"])
    watch.faults.clear()
    assert got == ["refused"] * 3
    assert state(server) == before


def test_its_form_rolls_nothing_back(
    look_at: Callable[..., Watch], server: InferenceServer, site: OtherSite, elsewhere: str
) -> None:
    before = state(server)
    path = f"/v1/functions/{FUNCTION}/rollback"
    site.pages["/form"] = f'<form method="post" action="{server.url}{path}"><button>win</button></form>'
    watch = look_at()
    watch.allow(path, 403)
    watch.page.goto(f"{elsewhere}/form")
    with watch.page.expect_response(f"{server.url}{path}") as reply:
        watch.page.click("button")
    assert reply.value.status == 403
    assert state(server) == before


def test_it_shows_no_page_of_ours_in_a_frame_of_its_own(
    look_at: Callable[..., Watch], server: InferenceServer, site: OtherSite, elsewhere: str
) -> None:
    site.pages["/frame"] = f'<title>bait</title><iframe src="{server.url}/docs"></iframe>'
    watch = look_at()
    watch.page.goto(f"{elsewhere}/frame")
    watch.page.wait_for_load_state("networkidle")
    (frame,) = watch.page.frames[1:]
    assert frame.locator("#swagger-ui").count() == 0
    assert any("frame-ancestors" in fault for fault in watch.faults)
    watch.faults.clear()


def test_a_page_of_our_own_may_do_what_a_program_may(
    look_at: Callable[..., Watch], server: InferenceServer
) -> None:
    watch = look_at()
    watch.page.goto(f"{server.url}/docs")
    roll_back = "async path => (await fetch(path, {method: 'POST'})).status"
    assert watch.page.evaluate(roll_back, f"v1/functions/{FUNCTION}/rollback") == 200
