"""A browser logs in once, is who its token is, and is nobody again the moment that the token is revoked."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.browser.accessibility import barriers
from tests.browser.prefix_proxy import PREFIX, below_a_prefix
from tests.browser.watch import LOOKS, Look, Watch, picture
from tests.inference_server import InferenceServer, inference_server
from tests.models import hashing_model

ADMIN = "an-admins-token-0123456789"
FUNCTION = "udf_text"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InferenceServer]:
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "token").write_text(ADMIN)
    flags = [f"--token-file={folder / 'token'}"]
    with inference_server(folder / "home", flags=flags) as running:
        api(running, "POST", "/register", {"directory": str(hashing_model(folder, "text_hash"))})
        api(running, "PUT", f"/v1/functions/{FUNCTION}", {"models": ["text_hash"]})
        yield running


@pytest.fixture
def make_token(server: InferenceServer, request: pytest.FixtureRequest) -> Callable[..., str]:
    """Makes a token of this name; answers its secret."""

    def make(name: str, *scopes: str) -> str:
        return str(api(server, "POST", "/v1/tokens", {"name": name, "scopes": list(scopes)})["secret"])

    return make


def api(server: InferenceServer, method: str, path: str, body: object = None, token: str = ADMIN) -> Any:
    """What a program gets; JSON."""
    headers = {"Authorization": f"Bearer {token}"}
    reply = httpx.request(method, f"{server.url}{path}", json=body, headers=headers, timeout=60)
    assert reply.status_code < 300, reply.text
    return reply.json()


def log_in(watch: Watch, url: str, token: str = ADMIN) -> Page:
    """Type it."""
    watch.page.goto(f"{url}/login")
    watch.page.get_by_label("Token").fill(token)
    watch.page.get_by_role("button", name="Log in").click()
    return watch.page


@pytest.mark.parametrize("look", LOOKS, ids=str)
def test_who_is_not_logged_in_is_asked_and_comes_back_to_the_page(
    look_at: Callable[..., Watch], server: InferenceServer, look: Look
) -> None:
    watch = look_at(look)
    page = watch.page
    page.goto(f"{server.url}/functions/{FUNCTION}")
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    assert FUNCTION not in page.locator("main").inner_text()
    assert barriers(page) == []
    page.get_by_label("Token").fill(ADMIN)
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text(FUNCTION)
    assert page.url == f"{server.url}/functions/{FUNCTION}"
    assert ADMIN not in page.content()


def test_it_works_below_a_prefix(look_at: Callable[..., Watch], server: InferenceServer) -> None:
    with below_a_prefix(server.port) as url:
        watch = look_at()
        watch.page.goto(f"{url}/functions/{FUNCTION}")
        watch.page.get_by_label("Token").fill(ADMIN)
        watch.page.keyboard.press("Enter")
        expect(watch.page.locator("h1")).to_have_text(FUNCTION)
        assert watch.page.url == f"{url}/functions/{FUNCTION}"
        (cookie,) = watch.page.context.cookies()
        assert cookie.get("path") == PREFIX


@pytest.mark.security
def test_the_cookie_is_no_scripts_and_no_other_sites_and_never_the_token(
    look_at: Callable[..., Watch], server: InferenceServer
) -> None:
    page = log_in(look_at(), server.url)
    expect(page.locator("h1")).to_have_text("Overview")
    (cookie,) = page.context.cookies()
    assert (cookie.get("httpOnly"), cookie.get("path")) == (True, "/")
    assert cookie.get("sameSite") in ("Lax", "Strict")
    assert ADMIN not in str(cookie)
    assert page.evaluate("document.cookie") == ""
    assert page.evaluate("JSON.stringify({...localStorage, ...sessionStorage})") == "{}"


@pytest.mark.security
def test_a_cookie_that_was_there_before_is_not_what_one_is_logged_in_by(
    look_at: Callable[..., Watch], server: InferenceServer
) -> None:
    first = log_in(look_at(), server.url)
    expect(first.locator("h1")).to_have_text("Overview")
    (known,) = first.context.cookies()
    watch = look_at()
    watch.page.context.add_cookies(
        [{"name": str(known.get("name")), "value": "fixed.by-somebody", "url": server.url}]
    )
    page = log_in(watch, server.url)
    expect(page.locator("h1")).to_have_text("Overview")
    (cookie,) = page.context.cookies()
    assert cookie.get("value") not in ("fixed.by-somebody", known.get("value"))


@pytest.mark.security
@pytest.mark.parametrize(
    "wanted",
    [
        "//evil.example/x",
        "https://evil.example",
        "https:evil.example",
        "/\\evil.example",
        "\\\\evil.example",
        "%2f%2fevil.example",
        "javascript:alert(1)",
        "./../..//evil.example",
        "\t//evil.example",
        "x\r\nLocation: https://evil.example",
    ],
)
def test_a_login_leads_to_no_other_place_than_this_server(
    look_at: Callable[..., Watch], server: InferenceServer, wanted: str
) -> None:
    watch = look_at()
    watch.allow(".*", 404)
    watch.page.goto(f"{server.url}/login?{httpx.QueryParams({'next': wanted})}")
    watch.page.get_by_label("Token").fill(ADMIN)
    watch.page.get_by_role("button", name="Log in").click()
    watch.page.wait_for_url(lambda url: not url.startswith(f"{server.url}/login"))
    assert watch.page.url.startswith(f"{server.url}/")
    assert all(url.startswith(f"{server.url}/") for url in watch.requested)


def test_a_link_logs_in_once(look_at: Callable[..., Watch], server: InferenceServer) -> None:
    link = str(api(server, "POST", "/v1/login-links")["path"]).lstrip("/")
    page = look_at().page
    page.goto(f"{server.url}/{link}")
    expect(page.locator("h1")).to_have_text("Overview")
    assert "link" not in page.url
    second = look_at()
    second.allow("/login", 401)
    second.page.goto(f"{server.url}/{link}")
    expect(second.page.get_by_role("alert")).to_contain_text("followed before")


def test_a_wrong_token_is_said_to_be_wrong(look_at: Callable[..., Watch], server: InferenceServer) -> None:
    watch = look_at()
    watch.allow("/login", 401)
    page = log_in(watch, server.url, "mludf_of-another-server")
    expect(page.get_by_role("alert")).to_contain_text("no token of this server")
    assert page.context.cookies() == []


def test_who_may_only_read_sees_no_button_that_changes(
    look_at: Callable[..., Watch], server: InferenceServer, make_token: Callable[..., str]
) -> None:
    secret = make_token("reader", "read")
    watch = look_at()
    page = log_in(watch, server.url, secret)
    page.goto(f"{server.url}/functions/{FUNCTION}")
    expect(page.locator("h1")).to_have_text(FUNCTION)
    assert page.get_by_role("button", name=re.compile("Roll back|Ask")).count() == 0
    page.goto(f"{server.url}/who")
    assert page.get_by_role("button", name=re.compile("Make|Revoke")).count() == 0
    watch.allow("/datasets/food", 403)
    page.goto(f"{server.url}/datasets/food")
    expect(page.locator("main")).to_contain_text("train")
    assert barriers(page) == []


def test_a_token_is_made_and_revoked_on_its_page(
    look_at: Callable[..., Watch], server: InferenceServer, tmp_path: Path
) -> None:
    """And what was open with it closes at once: its page, and its stream."""
    watch = look_at()
    watch.say_yes()
    page = log_in(watch, server.url)
    page.goto(f"{server.url}/who")
    page.get_by_label("Name", exact=True).fill("guest")
    page.get_by_role("checkbox", name="read").check()
    page.get_by_role("button", name=re.compile("Make")).click()
    secret = page.locator("#secret").inner_text()
    assert barriers(page) == []
    page.goto(f"{server.url}/who")
    assert secret not in page.content(), "it is shown once"

    guest = look_at()
    theirs = log_in(guest, server.url, secret)
    expect(theirs.locator("#link-state")).to_have_text("live")
    guest.allow("/live.*", 401)
    guest.allow("/live.*", 0)
    page.get_by_role("button", name="Revoke guest").click()
    expect(theirs.get_by_role("heading", name="Log in")).to_be_visible()
    assert (
        httpx.get(f"{server.url}/v1/functions", headers={"Authorization": f"Bearer {secret}"}).status_code
        == 401
    )
    assert secret not in server.log
    for file in server.home.glob("*.db*"):
        assert secret.encode() not in file.read_bytes()


def test_a_caller_who_was_refused_stands_in_the_audit_trail(
    look_at: Callable[..., Watch], server: InferenceServer, make_token: Callable[..., str]
) -> None:
    secret = make_token("asker", "infer")
    refused = httpx.get(f"{server.url}/v1/models", headers={"Authorization": f"Bearer {secret}"})
    assert refused.status_code == 403
    page = log_in(look_at(), server.url)
    expect(page.locator("h1")).to_have_text("Overview")
    page.goto(f"{server.url}/who")
    page.get_by_label("Outcome").select_option("refused")
    page.get_by_role("button", name="Show", exact=True).click()
    told = page.get_by_role("region", name="Audit trail, as a table")
    expect(told.locator("tbody tr", has_text="asker").first).to_contain_text("refused (403)")
    assert barriers(page) == []
    picture(page, "who-refused", LOOKS[0])


@pytest.mark.parametrize("look", LOOKS, ids=str)
def test_its_owner_shares_a_function_on_its_page_and_others_see_no_form(
    look_at: Callable[..., Watch], server: InferenceServer, make_token: Callable[..., str], look: Look
) -> None:
    name, owner, other = f"udf_shared_{look}".replace("-", "_"), f"owner-{look}", f"other-{look}"
    secrets = {each: make_token(each, "infer", "deploy") for each in (owner, other)}
    api(server, "PUT", f"/v1/functions/{name}", {"models": ["text_hash"]}, secrets[owner])
    watch = look_at(look)
    page = log_in(watch, server.url, secrets[owner])
    expect(page.locator("h1")).to_have_text("Overview")
    page.goto(f"{server.url}/functions/{name}")
    region = page.get_by_role("region", name="Whose it is, and who sees it")
    expect(region).to_contain_text(owner)
    region.get_by_text("Share it", exact=True).click()
    assert barriers(page) == []
    picture(page, "function-sharing", look)
    page.get_by_label("Seen by").select_option("shared")
    page.get_by_label("Shared with").fill(other)
    region.get_by_role("button", name="Save").click()
    expect(region.locator("dd").nth(1)).to_have_text("shared")
    assert page.get_by_label("Owner").count() == 0, "admins give things away"

    theirs = look_at(look)
    page_of_theirs = log_in(theirs, server.url, secrets[other])
    expect(page_of_theirs.locator("h1")).to_have_text("Overview")
    page_of_theirs.goto(f"{server.url}/functions/{name}")
    expect(page_of_theirs.get_by_role("region", name="Whose it is")).to_contain_text("shared")
    assert page_of_theirs.get_by_text("Share it", exact=True).count() == 0

    region.get_by_text("Share it", exact=True).click()
    page.get_by_label("Seen by").select_option("private")
    region.get_by_role("button", name="Save").click()
    expect(region.locator("dd").nth(1)).to_have_text("private")
    theirs.allow(f"/functions/{name}", 404)
    page_of_theirs.reload()
    expect(page_of_theirs.get_by_role("heading", name="Not here")).to_be_visible()


def test_an_admin_gives_a_model_to_somebody_without_scripts_too(
    look_at: Callable[..., Watch], server: InferenceServer, make_token: Callable[..., str]
) -> None:
    make_token("heir", "deploy")
    page = log_in(look_at(scripts=False), server.url)
    page.goto(f"{server.url}/models/text_hash")
    page.get_by_text("Share it", exact=True).click()
    page.get_by_label("Owner").fill("heir")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("region", name="Whose it is").locator("dd").first).to_have_text("heir")
    told = api(server, "GET", "/v1/models")["models"]
    assert {each["owner"] for each in told if each["name"] == "text_hash"} == {"heir"}


def test_a_link_of_another_token_asks_before_it_takes_ones_place(
    look_at: Callable[..., Watch], server: InferenceServer, make_token: Callable[..., str]
) -> None:
    secret = make_token("visitor", "read")
    link = str(api(server, "POST", "/v1/login-links", token=secret)["path"]).lstrip("/")
    watch = look_at()
    page = log_in(watch, server.url)
    expect(page.locator("h1")).to_have_text("Overview")
    page.goto(f"{server.url}/{link}")
    expect(page.get_by_role("heading", name="Log in as visitor?")).to_be_visible()
    assert barriers(page) == []
    picture(page, "login-as", LOOKS[0])
    page.get_by_role("link", name="Stay admin").click()
    expect(page.locator(".tools .who")).to_have_text("admin")
    page.goto(f"{server.url}/{link}")
    page.get_by_role("button", name="Log in as visitor").click()
    expect(page.locator(".tools .who")).to_have_text("visitor")


@pytest.mark.security
def test_a_token_that_may_not_read_logs_nobody_in(
    look_at: Callable[..., Watch], server: InferenceServer, make_token: Callable[..., str]
) -> None:
    watch = look_at()
    watch.allow("/login", 403)
    page = log_in(watch, server.url, make_token("blind", "infer"))
    expect(page.locator("main")).to_contain_text("scope read")
    assert page.context.cookies() == []
