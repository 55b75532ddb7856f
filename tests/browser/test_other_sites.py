"""A page of somebody else's, in a browser that reaches this server: it sees nothing and changes nothing.

It stands on another port of the same host (cookies know no ports), or under another name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import httpx
import pytest
from playwright.sync_api import Response, expect

from server.access.rules import RULES
from tests.browser.other_site import OtherSite, other_site
from tests.browser.watch import Watch
from tests.inference_server import InferenceServer, inference_server
from tests.models import hashing_model

pytestmark = pytest.mark.security

TOKEN = "an-admins-token-0123456789"
WITH_TOKEN = {"Authorization": f"Bearer {TOKEN}"}
FUNCTION = "udf_text"
POSTED = sorted({re.sub(r"{[^}]*}", FUNCTION, path) for method, path in RULES if method == "POST"})
# Routes that a form of somebody else's might be sent to, with its fields.
FORMS = {
    f"/v1/functions/{FUNCTION}/rollback": "",
    f"/functions/{FUNCTION}/rollback": "",
    "/who/tokens": '<input name="name" value="evil"><input name="scopes" value="admin">',
    "/login": f'<input name="token" value="{TOKEN}">',  # to make somebody be somebody else
    "/logout": "",
}
READ = ("/", "/who", "/models", "/live", "/v1/functions", "/metrics", "/v1/jobs", "/openapi.json")
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


LISTEN = """url => new Promise(heard => {
  const source = new EventSource(url, {withCredentials: true});
  source.onmessage = () => heard("a message");
  source.onerror = () => heard("nothing");
})"""


@pytest.fixture(scope="module", params=["open", "guarded"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[InferenceServer]:
    """Without a token whoever reaches it may do everything; with one, who is logged in as an admin."""
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "token").write_text(TOKEN)
    flags = [f"--token-file={folder / 'token'}"] if request.param == "guarded" else []
    with inference_server(folder / "home", flags=flags) as running:
        for name in ("first", "second"):
            made = hashing_model(folder, name)
            change(running, "POST", "/register", {"directory": str(made)})
            change(running, "PUT", f"/v1/functions/{FUNCTION}", {"models": [name]})
        yield running


@pytest.fixture
def victim(look_at: Callable[..., Watch], server: InferenceServer) -> Watch:
    """A browser whose person may do everything on the server."""
    watch: Watch = look_at()
    watch.page.goto(f"{server.url}/who")
    if watch.page.locator("input#token").count():
        watch.page.fill("input#token", TOKEN)
        watch.page.keyboard.press("Enter")
    expect(watch.page.locator("h1")).to_have_text("Who")
    return watch


@pytest.fixture
def site() -> Iterator[OtherSite]:
    with other_site() as running:
        yield running


@pytest.fixture(params=["same_site", "cross_site"])
def elsewhere(request: pytest.FixtureRequest, site: OtherSite) -> str:
    return str(getattr(site, request.param))


def change(server: InferenceServer, method: str, path: str, body: object) -> None:
    httpx.request(method, f"{server.url}{path}", json=body, headers=WITH_TOKEN, timeout=60).raise_for_status()


def state(server: InferenceServer) -> object:
    """All that somebody else could have changed."""
    listed = ("functions", "models", "jobs")
    found = [httpx.get(f"{server.url}/v1/{what}", headers=WITH_TOKEN).json() for what in listed]
    tokens = httpx.get(f"{server.url}/v1/tokens", headers=WITH_TOKEN).json()["tokens"]
    return [*found, [each["name"] for each in tokens]]


@pytest.mark.parametrize("content_type", [None, "text/plain", "application/x-www-form-urlencoded"])
def test_it_posts_to_no_route(
    victim: Watch, server: InferenceServer, elsewhere: str, content_type: str | None
) -> None:
    before = state(server)
    for status in (401, 403):
        victim.allow(".*", status)
    victim.page.goto(elsewhere)
    answered: dict[str, int] = {}

    def note(reply: Response) -> None:
        answered[reply.url] = reply.status

    victim.page.on("response", note)
    victim.page.evaluate(POST_ALL, [server.url, POSTED, content_type])
    assert set(answered) == {f"{server.url}{path}" for path in POSTED}
    assert set(answered.values()) <= {401, 403}
    assert state(server) == before


def test_it_reads_nothing(victim: Watch, server: InferenceServer, elsewhere: str) -> None:
    victim.page.goto(elsewhere)
    got = victim.page.evaluate(READ_ALL, [server.url, READ])
    assert victim.page.evaluate(LISTEN, f"{server.url}/live/overview") == "nothing"
    victim.faults.clear()  # the browser's own words about each
    assert got == [""] * 2 * len(READ)


def test_what_a_browser_asks_leave_for_is_not_granted(
    victim: Watch, server: InferenceServer, elsewhere: str
) -> None:
    before = state(server)
    victim.page.goto(elsewhere)
    got = victim.page.evaluate(CHANGE_ALL, [server.url, f"/v1/functions/{FUNCTION}"])
    victim.faults.clear()
    assert got == ["refused"] * 3
    assert state(server) == before


@pytest.mark.parametrize("path", FORMS)
def test_its_forms_change_nothing(
    victim: Watch, server: InferenceServer, site: OtherSite, elsewhere: str, path: str
) -> None:
    before, cookies = state(server), victim.page.context.cookies()
    for status in (401, 403):
        victim.allow(path, status)
    form = f'<form method="post" action="{server.url}{path}">{FORMS[path]}<button>win</button></form>'
    site.pages["/form"] = form
    victim.page.goto(f"{elsewhere}/form")
    with victim.page.expect_response(f"{server.url}{path}") as reply:
        victim.page.click("button")
    assert reply.value.status in (401, 403)
    assert state(server) == before
    assert victim.page.context.cookies() == cookies


@pytest.mark.parametrize("path", ["/docs", f"/functions/{FUNCTION}", "/who"])
def test_it_shows_no_page_of_ours_in_a_frame_of_its_own(
    victim: Watch, server: InferenceServer, site: OtherSite, elsewhere: str, path: str
) -> None:
    site.pages["/frame"] = f'<title>bait</title><iframe src="{server.url}{path}"></iframe>'
    victim.page.goto(f"{elsewhere}/frame")
    victim.page.wait_for_load_state("networkidle")
    (frame,) = victim.page.frames[1:]
    assert frame.locator("main").count() == 0
    assert any("frame-ancestors" in fault for fault in victim.faults)
    victim.faults.clear()


@pytest.mark.parametrize("csrf", ["", "wrong", "a" * 64])
def test_a_form_that_is_no_page_s_of_the_session_changes_nothing(
    victim: Watch, server: InferenceServer, csrf: str
) -> None:
    """Sent from the server's own origin, as where something else is served beside it."""
    before = state(server)
    victim.allow(".*", 403)
    post = "async ([url, csrf]) => (await fetch(url, {method: 'POST', headers: {'X-CSRF': csrf}})).status"
    assert victim.page.evaluate(post, [f"/functions/{FUNCTION}/rollback", csrf]) == 403
    assert state(server) == before


def test_a_page_of_our_own_may_do_what_its_person_may(victim: Watch, server: InferenceServer) -> None:
    victim.say_yes()
    victim.page.goto(f"{server.url}/functions/{FUNCTION}")
    before = state(server)
    victim.page.get_by_role("button", name="Roll back").click()
    victim.page.wait_for_url(lambda url: url.endswith("#versions"))
    assert state(server) != before
