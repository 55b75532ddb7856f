"""Browsers: logging in and out, what a change must bring along, and what errors look like."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from server.access.rules import RULES
from tests.browser.prefix_proxy import below_a_prefix
from tests.inference_server import InferenceServer, inference_server
from tests.waiting import wait_until

pytestmark = pytest.mark.security

HTML = {"Accept": "text/html,application/xhtml+xml"}
SAME = {"Sec-Fetch-Site": "same-origin"}
CHANGES = [path for (method, path), rule in RULES.items() if rule.is_page and method == "POST"]
NOBODY_YET = {"/login"}  # who posts there has no session: the browser says that it is a page of ours


class Site:
    """A server with an admin's token, and a browser in front of it."""

    def __init__(self, server: InferenceServer) -> None:
        self.server = server
        self.admin = self.make("root", None, ["admin"])

    def make(self, name: str, token: str | None, scopes: list[str], **form: Any) -> str:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        body = {"name": name, "scopes": scopes, **form}
        reply = httpx.post(self.server.url + "/v1/tokens", headers=headers, json=body, timeout=60)
        assert reply.status_code == 201, reply.text
        return str(reply.json()["secret"])

    @contextlib.contextmanager
    def browser(self, token: str | None = None) -> Iterator[httpx.Client]:
        """One that is logged in with a token, if one is given."""
        with httpx.Client(base_url=self.server.url, headers=HTML, timeout=60) as client:
            if token is not None:
                reply = client.post("/login", data={"token": token}, headers=SAME)
                assert reply.status_code == 303, reply.text
            yield client


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with inference_server(tmp_path_factory.mktemp("login") / "home") as server:
        yield Site(server)


def csrf_of(client: httpx.Client, path: str = "/who") -> str:
    found = re.search('<meta name="csrf" content="([^"]+)">', client.get(path).text)
    assert found is not None
    return found[1]


def test_who_is_not_logged_in_is_sent_to_log_in_and_back(site: Site) -> None:
    with site.browser() as client:
        asked = client.get("/functions/udf_x")
        assert (asked.status_code, asked.headers["location"]) == (303, "../login?next=functions/udf_x")
        form = client.get("/login?next=who")
        assert form.status_code == 200
        assert "script-src 'self'" in form.headers["content-security-policy"]
        reply = client.post("/login", data={"token": site.admin, "next": "who"}, headers=SAME)
        assert (reply.status_code, reply.headers["location"]) == (303, "./who")
        assert client.get("/who").status_code == 200
        assert client.get("/").status_code == 200
    with httpx.Client(base_url=site.server.url) as program:
        assert program.get("/who").status_code == 401


def test_the_cookie_is_no_scripts_and_no_other_sites(site: Site) -> None:
    with site.browser() as client:
        reply = client.post("/login", data={"token": site.admin}, headers=SAME)
        cookie = reply.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=lax" in cookie
        assert f"max-age={30 * 24 * 3600}" in cookie
        assert "secure" not in cookie
        assert site.admin.lower() not in cookie
        by_tls = {**SAME, "Origin": "https://ml.example"}
        reply = client.post("/login", data={"token": site.admin}, headers=by_tls)
        assert "; secure" in reply.headers["set-cookie"].lower()
        brief = site.make("brief", site.admin, ["read"], expires="1h")
        reply = client.post("/login", data={"token": brief}, headers=SAME)
        age = re.search("max-age=([0-9]+)", reply.headers["set-cookie"].lower())
        assert age is not None
        assert 0 < int(age[1]) <= 3600


def test_the_cookie_is_sent_below_the_servers_root_alone(site: Site) -> None:
    with below_a_prefix(site.server.port) as url, httpx.Client(headers=HTML, timeout=60) as client:
        prefix = urlsplit(url).path
        assert client.post(f"{url}/login", data={"token": site.admin}, headers=SAME).status_code == 303
        assert [cookie.path for cookie in client.cookies.jar] == [prefix]
        assert client.get(f"{url}/who").status_code == 200


@pytest.mark.parametrize(
    "wanted",
    [
        "//evil.example",
        "/\\evil.example",
        "https://evil.example",
        "javascript:alert(1)",
        "\\\\evil.example",
        "../../x",
        "a\r\nSet-Cookie: x=y",
        "@evil.example",
        "data:text/html,x",
    ],
)
def test_a_login_leads_to_a_page_of_ours_alone(site: Site, wanted: str) -> None:
    with site.browser() as client:
        reply = client.post("/login", data={"token": site.admin, "next": wanted}, headers=SAME)
        there = httpx.URL(f"{site.server.url}/login").join(reply.headers["location"])
        assert (there.scheme, there.host, there.port) == ("http", "127.0.0.1", site.server.port)
        assert reply.headers["location"].startswith("./")
        assert "x=y" not in reply.headers.get("set-cookie", "")


def test_a_link_logs_in_once(site: Site) -> None:
    reader = site.make("linked", site.admin, ["read"])
    headers = {"Authorization": f"Bearer {reader}"}
    made = httpx.post(site.server.url + "/v1/login-links", headers=headers, timeout=60).json()
    with site.browser() as client:
        reply = client.get("/" + made["path"])
        assert reply.status_code == 303
        assert "linked" in client.get("/who").text
        assert client.get("/who").text.count("Make a token") == 0
    with site.browser() as client:
        again = client.get("/" + made["path"])
        assert again.status_code == 401
        assert "ml-udf login" in again.text
        assert parse_qs(urlsplit(made["path"]).query)["link"][0] not in again.text


def test_a_link_asks_who_is_somebody_else_or_comes_from_another_site(site: Site) -> None:
    reader = site.make("other", site.admin, ["read"])

    def link(token: str) -> str:
        headers = {"Authorization": f"Bearer {token}"}
        made = httpx.post(site.server.url + "/v1/login-links", headers=headers, timeout=60).json()
        return "/" + str(made["path"])

    there = link(reader)
    with site.browser(site.admin) as client:
        asked = client.get(there + "&next=sql")
        assert asked.status_code == 200
        assert "Log in as other?" in asked.text
        assert "logged in as root" in client.get("/who").text
        code = parse_qs(urlsplit(there).query)["link"][0]
        form = {"link": code, "next": "sql"}
        refused = client.post("/login", data=form, headers={"Sec-Fetch-Site": "cross-site"})
        assert refused.status_code == 403
        reply = client.post("/login", data=form, headers=SAME)
        assert (reply.status_code, reply.headers["location"]) == (303, "./sql")
        assert "logged in as other" in client.get("/who").text
        assert client.post("/login", data=form, headers=SAME).status_code == 401
        # Who is that already is not asked.
        assert client.get(link(reader)).status_code == 303
    with site.browser() as client:
        there = link(reader)
        assert "Log in as other?" in client.get(there, headers={"Sec-Fetch-Site": "cross-site"}).text
        assert client.get(there, headers={"Sec-Fetch-Site": "none"}).status_code == 303


def test_a_session_outlives_the_server_and_ends_with_its_token(site: Site) -> None:
    reader = site.make("session", site.admin, ["read"])
    with site.browser(reader) as client:
        site.server.stop()
        site.server.start()
        assert client.get("/who").status_code == 200
        headers = {"Authorization": f"Bearer {site.admin}"}
        httpx.delete(f"{site.server.url}/v1/tokens/session", headers=headers, timeout=60)
        assert client.get("/who").status_code == 303


def test_a_live_page_ends_when_its_token_is_revoked(site: Site) -> None:
    reader = site.make("live", site.admin, ["read"])
    with site.browser(reader) as client, client.stream("GET", "/live/overview") as stream:
        parts = stream.iter_raw()
        next(parts)
        headers = {"Authorization": f"Bearer {site.admin}"}
        httpx.delete(f"{site.server.url}/v1/tokens/live", headers=headers, timeout=60)
        for _ in parts:
            pass
    assert stream.is_closed


def test_logging_out_forgets(site: Site) -> None:
    with site.browser(site.admin) as client:
        assert client.post("/logout", headers=SAME).status_code == 403
        csrf = csrf_of(client)
        assert client.post("/logout", data={"csrf": csrf}, headers=SAME).status_code == 303
        assert client.get("/who").status_code == 303


def test_logging_out_ends_every_copy_of_the_cookie_and_its_streams_and_no_other_session(site: Site) -> None:
    with site.browser(site.admin) as client, site.browser() as thief, site.browser(site.admin) as other:
        thief.cookies = client.cookies
        with thief.stream("GET", "/live/overview") as stream:
            parts = stream.iter_raw()
            next(parts)
            assert client.post("/logout", data={"csrf": csrf_of(client)}, headers=SAME).status_code == 303
            for _ in parts:
                pass
        assert thief.get("/who").status_code == 303
        assert thief.get("/live/overview").status_code == 303
        site.server.stop()
        site.server.start()
        assert thief.get("/who").status_code == 303
        assert other.get("/who").status_code == 200


def test_who_logs_in_anew_ends_the_session_before(site: Site) -> None:
    reader = site.make("successor", site.admin, ["read"])
    with site.browser(site.admin) as client, site.browser() as copy:
        copy.cookies = client.cookies
        assert copy.get("/who").status_code == 200
        assert client.post("/login", data={"token": reader}, headers=SAME).status_code == 303
        assert "logged in as successor" in client.get("/who").text
        assert copy.get("/who").status_code == 303


def test_wrong_tokens_wait_after_ten_and_right_ones_never(site: Site) -> None:
    with site.browser() as client:
        found = [
            client.post("/login", data={"token": f"wrong-{number}"}, headers=SAME) for number in range(12)
        ]
        assert [each.status_code for each in found] == [401] * 10 + [429] * 2
        assert 0 < int(found[-1].headers["retry-after"]) <= 60
        assert "wrong-11" not in found[-1].text
        assert client.post("/login", data={"token": site.admin}, headers=SAME).status_code == 303


@pytest.mark.parametrize("path", CHANGES)
def test_every_page_that_changes_something_wants_to_be_sent_by_one_of_ours(site: Site, path: str) -> None:
    where = re.sub("{[^}]*}", "x1", path)
    with site.browser(site.admin) as client:
        right, other = csrf_of(client), "0" * 64
        for sent in ({}, {"csrf": ""}, {"csrf": other}, {"csrf": right[:-1]}):
            reply = client.post(where, data={"x": "y", **sent}, headers=SAME)
            assert reply.status_code in ((401, 429) if path in NOBODY_YET else (403,)), reply.text
        assert client.post(where, headers={**SAME, "X-CSRF": other}).status_code in (401, 403, 429)
        for site_says in ("cross-site", "same-site", "none"):
            reply = client.post(where, data={"csrf": right}, headers={"Sec-Fetch-Site": site_says})
            assert reply.status_code == 403
            assert "pages of other sites" in reply.text
        reply = client.post(where, data={"csrf": right}, headers={"Origin": "http://evil.example"})
        assert reply.status_code == 403
        if path not in (*NOBODY_YET, "/logout"):
            reply = client.post(where, data={"csrf": right}, headers=SAME)
            assert reply.status_code not in (401, 403)


def test_a_scripts_header_is_as_good_as_a_forms_field(site: Site) -> None:
    with site.browser(site.admin) as client:
        headers = {**SAME, "X-CSRF": csrf_of(client), "Content-Type": "application/x-www-form-urlencoded"}
        reply = client.post("/who/tokens", content="name=by-script&scopes=read", headers=headers)
        assert reply.status_code == 200
        assert "mludf_" in reply.text


def test_an_admin_makes_and_revokes_tokens_on_the_page(site: Site) -> None:
    with site.browser(site.admin) as client:
        csrf = csrf_of(client)
        form = {"csrf": csrf, "name": "paged", "scopes": ["infer", "read"], "functions": "udf_a*, udf_b"}
        form |= {"expires": "90d", "share-rows_per_s": "100"}
        made = client.post("/who/tokens", data=form, headers=SAME)
        assert made.headers["cache-control"] == "no-store"
        secret = re.search('<pre id="secret">([^<]+)</pre>', made.text)
        assert secret is not None
        listed = client.get("/who").text
        assert secret[1] not in listed
        assert "udf_a* udf_b" in listed
        again = client.post("/who/tokens", data=form, headers=SAME)
        assert again.status_code == 400
        assert 'value="udf_a*, udf_b"' in again.text
        reply = client.post("/who/tokens/paged/revoke", data={"csrf": csrf}, headers=SAME)
        assert (reply.status_code, reply.headers["location"]) == (303, "../../../who#tokens")
        wait_until(lambda: "Revoke paged" not in client.get("/who").text)
    with site.browser(site.make("no-admin", site.admin, ["read"])) as client:
        page = client.get("/who").text
        assert "no-admin" in page
        assert "paged" not in page
        posted = client.post("/who/tokens", data={"csrf": csrf_of(client), "name": "x"}, headers=SAME)
        assert posted.status_code == 403


def test_a_token_that_may_not_read_is_told_so(site: Site) -> None:
    only = site.make("blind", site.admin, ["infer"])
    with site.browser() as client:
        reply = client.post("/login", data={"token": only}, headers=SAME)
        assert reply.status_code == 403
        assert "lacks the scope read" in reply.text
        assert "set-cookie" not in reply.headers


def test_errors_are_pages_for_people_and_json_for_programs(site: Site) -> None:
    headers = {"Authorization": f"Bearer {site.admin}"}
    for path, status in (("/nothing", 404), ("/functions/nothing", 404), ("/a/b/<script>", 404)):
        with httpx.Client(base_url=site.server.url, headers=headers, timeout=60) as client:
            page, told = client.get(path, headers=HTML), client.get(path)
        assert (page.status_code, told.status_code) == (status, status)
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert "script-src 'self'" in page.headers["content-security-policy"]
        assert "<script>" not in page.text
        assert told.json()["error"].startswith("unknown_function: ")
    reader = site.make("reads", site.admin, ["read"])
    with site.browser(reader) as client:
        missing = client.get("/nothing/at/all")
        assert missing.status_code == 404
        assert "<h1>Not here</h1>" in missing.text
        refused = client.post("/who/tokens", headers=SAME)
        assert refused.status_code == 403
        assert "<h1>Not for you</h1>" in refused.text
        assert client.get("/v1/nothing", headers={"Accept": "application/json"}).status_code == 404


def test_an_admin_reads_on_the_page_what_was_done(site: Site) -> None:
    reader = site.make("sees-no-audit", site.admin, ["read"])
    with site.browser(site.admin) as client:
        shown = client.get("/who?action=create+token&token=root").text
        assert "Audit trail, as a table" in shown
        assert '<td class="named">create token</td>' in shown
        assert ">revoke token</td>" not in shown
        assert "Nothing of the kind" in client.get("/who?token=%3Cscript%3Ealert(1)%3C/script%3E").text
        assert "<script>alert" not in client.get("/who?token=%3Cscript%3Ealert(1)%3C/script%3E").text
    with site.browser(reader) as client:
        assert "What was done" not in client.get("/who?action=create+token").text
